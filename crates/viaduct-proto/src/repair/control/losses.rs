//! Losses as counted by a receiver: random losses, grouped into bursts, and losses by congestion.
//!
//! A missing packet may merely be late. It counts as lost if it has not arrived after [`LATE`];
//! until then it waits to be counted. It waits longer if the cause is in doubt, because later
//! losses may show that the queue was full. Later packets are not counted before the waiting
//! packet: otherwise the loss rate would seem too low at first and too high afterwards. Random
//! losses of consecutive numbers form one burst.

use std::collections::VecDeque;

use super::RECURS;
use super::bursts::{Counts, bucket};
use super::histogram::Verdict;
use crate::fec::Seq;
use crate::time::{Duration, Instant};

/// Time after which a missing packet counts as lost rather than late.
const LATE: Duration = Duration::from_millis(8);
/// Time in which later losses may decide a loss whose cause is in doubt.
const DOUBT: Duration = Duration::from_secs(1);
/// Maximum number of packets that wait to be counted; beyond this limit, the oldest are counted
/// early.
const MAX_WAITING: usize = 4_096;

/// Counted and waiting losses.
#[derive(Debug, Default)]
pub struct Losses {
    /// Missing numbers in the order of detection, each with its time and the cause of the loss.
    waiting: VecDeque<(Seq, Instant, Verdict)>,
    /// Highest number that was ever in `waiting`.
    highest: Seq,
    /// Packets that were named, arrived or missing, after the first entry of `waiting` was added:
    /// the time, and the number of packets.
    known: VecDeque<(Instant, u64)>,
    /// Numbers whose loss was in doubt until a loss by congestion was found, and which the caller
    /// has not taken yet.
    condemned: Vec<Seq>,
    /// Last counted burst: its newest number and its length.
    run: Option<(Seq, u64)>,
    /// Random losses, including the last burst, which may still grow.
    pub(in crate::repair) counts: Counts,
    /// Packets lost by congestion.
    pub(in crate::repair) congested: u64,
}

impl Losses {
    /// Takes over the totals of the previous process.
    pub(in crate::repair) fn resume(&mut self, counts: Counts, congested: u64) {
        // `run` was counted in the totals that are replaced here, not in those taken over. If it
        // were kept and grew, `count` would take it out of a bucket that does not contain it.
        (self.counts, self.congested, self.run) = (counts, congested, None);
    }

    /// Counts packets that were named, whether they arrived or are missing.
    pub fn known(&mut self, now: Instant, packets: u64) {
        if self.waiting.is_empty() {
            self.counts.packets += packets;
        } else if let Some((_, last)) = self.known.back_mut().filter(|(at, _)| *at == now) {
            *last += packets;
        } else {
            self.known.push_back((now, packets));
        }
    }

    /// Records that packet `seq` is missing. A verdict of congestion also applies to all packets in
    /// doubt.
    pub fn missing(&mut self, now: Instant, seq: Seq, verdict: Verdict) {
        if self.waiting.len() == MAX_WAITING {
            self.count_first();
        }
        self.waiting.push_back((seq, now, verdict));
        self.highest = self.highest.max(seq);
        if verdict == Verdict::Congestion {
            for (seq, _, of) in &mut self.waiting {
                if *of == Verdict::Doubtful {
                    *of = verdict;
                    self.condemned.push(*seq);
                }
            }
        }
    }

    /// Takes the packets that were in doubt until their loss was attributed to congestion.
    pub fn condemned(&mut self) -> impl Iterator<Item = Seq> {
        self.condemned.drain(..)
    }

    /// Records that packet `seq`, which may have been missing, has arrived.
    pub fn arrived(&mut self, seq: Seq) {
        if seq <= self.highest {
            self.waiting.retain(|&(of, ..)| of != seq);
        }
    }

    /// Counts packets that have been missing for long enough.
    pub fn settle(&mut self, now: Instant) {
        while self.due().is_some_and(|due| due <= now) {
            self.count_first();
        }
        let since = self.waiting.front().map(|&(_, since, _)| since);
        while self.known.front().is_some_and(|&(at, _)| since.is_none_or(|since| at < since)) {
            self.counts.packets += self.known.pop_front().map_or(0, |(_, packets)| packets);
        }
    }

    /// Deadline at which the first waiting packet counts as lost.
    pub fn due(&self) -> Option<Instant> {
        let &(_, since, verdict) = self.waiting.front()?;
        Some(since + if verdict == Verdict::Doubtful { DOUBT } else { LATE })
    }

    /// Returns whether at least [`RECURS`] losses are in doubt.
    pub fn in_doubt(&self) -> bool {
        let doubtful = self.waiting.iter().filter(|&&(.., of)| of == Verdict::Doubtful);
        doubtful.take(RECURS).count() == RECURS
    }

    /// Counts the first waiting packet. A loss that is still in doubt counts as random.
    fn count_first(&mut self) {
        match self.waiting.pop_front() {
            Some((seq, _, Verdict::Chance | Verdict::Doubtful)) => self.count(seq),
            Some((.., Verdict::Congestion)) => self.congested += 1,
            None => {}
        }
    }

    /// Counts a random loss.
    fn count(&mut self, seq: Seq) {
        let length = match self.run {
            Some((last, length)) if last + 1 == seq => {
                // The burst has grown: it was counted with a smaller length.
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
    fn each_burst_counts_once_with_its_full_length() {
        let mut losses = Losses::default();
        for seq in [10, 20, 21, 22, 30] {
            losses.missing(at(0), seq, Verdict::Chance);
        }
        losses.settle(at(7));
        assert_eq!(losses.counts.bursts, [0; 16], "the packets may be late");
        losses.settle(at(8));
        let bursts = losses.counts.bursts;
        assert_eq!((bursts[0], bursts[1], bursts[2]), (2, 0, 1));
        losses.missing(at(5), 31, Verdict::Chance);
        losses.settle(at(13));
        assert_eq!(losses.counts.bursts[..2], [1, 1], "the last burst has grown");
    }

    #[test]
    fn late_packets_and_drops_by_a_queue_are_not_random_losses() {
        let mut losses = Losses::default();
        let verdict = |seq| if seq == 3 { Verdict::Congestion } else { Verdict::Chance };
        (1..=4).for_each(|seq| losses.missing(at(0), seq, verdict(seq)));
        losses.arrived(2);
        assert_eq!(losses.due(), Some(at(8)));
        losses.settle(at(100));
        assert_eq!((losses.counts.bursts[0], losses.congested, losses.due()), (2, 1, None));
    }

    #[test]
    fn later_losses_decide_the_cause_of_a_doubtful_loss() {
        let mut losses = Losses::default();
        losses.missing(at(0), 1, Verdict::Doubtful);
        losses.settle(at(100));
        assert_eq!((losses.counts.bursts[0], losses.due()), (0, Some(at(1_000))));
        losses.missing(at(200), 9, Verdict::Congestion);
        assert_eq!(losses.condemned().collect::<Vec<_>>(), [1]);
        losses.settle(at(2_000));
        assert_eq!((losses.counts.bursts[0], losses.congested), (0, 2));
        assert_eq!(losses.condemned().next(), None);
        losses.missing(at(3_000), 20, Verdict::Doubtful);
        losses.settle(at(3_500));
        losses.settle(at(4_000));
        assert_eq!((losses.counts.bursts[0], losses.congested, losses.due()), (1, 2, None));
    }

    #[test]
    fn packets_after_a_doubtful_loss_count_together_with_it() {
        let mut losses = Losses::default();
        losses.known(at(0), 100);
        losses.missing(at(1), 1, Verdict::Doubtful);
        for n in 2..=900 {
            losses.known(at(n), 1);
            if n % 100 == 0 {
                losses.missing(at(n), n, Verdict::Chance);
            }
        }
        losses.settle(at(1_000));
        assert_eq!((losses.counts.packets, losses.counts.bursts[0]), (100, 0));
        losses.settle(at(1_001));
        assert_eq!((losses.counts.packets, losses.counts.bursts[0]), (999, 10));
        assert_eq!(losses.due(), None);
    }
}
