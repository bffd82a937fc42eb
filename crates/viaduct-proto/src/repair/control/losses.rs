//! Losses as a receiver counts them: by chance or by congestion, in bursts.
//!
//! A packet that is missing may just be late. It counts as lost when it has not come for a moment; until then it
//! waits here. Consecutive numbers that were lost by chance are one burst.

use std::collections::VecDeque;

use super::bursts::{Counts, bucket};
use crate::fec::Seq;
use crate::time::{Duration, Instant};

/// Time in which a packet may be late.
const LATE: Duration = Duration::from_millis(8);
/// Packets that wait to be counted, at most; the oldest are counted at once.
const MAX_WAITING: usize = 4_096;

/// What was lost.
#[derive(Debug, Default)]
pub struct Losses {
    /// Missing numbers, oldest first: since when, and whether a full queue has dropped them.
    waiting: VecDeque<(Seq, Instant, bool)>,
    /// The burst that was counted last: its newest number, and its length.
    run: Option<(Seq, u64)>,
    counts: Counts,
    congested: u64,
}

impl Losses {
    /// Packets whose fate is known have become more.
    pub fn known(&mut self, packets: u64) {
        self.counts.packets += packets;
    }

    /// Packet `seq` is missing; `is_congested` if those beside it were in a full queue.
    pub fn missing(&mut self, now: Instant, seq: Seq, is_congested: bool) {
        if self.waiting.len() == MAX_WAITING {
            self.count_first();
        }
        self.waiting.push_back((seq, now, is_congested));
    }

    /// Packet `seq`, which was missing, has arrived.
    pub fn arrived(&mut self, seq: Seq) {
        self.waiting.retain(|&(of, ..)| of != seq);
    }

    /// Counts what has been missing for long enough.
    pub fn settle(&mut self, now: Instant) {
        while self.waiting.front().is_some_and(|&(_, since, _)| now.since(since) >= LATE) {
            self.count_first();
        }
    }

    /// When there is something to count.
    pub fn due(&self) -> Option<Instant> {
        self.waiting.front().map(|&(_, since, _)| since + LATE)
    }

    /// Losses by chance, the last burst included though it may not have ended.
    pub fn random(&self) -> Counts {
        self.counts
    }

    /// Packets lost by congestion.
    pub fn congested(&self) -> u64 {
        self.congested
    }

    fn count_first(&mut self) {
        let Some((seq, _, is_congested)) = self.waiting.pop_front() else { return };
        if is_congested {
            self.congested += 1;
            return;
        }
        let length = match self.run {
            Some((last, length)) if last + 1 == seq => {
                // The burst has grown: it was counted as a shorter one.
                self.counts.bursts[bucket(length)] -= 1;
                length + 1
            }
            _ => 1,
        };
        self.counts.bursts[bucket(length)] += 1;
        self.run = Some((seq, length));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn bursts_count_once_as_long_as_they_are() {
        let mut losses = Losses::default();
        for seq in [10, 20, 21, 22, 30] {
            losses.missing(at(0), seq, false);
        }
        losses.settle(at(7));
        assert_eq!(losses.random().bursts, [0; 16], "they may be late");
        losses.settle(at(8));
        let bursts = losses.random().bursts;
        assert_eq!((bursts[0], bursts[1], bursts[2]), (2, 0, 1));
        losses.missing(at(5), 31, false);
        losses.settle(at(13));
        assert_eq!(losses.random().bursts[..2], [1, 1], "the last has grown");
    }

    #[test]
    fn what_comes_late_or_was_dropped_by_a_queue_is_no_loss_by_chance() {
        let mut losses = Losses::default();
        (1..=4).for_each(|seq| losses.missing(at(0), seq, seq == 3));
        losses.arrived(2);
        assert_eq!(losses.due(), Some(at(8)));
        losses.settle(at(100));
        assert_eq!((losses.random().bursts[0], losses.congested(), losses.due()), (2, 1, None));
    }
}
