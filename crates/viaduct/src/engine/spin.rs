//! Busy polling before the loop sleeps. Between programs that answer each other the next bytes
//! arrive within some tens of microseconds. Going to sleep and being woken takes longer: an idle
//! core is put into a low-power state, and another core has to wake it.
//!
//! ```text
//!   events handled ─▶ polls and yields the core, for a limited time ─▶ sleeps until events
//!                     not at all for a while, if it has often polled in vain
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
/// Maximum number of successive waits without polling after one that polled in vain.
const MAX_REST: u32 = 127;

/// Record of whether polling has paid off recently.
#[derive(Debug, Default)]
pub struct Spin {
    /// Remaining waits that sleep at once.
    rest: u32,
    /// About half of the number of waits that sleep at once after the next poll in vain.
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
        if most.is_zero() || wait.is_zero() || !self.looks() {
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
    fn looks(&mut self) -> bool {
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
    fn looks(spin: &mut Spin, waits: u32, micros: impl Fn(u32) -> u64) -> u32 {
        let mut looks = 0;
        for n in (0..waits).map(micros) {
            if spin.looks() {
                looks += 1;
                match n < 50 {
                    true => spin.found(),
                    false => spin.missed(Duration::from_micros(n), Duration::from_micros(50)),
                }
            }
        }
        looks
    }

    #[test]
    fn where_answers_are_quick_every_wait_looks() {
        assert_eq!(looks(&mut Spin::default(), 1_000, |_| 20), 1_000);
        // An occasional late answer changes little.
        let seldom = looks(&mut Spin::default(), 1_000, |n| if n % 50 == 0 { 900 } else { 20 });
        assert!(seldom > 950, "{seldom}");
    }

    #[test]
    fn two_ends_that_wake_each_other_both_begin_to_look() {
        // Every second answer is late, because the other end was still asleep.
        assert_eq!(looks(&mut Spin::default(), 100, |n| if n % 2 == 0 { 20 } else { 80 }), 100);
    }

    #[test]
    fn where_they_are_not_few_waits_look() {
        let slow = looks(&mut Spin::default(), 10_000, |_| 900);
        assert!((50..150).contains(&slow), "{slow}");
        // Quick and slow waits alternate: polling would cost more time than it saves.
        let turns = looks(&mut Spin::default(), 10_000, |n| if n % 2 == 0 { 20 } else { 900 });
        assert!(turns < 1_000, "{turns}");
    }

    #[test]
    fn after_a_quiet_hour_it_looks_at_once_and_after_a_busy_one_soon() {
        let mut spin = Spin::default();
        looks(&mut spin, 7_200, |_| 500_000);
        assert_eq!(looks(&mut spin, 100, |_| 20), 100);
        looks(&mut spin, 10_000, |_| 900);
        assert!(looks(&mut spin, 1_000, |_| 20) > 1_000 - MAX_REST - 1);
    }
}
