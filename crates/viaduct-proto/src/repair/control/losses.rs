//! Losses as a receiver counts them: by chance or by congestion, in bursts.
//!
//! A packet that is missing may just be late. It counts as lost when it has not come for a moment;
//! until then it waits here. So does one for longer of which it is not known whether a full queue has
//! dropped it: the next losses tell. Consecutive numbers that were lost by chance are one burst.

use std::collections::VecDeque;

use super::bursts::{Counts, bucket};
use super::histogram::Verdict;
use crate::fec::Seq;
use crate::time::{Duration, Instant};

/// Time in which a packet may be late.
const LATE: Duration = Duration::from_millis(8);
/// Time in which other losses tell why one was.
const DOUBT: Duration = Duration::from_secs(1);
/// Packets that wait to be counted, at most; the oldest are counted at once.
const MAX_WAITING: usize = 4_096;

/// What was lost.
#[derive(Debug, Default)]
pub struct Losses {
    /// Missing numbers, oldest first: since when, and why.
    waiting: VecDeque<(Seq, Instant, Verdict)>,
    /// Those that are in doubt.
    doubtful: VecDeque<(Seq, Instant)>,
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

    /// Packet `seq` is missing. If that is a full queue's, so were those in doubt.
    pub fn missing(&mut self, now: Instant, seq: Seq, verdict: Verdict) {
        if self.waiting.len() == MAX_WAITING {
            self.count_first();
        }
        self.waiting.push_back((seq, now, verdict));
        if verdict == Verdict::Congestion {
            self.congested += self.doubtful.drain(..).len() as u64;
            for (.., of) in &mut self.waiting {
                *of = if *of == Verdict::Doubtful { verdict } else { *of };
            }
        }
    }

    /// Packet `seq`, which was missing, has arrived.
    pub fn arrived(&mut self, seq: Seq) {
        self.waiting.retain(|&(of, ..)| of != seq);
        self.doubtful.retain(|&(of, _)| of != seq);
    }

    /// Counts what has been missing for long enough.
    pub fn settle(&mut self, now: Instant) {
        while self.waiting.front().is_some_and(|&(_, since, _)| now.since(since) >= LATE) {
            self.count_first();
        }
        while self.doubtful.front().is_some_and(|&(_, since)| now.since(since) >= DOUBT) {
            let Some((seq, _)) = self.doubtful.pop_front() else { break };
            self.count(seq);
        }
    }

    /// When there is something to count.
    pub fn due(&self) -> Option<Instant> {
        let waiting = self.waiting.front().map(|&(_, since, _)| since + LATE);
        let doubtful = self.doubtful.front().map(|&(_, since)| since + DOUBT);
        [waiting, doubtful].into_iter().flatten().min()
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
        let Some((seq, since, verdict)) = self.waiting.pop_front() else { return };
        match verdict {
            Verdict::Chance => self.count(seq),
            Verdict::Doubtful if self.doubtful.len() < MAX_WAITING => {
                self.doubtful.push_back((seq, since));
            }
            Verdict::Doubtful | Verdict::Congestion => self.congested += 1,
        }
    }

    /// Counts a packet that was lost by chance.
    fn count(&mut self, seq: Seq) {
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
            losses.missing(at(0), seq, Verdict::Chance);
        }
        losses.settle(at(7));
        assert_eq!(losses.random().bursts, [0; 16], "they may be late");
        losses.settle(at(8));
        let bursts = losses.random().bursts;
        assert_eq!((bursts[0], bursts[1], bursts[2]), (2, 0, 1));
        losses.missing(at(5), 31, Verdict::Chance);
        losses.settle(at(13));
        assert_eq!(losses.random().bursts[..2], [1, 1], "the last has grown");
    }

    #[test]
    fn what_comes_late_or_was_dropped_by_a_queue_is_no_loss_by_chance() {
        let mut losses = Losses::default();
        let verdict = |seq| if seq == 3 { Verdict::Congestion } else { Verdict::Chance };
        (1..=4).for_each(|seq| losses.missing(at(0), seq, verdict(seq)));
        losses.arrived(2);
        assert_eq!(losses.due(), Some(at(8)));
        losses.settle(at(100));
        assert_eq!((losses.random().bursts[0], losses.congested(), losses.due()), (2, 1, None));
    }

    #[test]
    fn the_next_losses_tell_why_one_was() {
        let mut losses = Losses::default();
        losses.missing(at(0), 1, Verdict::Doubtful);
        losses.settle(at(100));
        assert_eq!((losses.random().bursts[0], losses.due()), (0, Some(at(1_000))));
        losses.missing(at(200), 9, Verdict::Congestion);
        losses.settle(at(2_000));
        assert_eq!((losses.random().bursts[0], losses.congested()), (0, 2));
        losses.missing(at(3_000), 20, Verdict::Doubtful);
        losses.settle(at(3_500));
        losses.settle(at(4_000));
        assert_eq!((losses.random().bursts[0], losses.congested(), losses.due()), (1, 2, None));
    }
}
