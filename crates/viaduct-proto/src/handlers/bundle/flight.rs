//! What of a connection's bytes has arrived, and how fast: pings go between them, and are answered in order.
//!
//! What is acknowledged is acknowledged in the flow's order, so a slow connection holds back what is known of the
//! others; this does not.

use std::collections::VecDeque;

use super::wire::MOST_DATA;
use crate::time::Instant;

/// A ping follows so many bytes.
const EVERY: u64 = 64 << 10;
/// Bytes on their way on a connection of which nothing is known.
const UNKNOWN: u64 = EVERY;

#[derive(Debug, Default)]
pub(super) struct Flight {
    sent: u64,
    arrived: u64,
    marks: VecDeque<Mark>,
    /// When the first byte behind the last ping was sent.
    began: Option<Instant>,
    answered: Option<Instant>,
    /// Bytes a second that have arrived.
    rate: Option<u64>,
}

/// A ping.
#[derive(Debug)]
struct Mark {
    /// Bytes before it.
    sent: u64,
    /// When the first byte behind the ping before it was sent.
    began: Option<Instant>,
}

impl Flight {
    /// So many bytes are sent; whether a ping is to follow.
    pub(super) fn sends(&mut self, bytes: usize, now: Instant) -> bool {
        self.sent += bytes as u64;
        self.began.get_or_insert(now);
        self.sent - self.marks.back().map_or(self.arrived, |mark| mark.sent) >= EVERY
    }

    /// A ping is sent.
    pub(super) fn asks(&mut self) {
        self.marks.push_back(Mark { sent: self.sent, began: self.began.take() });
    }

    /// The oldest ping is answered.
    pub(super) fn hears(&mut self, now: Instant) {
        let Some(mark) = self.marks.pop_front() else { return };
        let bytes = mark.sent - std::mem::replace(&mut self.arrived, mark.sent);
        let answered = self.answered.replace(now);
        let Some(began) = mark.began.filter(|_| bytes >= EVERY) else { return };
        let took = now.since(answered.map_or(began, |answered| answered.max(began)));
        let rate = u128::from(bytes) * 1_000_000 / took.as_micros().max(1);
        let rate = u64::try_from(rate).unwrap_or(u64::MAX).max(1);
        self.rate = Some(self.rate.map_or(rate, |known| known - known / 4 + rate / 4));
    }

    /// Bytes a second, if that is known.
    pub(super) fn rate(&self) -> Option<u64> {
        self.rate
    }

    /// Bytes that a connection as quick as `quickest` carries until one more block has arrived on this one.
    pub(super) fn lag(&self, quickest: u64) -> u64 {
        let bytes = self.sent - self.arrived + MOST_DATA as u64;
        let rate = self.rate.unwrap_or(quickest).max(1);
        let lag = u128::from(bytes) * u128::from(quickest.max(1)) / u128::from(rate);
        u64::try_from(lag).unwrap_or(u64::MAX)
    }

    /// Whether it takes one more block: what overtakes that must find room in half of `window`.
    pub(super) fn may(&self, quickest: u64, window: usize) -> bool {
        match self.rate {
            None => self.sent - self.arrived < UNKNOWN,
            Some(rate) => rate == quickest || self.lag(quickest) <= window as u64 / 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;

    /// `bytes` are sent, and have arrived after `took`.
    fn carries(flight: &mut Flight, now: &mut Instant, bytes: usize, took: Duration) {
        assert_eq!(flight.sends(bytes, *now), bytes as u64 >= EVERY);
        flight.asks();
        *now += took;
        flight.hears(*now);
    }

    #[test]
    fn the_rate_is_that_of_what_arrives() {
        let (mut flight, mut now) = (Flight::default(), Instant::ZERO);
        carries(&mut flight, &mut now, 1_000, Duration::from_millis(10));
        assert_eq!(flight.rate(), None, "too little to say");
        // Time in which nothing was on its way does not count.
        now += Duration::from_secs(10);
        for _ in 0..30 {
            carries(&mut flight, &mut now, 100_000, Duration::from_millis(100));
        }
        assert_eq!(flight.rate().map(|rate| rate / 10_000), Some(100));
    }

    #[test]
    fn a_slow_one_takes_what_arrives_before_the_window_is_full_of_what_overtakes_it() {
        let (mut flight, mut now) = (Flight::default(), Instant::ZERO);
        assert!(flight.may(1, 1 << 20));
        flight.sends(UNKNOWN as usize, now);
        assert!(!flight.may(1, 1 << 20), "nothing is known of it");
        flight.asks();
        now += Duration::from_secs(1);
        flight.hears(now);
        let (rate, block) = (UNKNOWN, MOST_DATA as u64);
        assert!(flight.may(rate, 1), "the quickest takes all");
        assert!(flight.may(10 * rate, 20 * block as usize));
        assert!(!flight.may(11 * rate, 20 * block as usize));
        flight.sends(MOST_DATA, now);
        assert!(!flight.may(10 * rate, 20 * block as usize));
    }
}
