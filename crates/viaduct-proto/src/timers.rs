//! Timer table: the deadlines of a machine that has several timers.
//!
//! ```text
//!   set(Probe, at) ─▶ ┌───────┬───────┬────────┐
//!   stop(Reorder)  ─▶ │Reorder│ Probe │ Restart│ ─▶ next_deadline: what poll_timeout returns
//!                     └───────┴───────┴────────┘ ─▶ poll_expired: what handle_timeout acts on
//! ```
//!
//! The timers are the variants of an enum. Expired timers fire in the order of the variants, not in
//! that of their deadlines.

use std::collections::BTreeMap;

use crate::time::Instant;

/// Deadlines of the timers that are set. `T` is an enum without fields.
#[derive(Clone, Debug)]
pub struct TimerTable<T>(BTreeMap<T, Instant>);

impl<T> Default for TimerTable<T> {
    fn default() -> Self {
        TimerTable(BTreeMap::new())
    }
}

impl<T: Copy + Ord> TimerTable<T> {
    /// Sets the timer to expire at `at`, whether or not it is set already. `None` stops it.
    pub fn set(&mut self, timer: T, at: impl Into<Option<Instant>>) {
        match at.into() {
            Some(at) => self.0.insert(timer, at),
            None => self.0.remove(&timer),
        };
    }

    /// Stops the timer.
    pub fn stop(&mut self, timer: T) {
        self.0.remove(&timer);
    }

    /// Deadline of the timer; `None` if it is stopped.
    pub fn deadline(&self, timer: T) -> Option<Instant> {
        self.0.get(&timer).copied()
    }

    /// Returns whether the timer is set, and its deadline is not after `now`.
    pub fn is_expired(&self, timer: T, now: Instant) -> bool {
        self.deadline(timer).is_some_and(|at| at <= now)
    }

    /// Stops the first timer, in the order of the variants, that has expired at `now`, and returns
    /// it. `None` if no timer has expired.
    pub fn poll_expired(&mut self, now: Instant) -> Option<T> {
        let (&timer, _) = self.0.iter().find(|&(_, &at)| at <= now)?;
        self.stop(timer);
        Some(timer)
    }

    /// Deadline of the timer that expires first; `None` if all are stopped.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.0.values().min().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;

    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    enum Letter {
        A,
        B,
        C,
    }

    const MILLISECOND: Duration = Duration::from_millis(1);

    #[test]
    fn a_timer_that_fires_may_set_a_later_one_of_the_same_round_or_stop_it() {
        let mut table = TimerTable::default();
        let now = Instant::ZERO + MILLISECOND;
        table.set(Letter::A, now);
        table.set(Letter::C, Instant::ZERO);
        assert_eq!(
            table.poll_expired(now),
            Some(Letter::A),
            "the enum's order, not the deadlines'"
        );
        table.set(Letter::B, now);
        table.set(Letter::C, now + MILLISECOND);
        assert_eq!(table.poll_expired(now), Some(Letter::B));
        assert_eq!(table.poll_expired(now), None);
        assert_eq!(table.next_deadline(), Some(now + MILLISECOND));
        assert_eq!(table.deadline(Letter::C), table.next_deadline());
        assert!(table.is_expired(Letter::C, now + MILLISECOND));
        table.set(Letter::C, None);
        assert_eq!(table.next_deadline(), None);
    }
}
