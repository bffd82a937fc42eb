//! Short hold of recovered packets before they are injected, for links on which packets overtake
//! each other.
//!
//! With several receive queues or cores, a repair may overtake packets that it covers. A packet
//! rebuilt from such a repair is not lost but slightly late, and its destination should receive it
//! only once. The hold time is learnt from packets that arrive after their recovery: later
//! recoveries are held a little longer than these packets were late. Without such packets the hold
//! is zero.
//!
//! ```text
//!   recovered ──▶ queue ── hold over ──▶ injected ──▶ gone, remembered for a while
//!                   └ its packet arrives: dropped        └ its packet arrives: hold rises
//! ```

use std::collections::VecDeque;

use super::identity::Identity;
use crate::fec::Seq;
use crate::time::{Duration, Instant};

/// Longest hold: longer than the differences in delay between queues and cores of one machine.
const MAX_HOLD: Duration = Duration::from_millis(2);
/// Time without an overtaken packet after which the hold is halved, finally to zero.
const FORGET: Duration = Duration::from_secs(10);
/// Maximum number of held and of remembered recoveries: each arriving packet causes a search of
/// them.
const MAX_HELD: usize = 256;

#[derive(Clone, Copy, Debug)]
pub(super) struct HeldRecovery {
    pub(super) seq: Seq,
    pub(super) identity: Identity,
    /// Time at which the packet should have arrived, if known.
    pub(super) due: Option<Instant>,
    recovered: Instant,
}

/// Relation of an arriving packet to recoveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overtaken {
    /// The packet was not recovered.
    No,
    /// The recovery was still held, and is dropped.
    InTime(Seq),
    /// The recovery's hold had already ended.
    TooLate,
}

/// Held recoveries, and recently released ones; each queue oldest first.
#[derive(Debug, Default)]
pub(super) struct ReorderHold {
    hold: Duration,
    /// Last arrival of an overtaken packet.
    last: Option<Instant>,
    queue: VecDeque<HeldRecovery>,
    gone: VecDeque<HeldRecovery>,
}

impl ReorderHold {
    pub(super) fn push(&mut self, now: Instant, seq: Seq, id: Identity, due: Option<Instant>) {
        self.queue.push_back(HeldRecovery { seq, identity: id, due, recovered: now });
    }

    /// Searches for the recovery of a packet that has just arrived.
    pub(super) fn arrived(&mut self, now: Instant, identity: Identity) -> Overtaken {
        if let Some(recovery) = take(&mut self.queue, identity) {
            self.rise(now, recovery);
            return Overtaken::InTime(recovery.seq);
        }
        match take(&mut self.gone, identity) {
            Some(gone) => {
                self.rise(now, gone);
                Overtaken::TooLate
            }
            None => Overtaken::No,
        }
    }

    /// Raises the hold to 5/4 of the time by which the packet arrived after its recovery.
    fn rise(&mut self, now: Instant, recovery: HeldRecovery) {
        let needed = now.since(recovery.recovered) * 5 / 4;
        self.hold = self.hold.max(needed.min(MAX_HOLD));
        self.last = Some(now);
    }

    /// Time at which the next hold ends.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.queue.front().map(|recovery| recovery.recovered + self.hold)
    }

    /// Takes the next recovery whose hold has ended, or for which there is no room.
    pub(super) fn pop(&mut self, now: Instant) -> Option<HeldRecovery> {
        let full = self.queue.len() > MAX_HELD;
        let front = self.queue.front()?;
        if !full && front.recovered + self.hold > now {
            return None;
        }
        let recovery = self.queue.pop_front()?;
        self.forget(now);
        if self.gone.len() == MAX_HELD {
            self.gone.pop_front();
        }
        self.gone.push_back(recovery);
        Some(recovery)
    }

    /// Forgets released recoveries whose packets can no longer arrive.
    fn forget(&mut self, now: Instant) {
        let old = |gone: &HeldRecovery| now.since(gone.recovered) > 2 * MAX_HOLD;
        while self.gone.front().is_some_and(old) {
            self.gone.pop_front();
        }
    }

    /// Returns whether nothing is held or remembered, and the hold is zero.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.gone.is_empty() && self.last.is_none()
    }

    /// Housekeeping; to be called a few times a second.
    pub(super) fn tick(&mut self, now: Instant) {
        self.forget(now);
        if self.last.is_some_and(|last| now.since(last) >= FORGET) {
            self.hold /= 2;
            self.last = (self.hold > Duration::from_micros(10)).then_some(now);
            if self.last.is_none() {
                self.hold = Duration::ZERO;
            }
        }
    }
}

fn take(queue: &mut VecDeque<HeldRecovery>, identity: Identity) -> Option<HeldRecovery> {
    let at = queue.iter().position(|recovery| recovery.identity == identity)?;
    queue.remove(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::ZERO + Duration::from_micros(micros)
    }

    #[test]
    fn the_hold_follows_the_time_by_which_packets_are_overtaken() {
        let mut hold = ReorderHold::default();
        hold.push(at(0), 1, Identity(1), None);
        assert_eq!(hold.pop(at(0)).unwrap().seq, 1, "no packet was overtaken yet");
        assert_eq!(hold.arrived(at(400), Identity(1)), Overtaken::TooLate);
        hold.push(at(1_000), 2, Identity(2), None);
        assert_eq!(hold.poll_timeout(), Some(at(1_500)));
        assert!(hold.pop(at(1_499)).is_none());
        assert_eq!(hold.arrived(at(1_499), Identity(2)), Overtaken::InTime(2));
        assert_eq!(hold.arrived(at(1_500), Identity(2)), Overtaken::No);
        for second in 1..200 {
            hold.tick(at(second * 1_000_000));
        }
        hold.push(at(200_000_000), 3, Identity(3), None);
        assert!(hold.pop(at(200_000_000)).is_some(), "the hold has decayed");
    }

    #[test]
    fn held_and_remembered_recoveries_are_bounded() {
        let mut hold = ReorderHold { hold: MAX_HOLD, ..ReorderHold::default() };
        for seq in 0..10_000 {
            hold.push(at(0), seq, Identity(seq), None);
            while hold.pop(at(0)).is_some() {}
            assert!(hold.queue.len() <= MAX_HELD && hold.gone.len() <= MAX_HELD);
        }
    }
}
