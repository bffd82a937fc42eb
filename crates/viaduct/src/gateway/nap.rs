//! Length of the packet thread's naps under load.
//!
//! A wake-up costs as much as ten packets, so a nap should span many. However, repairs are
//! delayed by the length of a nap, and copies that have left the CPU cache cost more. Naps are
//! therefore short while repairs pass, and span [`SHARE`] packets otherwise.

use viaduct_proto::time::{Duration, Instant};

/// Minimum nap: at 3 Gb/s about 150 packets, which share a wake-up and the system calls that
/// send their repairs.
const SHORT: Duration = Duration::from_micros(600);
/// Maximum nap.
const LONG: Duration = Duration::from_micros(2_400);
/// Number of packets that should share a wake-up.
const SHARE: u32 = 64;
/// Time without repairs after which none are expected.
const QUIET: Duration = Duration::from_secs(2);

/// Length of the next nap.
#[derive(Debug)]
pub struct Nap {
    length: Duration,
    /// Total of repairs, and the time at which it last changed.
    repairs: u64,
    seen: Option<Instant>,
}

impl Default for Nap {
    fn default() -> Self {
        Nap { length: SHORT, repairs: 0, seen: None }
    }
}

impl Nap {
    /// Updates the total of repairs sent and received.
    pub fn see(&mut self, now: Instant, repairs: u64) {
        if repairs != self.repairs || self.seen.is_none() {
            (self.repairs, self.seen) = (repairs, Some(now));
        }
    }

    /// Length of the next nap, after `packets` packets came in the last one.
    pub fn next(&mut self, now: Instant, packets: usize) -> Duration {
        let is_quiet = self.seen.is_some_and(|at| now.since(at) >= QUIET);
        let packets = u32::try_from(packets).unwrap_or(u32::MAX).max(1);
        self.length = if is_quiet { self.length * SHARE / packets } else { SHORT };
        self.length = self.length.clamp(SHORT, LONG);
        self.length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant::ZERO;

    fn after(secs: u64) -> Instant {
        START + Duration::from_secs(secs)
    }

    #[test]
    fn naps_are_short_while_repairs_pass() {
        let mut nap = Nap::default();
        assert_eq!(nap.next(START, 4), SHORT);
        nap.see(START, 0);
        assert_eq!(nap.next(after(3), 4), LONG);
        nap.see(after(3), 1);
        assert_eq!(nap.next(after(3), 4), SHORT);
        nap.see(after(4), 1);
        assert_eq!(nap.next(after(5), 4), LONG);
    }

    #[test]
    fn a_nap_lasts_for_as_many_packets_as_should_share_a_wake_up() {
        for (rate, expected) in [(10_000, 2_400), (50_000, 1_280), (200_000, 600)] {
            let mut nap = Nap::default();
            nap.see(START, 0);
            let mut length = SHORT;
            for _ in 0..100 {
                let packets = (f64::from(rate) * length.as_secs_f64()).round() as usize;
                length = nap.next(after(3), packets);
            }
            let length = length.as_micros().abs_diff(expected);
            assert!(length < 60, "{rate}: off by {length} us");
        }
    }
}
