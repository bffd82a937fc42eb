//! Rate limit of the handshakes that a gateway begins, over all its peers.
//!
//! A handshake costs a curve operation or two. With thousands of peers, neither the handshakes
//! after the gateway's start nor those with peers that are permanently down may take all of the
//! packet thread's time. A handshake that is due therefore reserves the next free time slot; slots
//! come at a fixed rate. Peers that have left several handshakes unanswered have separate slots, so
//! that they do not delay other peers.

use crate::time::{Duration, Instant};

/// Interval of handshakes with peers that are expected to answer.
const INTERVAL: Duration = Duration::from_millis(1);
/// Number of handshakes with peers of one kind that may be sent at once.
const MAX_BURST: u32 = 64;
/// Number of unanswered handshakes after which a peer is not expected to answer.
const MAX_UNANSWERED: u32 = 2;
/// Interval of handshakes with peers that are not expected to answer: up to 8 such peers get one
/// handshake a second each. A peer that comes back begins a handshake itself, and a gateway with
/// few peers retries every second. So a long wait is possible only between two hubs that have lost
/// contact.
const UNANSWERED_INTERVAL: Duration = Duration::from_millis(125);

/// Next free slot for each kind of peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct HandshakePace {
    answering: Instant,
    unanswered: Instant,
}

impl HandshakePace {
    pub(super) fn new(now: Instant) -> Self {
        HandshakePace { answering: now, unanswered: now }
    }

    /// Reserves the next free slot for a handshake with a peer that has not answered the last
    /// `unanswered` handshakes. If the slot is not after `now`, the handshake is sent now.
    pub(super) fn reserve(&mut self, now: Instant, unanswered: u32) -> Instant {
        let (next, interval) = match unanswered < MAX_UNANSWERED {
            true => (&mut self.answering, INTERVAL),
            false => (&mut self.unanswered, UNANSWERED_INTERVAL),
        };
        // Unused slots accumulate, up to a burst.
        let reserved = (*next).max(now - interval * (MAX_BURST - 1));
        *next = reserved + interval;
        reserved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn handshakes_begin_at_a_limited_rate_after_a_burst() {
        let mut pace = HandshakePace::new(at(1_000));
        let times: Vec<_> = (0..4_096).map(|_| pace.reserve(at(2_000), 0)).collect();
        let at_once = times.iter().filter(|time| **time <= at(2_000)).count();
        assert_eq!(at_once, MAX_BURST as usize);
        assert_eq!(times[4_095], at(2_000 + 4_096 - u64::from(MAX_BURST)));
    }

    #[test]
    fn peers_that_are_down_delay_no_others_and_a_few_get_a_handshake_every_second() {
        let mut pace = HandshakePace::new(at(0));
        for second in 5..10 {
            for _ in 0..8 {
                let now = at(second * 1_000);
                assert!(pace.reserve(now, MAX_UNANSWERED) <= now);
            }
        }
        let now = at(9_000);
        for _ in 0..4_096 {
            pace.reserve(now, 100);
        }
        assert!(pace.reserve(now, 100) > at(9_000 + 500_000));
        assert!(pace.reserve(now, 0) <= now);
    }
}
