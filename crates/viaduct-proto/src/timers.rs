//! Timers: the deadlines of one machine with several timers, and those of many machines.
//!
//! ```text
//!   TimerTable: few timers of one machine
//!
//!   set(Probe, at) ─▶ ┌───────┬───────┬────────┐
//!   stop(Reorder)  ─▶ │Reorder│ Probe │ Restart│ ─▶ next_deadline: what poll_timeout returns
//!                     └───────┴───────┴────────┘ ─▶ poll_expired: what handle_timeout acts on
//! ```
//!
//! The timers of a [`TimerTable`] are the variants of an enum. Expired timers fire in the order of
//! the variants, not in that of their deadlines. A [`DeadlineQueue`] has one deadline for each of
//! thousands of machines, and finds the earliest without a search.

use std::collections::{BTreeMap, BTreeSet};

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

    /// Stops and returns an expired timer, the first in the order of the variants; `None` if none
    /// has expired at `now`.
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

/// Deadlines of machines, by the machines' indices.
#[derive(Clone, Debug, Default)]
pub struct DeadlineQueue {
    /// Deadline of each machine.
    deadlines: Vec<Option<Instant>>,
    /// The same deadlines with the machines' indices, earliest first.
    queue: BTreeSet<(Instant, usize)>,
}

impl DeadlineQueue {
    /// Sets the deadline of machine `index`; `None` removes it.
    pub fn set(&mut self, index: usize, at: impl Into<Option<Instant>>) {
        let at = at.into();
        if self.deadlines.len() <= index {
            self.deadlines.resize(index + 1, None);
        }
        let before = std::mem::replace(&mut self.deadlines[index], at);
        if before != at {
            before.map(|before| self.queue.remove(&(before, index)));
            at.map(|at| self.queue.insert((at, index)));
        }
    }

    /// Earliest deadline.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.queue.first().map(|(at, _)| *at)
    }

    /// Removes the earliest deadline if it is not after `now`, and returns its machine.
    pub fn poll_expired(&mut self, now: Instant) -> Option<usize> {
        let (_, index) = self.queue.first().copied().filter(|(at, _)| *at <= now)?;
        self.set(index, None);
        Some(index)
    }

    /// Removes all deadlines.
    pub fn clear(&mut self) {
        self.deadlines.clear();
        self.queue.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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

    proptest! {
        /// Compares the queue with a list that is searched for the earliest deadline.
        #[test]
        fn the_queue_has_the_deadlines_that_were_set(
            steps in prop::collection::vec(
                (0..9_usize, prop::option::of(0..20_u64), 0..20_u64),
                0..99,
            ),
        ) {
            let mut queue = DeadlineQueue::default();
            let mut twin = [None; 9];
            for (index, at, now) in steps {
                let [at, now] = [at, Some(now)].map(|at| at.map(Instant::from_nanos));
                queue.set(index, at);
                twin[index] = at;
                let earliest = twin.iter().flatten().min().copied();
                prop_assert_eq!(queue.next_deadline(), earliest);
                let expired = queue.poll_expired(now.unwrap_or_default());
                match expired {
                    Some(index) => prop_assert_eq!(twin[index].take(), earliest),
                    None => prop_assert!(earliest > now || earliest.is_none()),
                }
            }
        }
    }
}
