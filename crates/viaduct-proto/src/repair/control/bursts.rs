//! Lengths of loss bursts, and their rates.

use std::collections::VecDeque;

use super::overhead::Rates;
use crate::time::{Duration, Instant};
use crate::upgrade::MAX_COUNTS as MAX_RECORDED;

/// Longest burst of each bucket except the last.
const BOUNDS: [u64; BUCKETS - 1] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256];
/// Number of buckets of burst lengths.
pub const BUCKETS: usize = 16;
/// Length that is assumed for bursts in the last bucket.
const LONGEST: u64 = 512;

/// Number of bursts that determine a rate with an error of about one seventh.
const ENOUGH: u64 = 50;
/// Minimum number of bursts of similar length from which a rate is computed: repairs in expectation
/// of a burst that occurred only once would mostly be sent in vain.
const RECURS: u64 = 3;
/// Shortest time over which a rate is measured.
const SHORT: Duration = Duration::from_secs(1);
/// Longest time over which a rate is measured.
const LONG: Duration = Duration::from_secs(10);
/// Maximum number of remembered counts: ten seconds with four counts per round trip of 20 ms.
const MAX_COUNTS: usize = 2_048;

/// Bucket of a burst's length.
pub fn bucket(length: u64) -> usize {
    BOUNDS.partition_point(|&bound| bound < length)
}

/// Length that is assumed for the bursts in a bucket: the longest.
pub fn length(bucket: usize) -> f64 {
    BOUNDS.get(bucket).copied().unwrap_or(LONGEST) as f64
}

/// Totals since the receiver started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets whose fate is known.
    pub packets: u64,
    /// Bursts, by bucket of their length.
    pub bursts: [u64; BUCKETS],
}

impl Counts {
    /// Sum of the counts of two lanes.
    pub(super) fn plus(&self, other: &Counts) -> Counts {
        Counts {
            packets: self.packets + other.packets,
            bursts: std::array::from_fn(|n| self.bursts[n] + other.bursts[n]),
        }
    }

    fn since(&self, before: &Counts) -> Counts {
        Counts {
            packets: self.packets.saturating_sub(before.packets),
            bursts: std::array::from_fn(|n| self.bursts[n].saturating_sub(before.bursts[n])),
        }
    }

    fn all(&self) -> u64 {
        self.bursts.iter().sum()
    }

    fn rates(&self) -> Rates {
        let rate = |at: usize| {
            // Neighbouring lengths count together.
            let alike = &self.bursts[at.saturating_sub(1)..(at + 2).min(BUCKETS)];
            let recurs = alike.iter().sum::<u64>() >= RECURS;
            if recurs { self.bursts[at] as f64 / self.packets.max(1) as f64 } else { 0.0 }
        };
        std::array::from_fn(rate)
    }
}

/// Counts of the last seconds.
#[derive(Debug, Default)]
pub struct Bursts {
    counts: VecDeque<(Instant, Counts)>,
}

impl Bursts {
    /// Adds the newest totals. If they are lower than before, the receiver has restarted.
    pub fn add(&mut self, now: Instant, counts: Counts) {
        if self.counts.back().is_some_and(|(_, last)| counts.packets < last.packets) {
            self.counts.clear();
        }
        // One count older than [`LONG`] is kept, as a base for differences.
        while self.counts.get(1).is_some_and(|&(at, _)| now.since(at) > LONG)
            || self.counts.len() == MAX_COUNTS
        {
            self.counts.pop_front();
        }
        self.counts.push_back((now, counts));
    }

    /// Some of the counts, including the first and the last, for the handover to a new process.
    pub(super) fn thinned(&self) -> impl Iterator<Item = (Instant, Counts)> {
        let last = self.counts.len().saturating_sub(1);
        let step = self.counts.len().div_ceil(MAX_RECORDED - 1).max(1);
        let is_kept = move |at: usize| at.is_multiple_of(step) || at == last;
        self.counts.iter().enumerate().filter(move |(at, _)| is_kept(*at)).map(|(_, of)| *of)
    }

    /// Takes over the counts of the previous process.
    pub(super) fn resume(&mut self, counts: impl Iterator<Item = (Instant, Counts)>) {
        self.counts = counts.collect();
    }

    /// Returns whether the last ten seconds had enough bursts to determine a rate.
    pub fn is_enough(&self) -> bool {
        let ends = self.counts.front().zip(self.counts.back());
        ends.is_some_and(|((_, first), (_, last))| last.since(first).all() >= ENOUGH)
    }

    /// Bursts per packet, by length. The rates are measured over the last second (longer if this
    /// second has too few bursts) and over the last ten seconds; of the two measurements, the one
    /// with the higher loss rate is returned.
    pub fn rates(&self) -> Rates {
        let Some(&(now, newest)) = self.counts.back() else { return [0.0; BUCKETS] };
        let mut rates = [0.0; BUCKETS];
        for enough in [true, false] {
            let before = self.counts.iter().rev().find(|(at, counts)| {
                let many = newest.since(counts).all() >= ENOUGH;
                now.since(*at) >= if enough && many { SHORT } else { LONG }
            });
            let before = before.or(self.counts.front()).map_or(newest, |&(_, counts)| counts);
            let of = newest.since(&before);
            let sum: fn(&Rates) -> f64 = super::overhead::loss;
            if sum(&of.rates()) > sum(&rates) {
                rates = of.rates();
            }
        }
        rates
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_fall_into_their_buckets() {
        let of = |lengths: &[u64]| lengths.iter().map(|&n| bucket(n)).collect::<Vec<_>>();
        assert_eq!(of(&[1, 2, 5, 8, 30, 256, 257, u64::MAX]), [0, 1, 4, 5, 9, 14, 15, 15]);
        assert!((0..BUCKETS).all(|n| bucket(length(n) as u64) == n));
    }

    #[test]
    fn one_long_burst_gives_no_rate() {
        let (mut bursts, mut counts) = (Bursts::default(), Counts::default());
        bursts.add(Instant::ZERO, counts);
        counts.packets = 10_000;
        counts.bursts[bucket(60)] = 2;
        bursts.add(Instant::ZERO + Duration::from_secs(1), counts);
        assert_eq!(bursts.rates(), [0.0; BUCKETS]);
        counts.bursts[bucket(40)] = 1;
        bursts.add(Instant::ZERO + Duration::from_secs(2), counts);
        assert!(bursts.rates()[bucket(60)] > 0.0);
    }

    #[test]
    fn an_onset_is_seen_within_a_second_and_an_end_after_ten_seconds() {
        let (mut bursts, mut counts) = (Bursts::default(), Counts::default());
        let mut second = |n: u64, each: u64| {
            for tick in 0..40 {
                counts.packets += 400;
                counts.bursts[0] += each;
                bursts.add(Instant::ZERO + Duration::from_millis(1_000 * n + 25 * tick), counts);
            }
            bursts.rates()[0]
        };
        (0..20).for_each(|n| assert_eq!(second(n, 0), 0.0));
        assert!((second(20, 4) - 0.01).abs() < 0.001);
        assert!((second(21, 4) - 0.01).abs() < 0.001);
        let after: Vec<_> = (22..40).map(|n| second(n, 0)).collect();
        assert!(after[8] > 0.0 && after[17] == 0.0, "{after:?}");
        assert!(after.is_sorted_by(|a, b| a >= b), "{after:?}");
    }
}
