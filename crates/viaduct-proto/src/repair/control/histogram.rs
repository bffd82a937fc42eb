//! Histogram of packets and losses over a quantity such as the queueing delay, to test whether
//! losses concentrate at high values.
//!
//! Random losses occur at any value, in proportion to the packets with this value; drops of a full
//! queue occur at delays close to the longest. If a share p of the packets and k of n losses have
//! high values, the probability of k or more such losses by chance is at most `exp(-n D(k/n || p))`
//! (Chernoff), where D is the relative entropy of two coins with these probabilities.
//!
//! ```text
//!   packets  ▁▂▃▅▇▇▆▅▅▆▇│▇▅      random losses     ▁ ▁ ▂ ▂ ▁│▁      of a full queue           │▂█
//!            0     high ┴▶ delay                            ┴                                 ┴
//! ```

use std::ops::Range;

use crate::time::{Duration, Instant};

/// Number of bins per octave, total number of bins, and binary logarithm of the first bin's end.
const PER_OCTAVE: u32 = 32;
const BINS: usize = 1 + (14 * PER_OCTAVE) as usize;
const FIRST_BITS: u32 = 10;
/// Share of the packets whose value may be above the peak: after a scheduling pause of the
/// receiver, a few packets appear to be late.
const ABOVE_PEAK: f32 = 0.01;
/// Share of the peak above which a value counts as high.
const HIGH: f64 = 0.8;
/// Test of the bin of a loss and [`BESIDE`] bins on either side: the number of losses there must
/// exceed the number expected by chance by [`MORE`] standard deviations. Without this test, once a
/// full queue has dropped packets, random losses at somewhat shorter delays would also count as
/// drops.
const BESIDE: usize = 1;
const MORE: f64 = 2.0;
/// Number of packets assumed at high values, and the same number at low values, in addition to the
/// counted packets.
const FEW: f64 = 10.0;
/// Thresholds for the negative logarithm of the probability that random losses are distributed as
/// observed. If more losses than expected have high values, a logarithm of [`CERTAIN`] or more
/// shows a full queue as the cause; below this value, the cause is in doubt. [`CERTAIN`] allows for
/// about ten tests, one for each bin at which high values may start. If no more losses than
/// expected have high values, a logarithm of [`LIKELY`] or more shows that the losses are random;
/// below this value, their cause is in doubt.
const CERTAIN: f64 = 9.0;
const LIKELY: f64 = 1.0;

/// Cause of a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Random loss.
    Chance,
    /// Loss in a queue that may be full; the next losses will show whether it was.
    Doubtful,
    /// Loss in a full queue, or caused by the offered load.
    Congestion,
}

/// Histogram of packets and losses.
#[derive(Debug)]
pub struct Histogram {
    /// Empty until the first count: a peer without traffic takes no memory for bins.
    bins: Vec<Bin>,
    half_life: Duration,
    halved: Option<Instant>,
    /// Packets assumed at low values, as a share of the packets at high values.
    prior: f64,
    /// Ratio of the loss rates at high and at low values that may arise by chance.
    often: f64,
}

/// Packets and losses at about one value.
#[derive(Clone, Copy, Debug, Default)]
struct Bin {
    packets: f32,
    /// Losses; consecutive losses count as one.
    losses: f32,
}

impl Histogram {
    /// Creates a histogram whose counts have the given half-life. `prior`: packets assumed at low
    /// values, as a share of the packets at high values; if all values are high, losses count as
    /// congestion once they outweigh this share. `often`: ratio of the loss rates at high and at
    /// low values that may arise by chance.
    pub fn new(half_life: Duration, prior: f64, often: f64) -> Self {
        Histogram { bins: Vec::new(), half_life, halved: None, prior, often }
    }

    /// Forgets all counts.
    pub fn clear(&mut self) {
        *self = Histogram::new(self.half_life, self.prior, self.often);
    }

    /// Counts a packet.
    pub fn arrive(&mut self, now: Instant, value: i64) {
        let halved = *self.halved.get_or_insert(now);
        if now.since(halved) >= self.half_life {
            for bin in &mut self.bins {
                (bin.packets, bin.losses) = (bin.packets / 2.0, bin.losses / 2.0);
            }
            self.halved = Some(now);
        }
        self.bin_mut(bin(value)).packets += 1.0;
    }

    fn bin_mut(&mut self, at: usize) -> &mut Bin {
        if self.bins.is_empty() {
            self.bins.resize(BINS, Bin::default());
        }
        &mut self.bins[at]
    }

    /// Value that hardly any recent packet exceeds.
    pub fn peak(&self) -> i64 {
        let all = self.bins.iter().map(|bin| bin.packets).sum::<f32>();
        let mut above = ABOVE_PEAK * all;
        let peak = self.bins.iter().rposition(|bin| {
            above -= bin.packets;
            above < 0.0
        });
        peak.map_or(0, lower)
    }

    /// Returns whether a value is close to `peak`.
    pub fn is_high(value: i64, peak: i64) -> bool {
        bin(value) >= bin((HIGH * peak as f64) as i64)
    }

    /// Losses per packet at about this value; consecutive losses count as one.
    pub fn loss(&self, value: i64) -> f64 {
        let (packets, losses) = sum(self.bins.get(beside(bin(value))).unwrap_or_default());
        losses / packets.max(1.0)
    }

    /// Counts consecutive losses, as one, next to packets with this value; returns the cause.
    /// Values near `peak` count as high.
    pub fn lose(&mut self, value: i64, peak: i64) -> Verdict {
        let (at, high) = (bin(value), bin((HIGH * peak as f64) as i64));
        self.bin_mut(at).losses += 1.0;
        let (all, losses) = sum(&self.bins);
        let (mut packets, mut above) = sum(&self.bins[high..]);
        let mut verdict = Verdict::Chance;
        // Drops by a full queue occur at the very longest delays.
        for from in high..=at {
            let (many, few) =
                (self.often * packets + FEW, (all - packets).max(self.prior * packets) + FEW);
            let by_chance = many / (many + few);
            let improbable = losses * divergence(above / losses, by_chance);
            let is_often = above > by_chance * losses;
            if is_often && improbable >= CERTAIN {
                return compare(sum(&self.bins[beside(at)]), sum(&self.bins[..high]));
            }
            if from == high && (is_often || improbable < LIKELY) {
                verdict = Verdict::Doubtful;
            }
            packets -= f64::from(self.bins[from].packets);
            above -= f64::from(self.bins[from].losses);
        }
        verdict
    }
}

/// Compares the losses in some bins with those in other bins; both arguments are (packets, losses).
fn compare(beside: (f64, f64), elsewhere: (f64, f64)) -> Verdict {
    let by_chance = beside.0 * elsewhere.1 / elsewhere.0.max(1.0);
    let is_more = beside.1 > by_chance + MORE * by_chance.sqrt();
    if is_more { Verdict::Congestion } else { Verdict::Chance }
}

/// Sum of packets and losses of some bins.
fn sum(bins: &[Bin]) -> (f64, f64) {
    bins.iter().fold((0.0, 0.0), |(packets, losses), bin| {
        (packets + f64::from(bin.packets), losses + f64::from(bin.losses))
    })
}

fn beside(bin: usize) -> Range<usize> {
    bin.saturating_sub(BESIDE)..(bin + BESIDE + 1).min(BINS)
}

/// Relative entropy of a coin with probability `a` with respect to a coin with probability `p`.
fn divergence(a: f64, p: f64) -> f64 {
    let term = |a: f64, p: f64| if a > 0.0 { a * (a / p).ln() } else { 0.0 };
    term(a, p) + term(1.0 - a, 1.0 - p)
}

fn bin(value: i64) -> usize {
    let value = u64::try_from(value).unwrap_or(0);
    let Some(octave) = value.checked_ilog2().and_then(|bits| bits.checked_sub(FIRST_BITS)) else {
        return 0;
    };
    let part = (value >> (FIRST_BITS + octave - PER_OCTAVE.ilog2())) as u32 % PER_OCTAVE;
    ((1 + octave * PER_OCTAVE + part) as usize).min(BINS - 1)
}

/// Lowest value of a bin.
fn lower(bin: usize) -> i64 {
    let Some(at) = bin.checked_sub(1) else { return 0 };
    let (octave, part) = (at as u32 / PER_OCTAVE, at as u32 % PER_OCTAVE);
    i64::from(PER_OCTAVE + part) << (octave + FIRST_BITS - PER_OCTAVE.ilog2())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_lies_within_the_bounds_of_its_bin() {
        for value in (0..20_000_000).step_by(37) {
            let at = bin(value);
            assert!(lower(at) <= value, "{value}");
            assert!(at + 1 == BINS || value < lower(at + 1), "{value}");
        }
        assert_eq!((bin(-1), bin(i64::MAX)), (0, BINS - 1));
    }

    #[test]
    fn a_few_outliers_do_not_change_the_peak() {
        let mut histogram = Histogram::new(Duration::from_secs(10), 0.0, 2.0);
        let at = Instant::ZERO;
        (0..1_000).for_each(|n| histogram.arrive(at, n * 50));
        (0..5).for_each(|_| histogram.arrive(at, 90_000));
        let peak = histogram.peak();
        assert!((47_000..50_000).contains(&peak), "{peak}");
        let later = |n: u64| at + Duration::from_millis(n);
        (0..500).for_each(|n| histogram.arrive(later(n), 10_000));
        assert!(histogram.peak() > 40_000, "counts are halved, not cleared");
        (500..100_000).for_each(|n| histogram.arrive(later(n), 10_000));
        assert_eq!(histogram.peak(), lower(bin(10_000)));
    }

    #[test]
    fn divergences_have_their_known_values() {
        assert!(divergence(0.3, 0.3).abs() < 1e-12);
        assert!((divergence(1.0, 0.25) - 4f64.ln()).abs() < 1e-12);
        assert!((divergence(0.0, 0.25) - (4.0f64 / 3.0).ln()).abs() < 1e-12);
    }
}
