//! Busy polling before the loop sleeps. When two programs answer each other, the next bytes arrive
//! within some tens of microseconds. Going to sleep and being woken takes longer: an idle core is
//! put into a low-power state, and another core has to wake it.
//!
//! ```text
//!   events handled ─▶ polls and yields the core, for a limited time ─▶ sleeps until events
//!                     (skips polling for a while if it was often in vain)
//! ```

use std::io;
use std::time::Duration;

use mio::{Events, Poll};
use rustix::thread::sched_yield;

use super::worker::time;

/// A wait of at least this length counts neither for nor against polling: the time to wake up is
/// small in comparison.
const LONG: Duration = Duration::from_millis(10);
/// A wait of less than this many polling periods does not count against polling.
const NEAR: u32 = 2;
/// Maximum number of successive waits without polling after a wait that polled in vain.
const MAX_REST: u32 = 127;

/// Record of whether polling has paid off recently.
#[derive(Debug, Default)]
pub struct Spin {
    /// Remaining waits that sleep immediately.
    rest: u32,
    /// About half of the number of waits that sleep immediately after the next poll in vain.
    doubt: u32,
}

impl Spin {
    /// Waits for `events` like [`Poll::poll`], for at most `wait`. Polls busily for the first
    /// `most` of that time.
    pub fn poll(
        &mut self,
        poll: &mut Poll,
        events: &mut Events,
        wait: Duration,
        most: Duration,
    ) -> io::Result<()> {
        if most.is_zero() || wait.is_zero() || !self.should_poll() {
            return poll.poll(events, Some(wait));
        }
        let begin = time();
        let most = most.min(wait);
        while time().since(begin) < most {
            poll.poll(events, Some(Duration::ZERO))?;
            if !events.is_empty() {
                self.found();
                return Ok(());
            }
            // The process that is to answer may need this core.
            sched_yield();
        }
        let ended = poll.poll(events, Some(wait - most));
        self.missed(time().since(begin), most);
        ended
    }

    /// Returns whether this wait begins with polling.
    fn should_poll(&mut self) -> bool {
        if self.rest == 0 {
            return true;
        }
        self.rest -= 1;
        false
    }

    /// Records that polling found events.
    fn found(&mut self) {
        self.doubt /= 2;
    }

    /// Records that polling was in vain: the wait lasted for `took`, of which `most` was polled. A
    /// wait that ended soon after the polling does not count: the answer may have been late only
    /// because the other end had to wake up, and that end will poll next time as well.
    fn missed(&mut self, took: Duration, most: Duration) {
        if (NEAR * most..LONG).contains(&took) {
            self.doubt = (2 * self.doubt + 1).min(MAX_REST);
            self.rest = self.doubt;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of `waits` that poll. Each wait lasts `micros`; polling finds events within 50 µs.
    fn polling_waits(spin: &mut Spin, waits: u32, micros: impl Fn(u32) -> u64) -> u32 {
        let mut polls = 0;
        for n in (0..waits).map(micros) {
            if spin.should_poll() {
                polls += 1;
                match n < 50 {
                    true => spin.found(),
                    false => spin.missed(Duration::from_micros(n), Duration::from_micros(50)),
                }
            }
        }
        polls
    }

    #[test]
    fn every_wait_polls_where_answers_are_quick() {
        assert_eq!(polling_waits(&mut Spin::default(), 1_000, |_| 20), 1_000);
        // An occasional late answer changes little.
        let seldom =
            polling_waits(&mut Spin::default(), 1_000, |n| if n % 50 == 0 { 900 } else { 20 });
        assert!(seldom > 950, "{seldom}");
    }

    #[test]
    fn two_ends_that_wake_each_other_both_begin_to_poll() {
        // Every second answer is late, because the other end was still asleep.
        assert_eq!(
            polling_waits(&mut Spin::default(), 100, |n| if n % 2 == 0 { 20 } else { 80 }),
            100
        );
    }

    #[test]
    fn few_waits_poll_where_answers_are_slow() {
        let slow = polling_waits(&mut Spin::default(), 10_000, |_| 900);
        assert!((50..150).contains(&slow), "{slow}");
        // Quick and slow waits alternate: polling would cost more time than it saves.
        let turns =
            polling_waits(&mut Spin::default(), 10_000, |n| if n % 2 == 0 { 20 } else { 900 });
        assert!(turns < 1_000, "{turns}");
    }

    #[test]
    fn polling_resumes_immediately_after_a_quiet_hour_and_soon_after_polls_in_vain() {
        let mut spin = Spin::default();
        polling_waits(&mut spin, 7_200, |_| 500_000);
        assert_eq!(polling_waits(&mut spin, 100, |_| 20), 100);
        polling_waits(&mut spin, 10_000, |_| 900);
        assert!(polling_waits(&mut spin, 1_000, |_| 20) > 1_000 - MAX_REST - 1);
    }
}
