//! The receiver's half of the buffer allocation: the receive window promised to the peer, how much
//! of it is in use, and how much the path needs.

use crate::time::{Duration, Instant};

/// Minimum interval over which a rate is measured, because bytes arrive in bursts.
const SHORTEST: Duration = Duration::from_millis(10);
/// Buffer that a path needs, in bandwidth-delay products. One product is not enough, because a
/// single stream gets half of the buffer, its acknowledgements are slightly delayed, and the queue
/// at the path's bottleneck fills as well.
const PRODUCTS: f64 = 4.0;

/// Receive window promised to the peer, for all links together.
#[derive(Debug, Default)]
pub(super) struct ReceiveWindow {
    limit: u64,
    /// Total of tokens granted.
    pub(super) total: u64,
    least_window: u64,
    /// Bytes received and not yet acknowledged, beyond the least window of each stream.
    taken: u64,
    /// All bytes received and not yet acknowledged.
    pub(super) held: u64,
    /// Start of the interval over which the rate is measured.
    since: Option<Instant>,
    arrived: u64,
    /// Minimum of `held` in the interval: bytes that stay unread, so that the path cannot use
    /// their buffer.
    standing: u64,
}

/// Error: the peer sent more than it was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Overrun;

impl ReceiveWindow {
    pub(super) fn new(initial: u64, limit: u64, least_window: u32) -> ReceiveWindow {
        ReceiveWindow {
            limit,
            total: initial.min(limit),
            least_window: u64::from(least_window),
            ..ReceiveWindow::default()
        }
    }

    /// Counts `count` bytes received for a stream that already has `before` unacknowledged bytes.
    pub(super) fn receive(&mut self, before: u64, count: usize) -> Result<(), Overrun> {
        let count = count as u64;
        let taken = self.taken + self.over(before + count) - self.over(before);
        if taken > self.total {
            return Err(Overrun);
        }
        self.taken = taken;
        self.held += count;
        self.arrived += count;
        Ok(())
    }

    /// Acknowledges `count` of a stream's `before` unacknowledged bytes.
    pub(super) fn free(&mut self, before: u64, count: u64) {
        self.taken = self.taken + self.over(before - count) - self.over(before);
        self.held -= count;
        self.standing = self.standing.min(self.held);
    }

    /// Measures how much the path carries, given the path's round-trip time `rtt`. Returns whether
    /// the peer must be told a new total.
    pub(super) fn measure(&mut self, now: Instant, rtt: Duration) -> bool {
        let Some(since) = self.since else {
            self.begin(now);
            return false;
        };
        let elapsed = now - since;
        if elapsed < rtt.max(SHORTEST) {
            return false;
        }
        let product = self.arrived as f64 * (rtt.as_secs_f64() / elapsed.as_secs_f64());
        let needed = (product * PRODUCTS) as u64 + 2 * self.standing;
        self.begin(now);
        // The total never shrinks: a promise cannot be taken back, and costs nothing while
        // unused.
        let total = needed.min(self.limit);
        let grows = total > self.total;
        self.total = self.total.max(total);
        grows
    }

    #[cfg(any(test, fuzzing))]
    pub(super) fn check(&self, unacknowledged: impl Iterator<Item = u64> + Clone) {
        assert_eq!(self.held, unacknowledged.clone().sum::<u64>(), "held");
        assert_eq!(self.taken, unacknowledged.map(|n| self.over(n)).sum::<u64>(), "taken");
        assert!(self.taken <= self.total && self.total <= self.limit);
    }

    fn begin(&mut self, now: Instant) {
        (self.since, self.arrived, self.standing) = (Some(now), 0, self.held);
    }

    fn over(&self, unacknowledged: u64) -> u64 {
        unacknowledged.saturating_sub(self.least_window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(100);

    #[test]
    fn the_window_grows_to_four_bandwidth_delay_products() {
        let mut window = ReceiveWindow::new(100_000, 1 << 30, 0);
        let mut now = Instant::ZERO;
        window.measure(now, RTT);
        // 100 Mb/s in bursts of one millisecond, read immediately.
        for _ in 0..2_000 {
            now += Duration::from_millis(1);
            window.receive(0, 12_500).unwrap();
            window.free(12_500, 12_500);
            window.measure(now, RTT);
        }
        let product = 12_500_000.0 / 10.0;
        let ratio = window.total as f64 / product;
        assert!((3.9..4.2).contains(&ratio), "{ratio}");
    }

    #[test]
    fn the_window_compensates_for_stopped_readers_within_the_limit() {
        let mut window = ReceiveWindow::new(100_000, 250_000, 0);
        window.receive(0, 90_000).unwrap();
        window.measure(Instant::ZERO, RTT);
        assert!(!window.measure(Instant::ZERO + RTT / 2, RTT), "too early");
        assert!(window.measure(Instant::ZERO + RTT, RTT));
        assert_eq!(window.total, 180_000, "twice the unread bytes");
        window.receive(90_000, 90_000).unwrap();
        window.measure(Instant::ZERO + RTT * 2, RTT);
        window.measure(Instant::ZERO + RTT * 3, RTT);
        assert_eq!(window.total, 250_000, "the limit");
        assert_eq!(window.receive(180_000, 70_001), Err(Overrun));
        assert_eq!(window.receive(180_000, 70_000), Ok(()));
    }
}
