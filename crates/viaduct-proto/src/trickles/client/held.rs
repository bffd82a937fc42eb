//! Held trickles: continuations that the client may return, and the repairs (retransmissions of
//! lost packets) for which some of them wait.

use std::collections::{BTreeMap, VecDeque};

use super::receiver::{Step, Turn};
use crate::trickles::continuation::Continuation;

/// Maximum number of repairs whose nonces are kept; the repairs with the lowest packet numbers are
/// dropped first. Windows have at most 65,535 packets, and each repair is proven in the next
/// window.
const MAX_REPAIRED: usize = 1 << 17;

/// Continuations to return, and the nonces of repairs.
#[derive(Debug, Default)]
pub(super) struct Held {
    turns: VecDeque<Turn>,
    /// Nonces of repairs, by number.
    repaired: BTreeMap<u64, u64>,
}

impl Held {
    pub(super) fn push(&mut self, turn: Turn) {
        self.turns.push_back(turn);
    }

    pub(super) fn repair(&mut self, number: u64, nonce: u64) {
        self.repaired.insert(number, nonce);
        if self.repaired.len() > MAX_REPAIRED {
            self.repaired.pop_first();
        }
    }

    /// Takes the first continuation, with the effects of returning it, and the xor of its repairs'
    /// nonces if it waited for repairs. `None` if there is no continuation, or if it cannot be
    /// returned without a repair that is missing.
    pub(super) fn take(&mut self) -> Option<(Turn, Step, Option<u64>)> {
        let step = self.turns.front()?.step()?;
        let known = &step.known;
        let repaired = self.repairs(known);
        let window = known.epoch.base + u64::from(known.epoch.start);
        let owed = !known.losses.runs().is_empty() && repaired.is_none();
        if owed && known.number >= window {
            return None;
        }
        let turn = self.turns.pop_front()?;
        Some((turn, step, repaired))
    }

    /// Xor of the nonces of all repairs that a continuation waits for; `None` if a repair is
    /// missing, or if the continuation waits for no repairs.
    fn repairs(&self, known: &Continuation) -> Option<u64> {
        let mut sum = None;
        for run in known.losses.runs() {
            for number in run.first..=run.last() {
                sum = Some(sum.unwrap_or(0) ^ self.repaired.get(&number)?);
            }
        }
        sum
    }

    pub(super) fn len(&self) -> usize {
        self.turns.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Drops all continuations and repairs.
    pub(super) fn clear(&mut self) {
        self.turns.clear();
        self.repaired.clear();
    }
}
