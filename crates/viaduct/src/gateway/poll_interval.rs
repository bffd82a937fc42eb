//! Poll interval of the packet thread under load.
//!
//! A wake-up costs as much as ten packets, so an interval should span many packets. However,
//! the interval delays repairs, and reading copies that have left the CPU cache costs more.
//! The interval is therefore short while repairs pass, and spans [`PACKETS_PER_WAKEUP`]
//! packets otherwise.

use viaduct_proto::time::{Duration, Instant};

/// Minimum interval: at 3 Gb/s about 150 packets, which share a wake-up and the system calls that
/// send their repairs.
const MIN_INTERVAL: Duration = Duration::from_micros(600);
const MAX_INTERVAL: Duration = Duration::from_micros(2_400);
/// Number of packets that should share a wake-up. The wake-up then costs less than a tenth of the
/// packets' cost, even if several workers divide the packets. The copies still fit into the cache.
const PACKETS_PER_WAKEUP: u32 = 128;
/// Time without repairs after which none are expected.
const REPAIRS_TIMEOUT: Duration = Duration::from_secs(2);

/// Adaptive poll interval.
#[derive(Debug)]
pub struct PollInterval {
    length: Duration,
    /// Total of repairs.
    repairs: u64,
    /// Time at which that total last changed; `None` before the first update.
    seen: Option<Instant>,
}

impl Default for PollInterval {
    fn default() -> Self {
        PollInterval { length: MIN_INTERVAL, repairs: 0, seen: None }
    }
}

impl PollInterval {
    /// Updates the total of repairs sent and received.
    pub fn update(&mut self, now: Instant, repairs: u64) {
        if repairs != self.repairs || self.seen.is_none() {
            (self.repairs, self.seen) = (repairs, Some(now));
        }
    }

    /// Length of the next interval, given that `packets` packets arrived in the last interval.
    pub fn next(&mut self, now: Instant, packets: usize) -> Duration {
        let is_quiet = self.seen.is_some_and(|at| now.since(at) >= REPAIRS_TIMEOUT);
        let packets = u32::try_from(packets).unwrap_or(u32::MAX).max(1);
        self.length =
            if is_quiet { self.length * PACKETS_PER_WAKEUP / packets } else { MIN_INTERVAL };
        self.length = self.length.clamp(MIN_INTERVAL, MAX_INTERVAL);
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
    fn intervals_are_short_while_repairs_pass() {
        let mut interval = PollInterval::default();
        assert_eq!(interval.next(START, 4), MIN_INTERVAL);
        interval.update(START, 0);
        assert_eq!(interval.next(after(3), 4), MAX_INTERVAL);
        interval.update(after(3), 1);
        assert_eq!(interval.next(after(3), 4), MIN_INTERVAL);
        interval.update(after(4), 1);
        assert_eq!(interval.next(after(5), 4), MAX_INTERVAL);
    }

    #[test]
    fn an_interval_spans_as_many_packets_as_should_share_a_wake_up() {
        for (rate, expected) in [(10_000, 2_400), (100_000, 1_280), (400_000, 600)] {
            let mut interval = PollInterval::default();
            interval.update(START, 0);
            let mut length = MIN_INTERVAL;
            for _ in 0..100 {
                let packets = (f64::from(rate) * length.as_secs_f64()).round() as usize;
                length = interval.next(after(3), packets);
            }
            let length = length.as_micros().abs_diff(expected);
            assert!(length < 60, "{rate}: off by {length} us");
        }
    }
}
