//! Recovered packets that wait a moment before they are injected.
//!
//! Where a machine takes packets in by several queues, or several cores share the work, a repair
//! may overtake packets that it covers. What it rebuilds then is not lost, only a moment behind, and
//! its hosts should get it once.

use std::collections::VecDeque;

use super::identity::Identity;
use crate::fec::Seq;
use crate::time::{Duration, Instant};

/// How long a recovery waits for its packet: longer than queues and cores of one machine differ, a
/// fraction of what waiting for a repair takes.
pub(super) const HOLD: Duration = Duration::from_millis(1);
/// Recoveries that wait at once, at most: arrivals look through all of them.
const MOST: usize = 256;

/// A recovery that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) seq: Seq,
    pub(super) identity: Identity,
    /// When the packet should have arrived, if that is known.
    pub(super) due: Option<Instant>,
    release: Instant,
}

/// Recoveries that wait, oldest first.
#[derive(Debug, Default)]
pub(super) struct Held {
    queue: VecDeque<Waiting>,
}

impl Held {
    pub(super) fn push(
        &mut self,
        now: Instant,
        seq: Seq,
        identity: Identity,
        due: Option<Instant>,
    ) {
        self.queue.push_back(Waiting { seq, identity, due, release: now + HOLD });
    }

    /// Takes back the recovery of a packet that has come after all.
    pub(super) fn take(&mut self, identity: Identity) -> Option<Seq> {
        let at = self.queue.iter().position(|waiting| waiting.identity == identity)?;
        self.queue.remove(at).map(|waiting| waiting.seq)
    }

    /// When the next one has waited long enough.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.queue.front().map(|waiting| waiting.release)
    }

    /// Takes the next one that has waited long enough, or has no room to wait.
    pub(super) fn pop(&mut self, now: Instant) -> Option<Waiting> {
        let full = self.queue.len() > MOST;
        let ready = self.queue.front().is_some_and(|waiting| full || waiting.release <= now);
        if ready { self.queue.pop_front() } else { None }
    }
}
