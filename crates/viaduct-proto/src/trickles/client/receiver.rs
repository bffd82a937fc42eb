//! Packets of a generation in the order of their numbers: determines which are lost, and which
//! continuations can be returned.
//!
//! ```text
//!   arrived ─▶ early ─▶ in order, or given up ─▶ ranges of the epoch ─▶ Turn: continuation + proof
//! ```
//!
//! A packet is given up when three later ones have arrived ([more](super::overtaking) on a path
//! with reordering), or after a timeout. From then on it counts as lost, even if it arrives later,
//! because each proof must agree with the proofs before it (2.4).

use std::collections::{BTreeMap, VecDeque};

use super::overtaking::Overtaking;
use crate::trickles::continuation::{Continuation, Delta, Mode};
use crate::trickles::epoch::Epoch;
use crate::trickles::plan::{self, Plan, Tail};
use crate::trickles::proof::{self, Gaps, Range};

/// Maximum distance of an accepted packet from the next expected one. Windows have at most 65,535
/// packets, so no packet beyond this distance was requested. If such a packet were accepted, all
/// packets before it would have to be given up and recorded.
const REACH: u64 = 1 << 18;

/// A continuation that may be returned, and its proof. The struct is small, because entire windows
/// of turns are kept while the application does not read; [`Turn::step`] computes the rest.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    /// The continuation's bytes.
    pub(super) bytes: Vec<u8>,
    /// The proof in wire format.
    pub(super) proof: Vec<u8>,
    /// Losses at the end of the previous epoch.
    pub(super) tail: Option<Tail>,
    epoch: Epoch,
    /// Losses in the continuation's epoch before its packet.
    gaps: Gaps,
}

/// Effects of returning a continuation.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) known: Continuation,
    /// The server's plan for the losses at the end of the previous epoch.
    pub(super) made_up: Option<Plan>,
    pub(super) plan: Plan,
    /// Number of losses that the continuations in the answer will name in addition to those that
    /// `known` names.
    pub(super) losses: usize,
}

impl Turn {
    /// Computes the effects of returning the continuation; `None` if it cannot be used.
    pub(super) fn step(&self) -> Option<Step> {
        let (known, _) = Continuation::peek(&self.bytes).ok()?;
        let (gaps, burst) = (self.gaps.runs(), known.burst.into());
        let plan = plan::step(self.epoch, known.number, gaps, burst).ok()?;
        let made_up =
            self.tail.and_then(|tail| plan::tail(self.epoch, known.number, tail, burst).ok());
        let losses = gaps.len() + usize::from(self.tail.is_some_and(|tail| tail.lost > 0));
        Some(Step { known, made_up, plan, losses })
    }
}

/// Maximum number of continuations kept to expand deltas, one for each epoch and secret.
const MODELS: usize = 4;

/// A packet that arrived before an earlier one.
#[derive(Clone, Debug)]
struct Early {
    nonce: u64,
    continuation: Option<(Vec<u8>, Continuation)>,
}

#[derive(Debug)]
pub(super) struct Receiver {
    epoch: Epoch,
    /// The epoch that will begin with the survivors of a recovery.
    coming: Option<Epoch>,
    /// Next expected packet: all packets below have arrived or are lost.
    next: u64,
    early: BTreeMap<u64, Early>,
    overtaking: Overtaking,
    ranges: Vec<Range>,
    /// Last point (packet with a continuation) that has arrived.
    point: u64,
    tail: Option<Tail>,
    /// Given-up packets that the client has not processed yet.
    pub(super) lost: VecDeque<u64>,
    /// Continuations to return, raw and parsed.
    pub(super) turns: VecDeque<(Turn, Continuation)>,
    /// Number of recoveries that the client has not counted yet.
    pub(super) recovered: u32,
    /// Known continuations of the last epochs and secrets, by base and number of the secret.
    models: BTreeMap<(u64, u8), Vec<u8>>,
}

impl Receiver {
    /// State before the first packet of a generation whose first epoch is `epoch`.
    pub(super) fn new(epoch: Epoch) -> Self {
        Receiver {
            epoch,
            coming: None,
            next: epoch.base,
            early: BTreeMap::new(),
            overtaking: Overtaking::default(),
            ranges: Vec::new(),
            point: epoch.base - 1,
            tail: None,
            lost: VecDeque::new(),
            turns: VecDeque::new(),
            recovered: 0,
            models: BTreeMap::new(),
        }
    }

    /// Rebuilds the continuation of packet `number` from its `delta`; `None` if no continuation
    /// of its epoch and secret is known.
    pub(super) fn whole(&self, number: u64, delta: Delta) -> Option<(Vec<u8>, Continuation)> {
        let (&(base, _), _) = self.models.range(..=(number, u8::MAX)).next_back()?;
        let model = self.models.get(&(base, delta.secret()))?;
        let bytes = delta.on(model, u32::try_from(number - base).ok()?)?;
        let (known, _) = Continuation::peek(&bytes).ok()?;
        Some((bytes, known))
    }

    /// Processes a packet. Returns false if it is a duplicate, was given up, or is out of range.
    pub(super) fn arrive(
        &mut self,
        number: u64,
        nonce: u64,
        continuation: Option<(Vec<u8>, Continuation)>,
    ) -> bool {
        let near = number.checked_sub(self.next).is_some_and(|ahead| ahead < REACH);
        let new = near && !self.early.contains_key(&number);
        if new {
            if let Some((bytes, known)) = &continuation {
                let place = (known.epoch.base, bytes[0]);
                self.models.entry(place).or_insert_with(|| bytes.clone());
                if self.models.len() > MODELS {
                    self.models.pop_first();
                }
            }
            self.early.insert(number, Early { nonce, continuation });
            self.advance();
        }
        new
    }

    /// Congestion window after the packets that have arrived in order.
    pub(super) fn window(&self) -> u64 {
        self.coming.map_or_else(|| self.epoch.window(self.next - 1), |coming| coming.start.into())
    }

    /// The missing packet that later ones wait for.
    pub(super) fn waits_for(&self) -> Option<u64> {
        (!self.early.is_empty()).then_some(self.next)
    }

    /// Processes a packet rejected by [`Receiver::arrive`]. Returns true if it was given up too
    /// early.
    pub(super) fn came_late(&mut self, number: u64) -> bool {
        self.overtaking.came(number, self.next)
    }

    /// Gives up the packets that later ones wait for.
    pub(super) fn give_up(&mut self) {
        if let Some((&first, _)) = self.early.first_key_value() {
            self.skip_to(first);
            self.advance();
        }
    }

    fn skip_to(&mut self, number: u64) {
        self.overtaking.give_up(self.next..number);
        self.lost.extend(self.next..number);
        self.next = number;
    }

    fn advance(&mut self) {
        while let Some((&first, _)) = self.early.first_key_value() {
            if first != self.next && self.early.len() < self.overtaking.degree {
                return;
            }
            self.skip_to(first);
            if let Some(packet) = self.early.remove(&first) {
                self.next = first + 1;
                self.process(first, packet);
            }
        }
    }

    fn process(&mut self, number: u64, packet: Early) {
        if self.coming.is_some_and(|coming| number >= coming.base) {
            self.enter_coming();
        }
        match self.ranges.last_mut() {
            Some(range) if range.last + 1 == number => {
                range.last = number;
                range.sum ^= packet.nonce;
            }
            _ => self.ranges.push(Range { first: number, last: number, sum: packet.nonce }),
        }
        if let Some((bytes, known)) = packet.continuation {
            self.point = number;
            if let Some(turn) = self.turn(bytes, known) {
                self.turns.push_back((turn, known));
            }
        }
    }

    /// Starts the epoch of the survivors, when one of its packets is processed for the first time.
    /// Records the losses at the end of the previous epoch, which the next request reports.
    fn enter_coming(&mut self) {
        let Some(coming) = self.coming.take() else { return };
        let arrived = self.ranges.last().map_or(self.epoch.base - 1, |range| range.last);
        let short = |from: u64| u32::try_from(coming.base - 1 - from).unwrap_or(u32::MAX);
        let tail = Tail { lost: short(arrived), unanswered: short(self.point) };
        self.tail = (tail.unanswered > 0).then_some(tail);
        self.recovered += 1;
        self.epoch = coming;
        self.point = coming.base - 1;
        self.ranges.clear();
    }

    /// Builds the turn of a continuation; `None` if its trickle is terminated, or if the
    /// continuation cannot be used.
    fn turn(&mut self, bytes: Vec<u8>, known: Continuation) -> Option<Turn> {
        let base = self.epoch.base;
        if known.epoch.base != base {
            return None;
        }
        let gaps = Gaps::between(base, &self.ranges)?;
        let tail = self.tail.filter(|_| known.mode == Mode::Survivors);
        let mut turn = Turn { bytes, proof: Vec::new(), tail, epoch: self.epoch, gaps };
        let step = turn.step()?;
        self.tail = None;
        if step.plan.epoch.base != base {
            self.coming = Some(step.plan.epoch);
        }
        if step.plan.is_nothing() && step.made_up.is_none() {
            return None;
        }
        proof::emit(base, &self.ranges, &mut turn.proof);
        Some(turn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trickles::epoch::Acks;

    #[test]
    fn a_packet_number_out_of_reach_is_refused_and_records_no_loss() {
        let acks = Acks { delayed: true, by_request: false };
        let mut receiver = Receiver::new(Epoch { base: 1, start: 10, ssthresh: 100, acks });
        for number in [1 + REACH, 1 << 40, u64::MAX] {
            assert!(!receiver.arrive(number, 0, None), "{number}");
        }
        assert_eq!(receiver.waits_for(), None);
        assert!((REACH - 3..REACH).all(|number| receiver.arrive(number, 0, None)));
        assert_eq!(receiver.lost.len() as u64, REACH - 4);
    }
}
