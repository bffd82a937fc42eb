//! Looking for what comes next before the loop sleeps. Between programs that answer each other the next
//! bytes are there within some tens of microseconds, which is less than it takes to go to sleep and to be
//! woken: a core that has nothing else to do is put to rest, and another core has to rouse it.
//!
//! ```text
//!   events handled ─▶ looks, and lets others run, for so long at most ─▶ sleeps until there are events
//!                     not at all for a while, if it has often looked in vain
//! ```

use std::io;
use std::time::Duration;

use mio::{Events, Poll};
use rustix::thread::sched_yield;

use super::worker::time;

/// A sleep as long as this says nothing of whether looking pays: what was lost is little against it.
const LONG: Duration = Duration::from_millis(10);
/// A wait that lasts no longer than so many looks does not say that looking does not pay.
const NEAR: u32 = 2;
/// Waits without looking, at most, after one that has looked in vain.
const MOST_REST: u32 = 127;

/// Whether looking has paid of late.
#[derive(Debug, Default)]
pub struct Spin {
    /// Waits that are still to sleep at once.
    rest: u32,
    /// How many shall after the next look in vain, nearly.
    doubt: u32,
}

impl Spin {
    /// Waits for `events` as the poll does, `wait` at most; and looks for them for `most` of that.
    ///
    /// # Errors
    /// As [`Poll::poll`].
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
            // Who is to answer may need this core.
            sched_yield();
        }
        let ended = poll.poll(events, Some(wait - most));
        self.missed(time().since(begin), most);
        ended
    }

    /// Whether this wait is to begin with a look.
    fn looks(&mut self) -> bool {
        if self.rest == 0 {
            return true;
        }
        self.rest -= 1;
        false
    }

    /// It was not in vain.
    fn found(&mut self) {
        self.doubt /= 2;
    }

    /// It was: the wait has lasted for `took`, and was looked at for `most` of that. If it ended soon after,
    /// the look may have been late by the other end's wake-up, which looks next time as well.
    fn missed(&mut self, took: Duration, most: Duration) {
        if (NEAR * most..LONG).contains(&took) {
            self.doubt = (2 * self.doubt + 1).min(MOST_REST);
            self.rest = self.doubt;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of `waits` have looked, where each lasts for `micros` and looking finds what comes within 50.
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
        // One that is late now and then changes little.
        let seldom = looks(&mut Spin::default(), 1_000, |n| if n % 50 == 0 { 900 } else { 20 });
        assert!(seldom > 950, "{seldom}");
    }

    #[test]
    fn two_ends_that_wake_each_other_both_begin_to_look() {
        // By turns at once and late: the other end was still asleep.
        assert_eq!(looks(&mut Spin::default(), 100, |n| if n % 2 == 0 { 20 } else { 80 }), 100);
    }

    #[test]
    fn where_they_are_not_few_waits_look() {
        let slow = looks(&mut Spin::default(), 10_000, |_| 900);
        assert!((50..150).contains(&slow), "{slow}");
        // Quick and slow ones by turns: what is lost would outweigh what is gained.
        let turns = looks(&mut Spin::default(), 10_000, |n| if n % 2 == 0 { 20 } else { 900 });
        assert!(turns < 1_000, "{turns}");
    }

    #[test]
    fn after_a_quiet_hour_it_looks_at_once_and_after_a_busy_one_soon() {
        let mut spin = Spin::default();
        looks(&mut spin, 7_200, |_| 500_000);
        assert_eq!(looks(&mut spin, 100, |_| 20), 100);
        looks(&mut spin, 10_000, |_| 900);
        assert!(looks(&mut spin, 1_000, |_| 20) > 1_000 - MOST_REST - 1);
    }
}
