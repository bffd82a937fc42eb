//! Delivery rate of one connection, measured by pings, which are sent between the connection's data
//! and answered in order by the other end.
//!
//! The flow's data is acknowledged in order, so a slow connection also delays the acknowledgements
//! of data that other connections have delivered. Pings do not have this problem.

use std::collections::VecDeque;

use super::wire::MAX_DATA;
use crate::time::Instant;

/// Bytes between two pings.
const PING_EVERY: u64 = 64 << 10;
/// Maximum bytes in flight on a connection whose rate is unknown.
const MAX_UNMEASURED: u64 = PING_EVERY;

#[derive(Debug, Default)]
pub(super) struct DeliveryRate {
    sent: u64,
    arrived: u64,
    pings: VecDeque<Ping>,
    /// Time at which the first byte after the last ping was sent.
    began: Option<Instant>,
    answered: Option<Instant>,
    /// Delivery rate in bytes a second, if known.
    pub(super) rate: Option<u64>,
}

#[derive(Debug)]
struct Ping {
    /// Bytes sent before the ping.
    sent: u64,
    /// Time at which the first byte after the previous ping was sent.
    began: Option<Instant>,
}

impl DeliveryRate {
    /// Records sent bytes; returns whether a ping should follow.
    pub(super) fn on_sent(&mut self, bytes: usize, now: Instant) -> bool {
        self.sent += bytes as u64;
        self.began.get_or_insert(now);
        self.sent - self.pings.back().map_or(self.arrived, |ping| ping.sent) >= PING_EVERY
    }

    pub(super) fn on_ping(&mut self) {
        self.pings.push_back(Ping { sent: self.sent, began: self.began.take() });
    }

    /// Records the answer to the oldest ping.
    pub(super) fn on_pong(&mut self, now: Instant) {
        let Some(ping) = self.pings.pop_front() else { return };
        let bytes = ping.sent - std::mem::replace(&mut self.arrived, ping.sent);
        let answered = self.answered.replace(now);
        let Some(began) = ping.began.filter(|_| bytes >= PING_EVERY) else { return };
        let took = now.since(answered.map_or(began, |answered| answered.max(began)));
        let rate = u128::from(bytes) * 1_000_000 / took.as_micros().max(1);
        let rate = u64::try_from(rate).unwrap_or(u64::MAX).max(1);
        self.rate = Some(self.rate.map_or(rate, |known| known - known / 4 + rate / 4));
    }

    /// Bytes that a connection of rate `quickest` delivers before a block sent now on this
    /// connection arrives.
    pub(super) fn lag(&self, quickest: u64) -> u64 {
        let bytes = self.sent - self.arrived + MAX_DATA as u64;
        let rate = self.rate.unwrap_or(quickest).max(1);
        let lag = u128::from(bytes) * u128::from(quickest.max(1)) / u128::from(rate);
        u64::try_from(lag).unwrap_or(u64::MAX)
    }

    /// Returns whether one more block may be sent here: the data on other connections that
    /// overtakes the block must fit in half of `window`. The quickest connection may always send. A
    /// connection of unknown rate may have [`MAX_UNMEASURED`] bytes in flight.
    pub(super) fn may_send(&self, quickest: u64, window: usize) -> bool {
        match self.rate {
            None => self.sent - self.arrived < MAX_UNMEASURED,
            Some(rate) => rate == quickest || self.lag(quickest) <= window as u64 / 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;

    /// Sends `bytes`, which arrive after `took`.
    fn carries(delivery: &mut DeliveryRate, now: &mut Instant, bytes: usize, took: Duration) {
        assert_eq!(delivery.on_sent(bytes, *now), bytes as u64 >= PING_EVERY);
        delivery.on_ping();
        *now += took;
        delivery.on_pong(*now);
    }

    #[test]
    fn the_rate_is_that_of_arriving_data() {
        let (mut delivery, mut now) = (DeliveryRate::default(), Instant::ZERO);
        carries(&mut delivery, &mut now, 1_000, Duration::from_millis(10));
        assert_eq!(delivery.rate, None, "too few bytes to measure");
        // Time with nothing in flight does not count.
        now += Duration::from_secs(10);
        for _ in 0..30 {
            carries(&mut delivery, &mut now, 100_000, Duration::from_millis(100));
        }
        assert_eq!(delivery.rate.map(|rate| rate / 10_000), Some(100));
    }

    #[test]
    fn a_slow_connection_takes_a_block_if_the_data_that_overtakes_it_fits_the_window() {
        let (mut delivery, mut now) = (DeliveryRate::default(), Instant::ZERO);
        assert!(delivery.may_send(1, 1 << 20));
        delivery.on_sent(MAX_UNMEASURED as usize, now);
        assert!(!delivery.may_send(1, 1 << 20), "its rate is unknown");
        delivery.on_ping();
        now += Duration::from_secs(1);
        delivery.on_pong(now);
        let (rate, block) = (MAX_UNMEASURED, MAX_DATA as u64);
        assert!(delivery.may_send(rate, 1), "the quickest takes all");
        assert!(delivery.may_send(10 * rate, 20 * block as usize));
        assert!(!delivery.may_send(11 * rate, 20 * block as usize));
        delivery.on_sent(MAX_DATA, now);
        assert!(!delivery.may_send(10 * rate, 20 * block as usize));
    }
}
