//! Minimum overhead for the bursts of a link.
//!
//! Repairs are sent at a steady rate of o per packet, and a burst of b lost packets needs b
//! repairs. The backlog of needed repairs behaves as a queue: it grows by b with each burst and
//! shrinks by o with each packet. A packet is late if the backlog at its loss takes more than n
//! packets to drain, where n is the number of packets that pass while its flow can wait. By Cramér
//! and Lundberg the share of late bursts falls as exp(-n I(o)), with
//!
//! ```text
//!   I(o) = max over t of  t o - sum over b of r[b] (exp(t b) - 1)
//!
//!   r[b]: number of bursts of b packets, per packet
//! ```
//!
//! and, for smaller n, as exp(-n I(o)) / (t sqrt(2 pi n v)) with v = sum over b of `r[b]` b^2 exp(t
//! b) (Bahadur and Rao). The repairs that are sent during a burst are lost as well, so a burst of b
//! packets needs b o additional repairs.

use super::bursts::{BUCKETS, length};

/// Number of halvings of a search interval, which reduce it to one sixteen-millionth.
const HALVINGS: u32 = 24;
/// Maximum argument of exp.
const MAX_EXPONENT: f64 = 500.0;

/// Bursts per packet, by bucket of their length.
pub type Rates = [f64; BUCKETS];

/// Share of packets that are lost.
pub fn loss(rates: &Rates) -> f64 {
    (0..BUCKETS).map(|n| rates[n] * length(n)).sum()
}

/// Logarithm of the ratio of all bursts to late bursts, at least 0, if flows wait while `packets`
/// packets pass.
pub fn rarity(rates: &Rates, overhead: f64, packets: f64) -> f64 {
    let mut bursts = [(0.0, 0.0); BUCKETS];
    let mut kinds = 0;
    for (bucket, &rate) in rates.iter().enumerate().filter(|(_, rate)| **rate > 0.0) {
        bursts[kinds] = (rate, length(bucket) * (1.0 + overhead));
        kinds += 1;
    }
    let sum = |term: &dyn Fn(f64, f64) -> f64| -> f64 {
        bursts[..kinds].iter().map(|&(rate, length)| term(rate, length)).sum()
    };
    let power = |t: f64, length: f64| (t * length).min(MAX_EXPONENT).exp();
    let slope = |t: f64| overhead - sum(&|rate, length| rate * length * power(t, length));
    if slope(0.0) <= 0.0 {
        return 0.0;
    }
    // At higher values of t, the term of the longest burst makes the slope negative by itself.
    let (mut low, mut high) = (0.0, MAX_EXPONENT);
    for _ in 0..HALVINGS {
        let t = f64::midpoint(low, high);
        if slope(t) > 0.0 { low = t } else { high = t }
    }
    let moment = sum(&|rate, length| rate * (power(low, length) - 1.0));
    let exponent = (low * overhead - moment).max(0.0);
    let spread = sum(&|rate, length| rate * length.powi(2) * power(low, length));
    let few = (low * (std::f64::consts::TAU * packets * spread).sqrt()).max(1.0);
    // The correction is valid for many bursts. With fewer than one burst in n packets, it is
    // reduced in proportion.
    let bursts = packets * sum(&|rate, _| rate);
    packets * exponent + few.ln() * bursts.min(1.0)
}

/// Minimum number of packets with a [`rarity`] of `needed` or more; `None` if `most` or more
/// packets are needed.
pub fn delay(rates: &Rates, overhead: f64, needed: f64, most: u16) -> Option<u16> {
    let (mut low, mut high) = (0, most);
    while low + 1 < high {
        let packets = u16::midpoint(low, high);
        let enough = rarity(rates, overhead, f64::from(packets)) >= needed;
        *(if enough { &mut high } else { &mut low }) = packets;
    }
    (high < most).then_some(high)
}

/// Minimum number of repairs per packet with which at most `target` of `events` bursts a second are
/// late, that is, repaired after more than `packets` further packets; `None` if even `most` repairs
/// per packet are too few.
pub fn least(rates: &Rates, packets: f64, events: f64, target: f64, most: f64) -> Option<f64> {
    if events <= target {
        return Some(0.0);
    }
    let needed = (events / target).ln();
    let enough = |overhead: f64| rarity(rates, overhead, packets) >= needed;
    if !enough(most) {
        return None;
    }
    let (mut low, mut high) = (0.0, most);
    for _ in 0..HALVINGS {
        let overhead = f64::midpoint(low, high);
        if enough(overhead) { high = overhead } else { low = overhead }
    }
    Some(high)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repair::control::bursts::bucket;

    /// Overhead needed for a loss of 1 % of 16,700 packets a second in bursts of `burst` packets,
    /// if flows wait for `seconds` seconds.
    fn needed(burst: u64, seconds: f64) -> f64 {
        let (mut rates, pace) = ([0.0; BUCKETS], 16_700.0);
        let at = bucket(burst);
        rates[at] = 0.01 / length(at);
        least(&rates, pace * seconds, pace * rates[at], 0.03, 1.0).unwrap()
    }

    #[test]
    fn longer_bursts_and_less_time_need_more_repairs() {
        // In a simulation, 2.8, 9.1 and 20.7 % are needed. Bursts of 30 count as 32.
        for (burst, low, high) in [(1, 0.027, 0.034), (8, 0.080, 0.100), (30, 0.18, 0.24)] {
            let overhead = needed(burst, 0.025);
            assert!((low..high).contains(&overhead), "bursts of {burst}: {overhead}");
        }
        assert!(needed(8, 0.025) > needed(8, 0.1) && needed(8, 0.1) > needed(1, 0.1));
        assert!(needed(1, 10.0) < 0.0125, "with enough time, hardly more than is lost");
    }

    #[test]
    fn the_delay_matches_the_time_for_which_the_overhead_was_chosen() {
        let (mut rates, overhead) = ([0.0; BUCKETS], needed(8, 0.025));
        rates[bucket(8)] = 0.01 / 8.0;
        let rare = (16_700.0 * rates[bucket(8)] / 0.03_f64).ln();
        let delay = |overhead, needed| delay(&rates, overhead, needed, 2_048);
        let found = delay(overhead, rare).unwrap();
        assert!(found.abs_diff(417) <= 2, "{found}");
        assert!(delay(overhead, 2.0 * rare).unwrap() > found);
        assert!(delay(2.0 * overhead, rare).unwrap() < found);
        assert_eq!((delay(0.005, rare), delay(overhead, 100.0)), (None, None));
    }

    #[test]
    fn rare_bursts_need_no_repairs_and_too_many_bursts_cannot_be_repaired() {
        let mut rates = [0.0; BUCKETS];
        assert_eq!(least(&rates, 100.0, 0.0, 0.03, 1.0), Some(0.0));
        rates[0] = 0.4;
        assert_eq!(least(&rates, 100.0, 4_000.0, 0.03, 0.3), None);
        assert_eq!(rarity(&rates, 0.3, 100.0), 0.0);
    }
}
