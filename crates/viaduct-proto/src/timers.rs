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

use std::marker::PhantomData;

use crate::time::Instant;

/// Timers of a machine: an enum without fields.
pub trait Timer: Copy + 'static {
    /// All timers, in the order of their indices, in which expired timers fire.
    const ALL: &'static [Self];

    /// Index of the timer in [`Timer::ALL`].
    fn index(self) -> usize;
}

/// Deadlines of the `N` timers of `T`.
#[derive(Clone, Debug)]
pub struct TimerTable<T, const N: usize> {
    deadlines: [Option<Instant>; N],
    timers: PhantomData<T>,
}

impl<T: Timer, const N: usize> Default for TimerTable<T, N> {
    fn default() -> Self {
        const { assert!(T::ALL.len() == N) };
        debug_assert!(T::ALL.iter().enumerate().all(|(index, timer)| timer.index() == index));
        TimerTable { deadlines: [None; N], timers: PhantomData }
    }
}

impl<T: Timer, const N: usize> TimerTable<T, N> {
    /// Sets the timer to expire at `at`, whether or not it is set already. `None` stops it.
    pub fn set(&mut self, timer: T, at: impl Into<Option<Instant>>) {
        self.deadlines[timer.index()] = at.into();
    }

    /// Stops the timer.
    pub fn stop(&mut self, timer: T) {
        self.deadlines[timer.index()] = None;
    }

    /// Deadline of the timer; `None` if it is stopped.
    pub fn deadline(&self, timer: T) -> Option<Instant> {
        self.deadlines[timer.index()]
    }

    /// Returns whether the timer is set, and its deadline is not after `now`.
    pub fn is_expired(&self, timer: T, now: Instant) -> bool {
        self.deadline(timer).is_some_and(|at| at <= now)
    }

    /// Stops the first timer, in the order of [`Timer::ALL`], that has expired at `now`, and
    /// returns it. `None` if no timer has expired.
    pub fn poll_expired(&mut self, now: Instant) -> Option<T> {
        let timer = T::ALL.iter().copied().find(|&timer| self.is_expired(timer, now))?;
        self.stop(timer);
        Some(timer)
    }

    /// Deadline of the timer that expires first; `None` if all are stopped.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.iter().flatten().min().copied()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::time::Duration;

    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    enum Letter {
        A,
        B,
        C,
        D,
    }

    impl Timer for Letter {
        const ALL: &'static [Letter] = &[Letter::A, Letter::B, Letter::C, Letter::D];

        fn index(self) -> usize {
            self as usize
        }
    }

    const MILLISECOND: Duration = Duration::from_millis(1);

    fn letters() -> impl Strategy<Value = Letter> {
        prop::sample::select(Letter::ALL)
    }

    proptest! {
        /// Drives a table and a map through the same calls in virtual time, with some late rounds.
        #[test]
        fn each_timer_fires_once_when_due_and_in_the_order_of_the_enum(
            steps in prop::collection::vec((letters(), prop::option::of(0_u32..5), 0_u32..4), 0..80)
        ) {
            let mut table = TimerTable::<Letter, 4>::default();
            let (mut model, mut now) = (BTreeMap::new(), Instant::ZERO);
            for (timer, after, passes) in steps {
                match after.map(|after| now + MILLISECOND * after) {
                    Some(at) => {
                        table.set(timer, at);
                        model.insert(timer, at);
                    }
                    None => {
                        table.stop(timer);
                        model.remove(&timer);
                    }
                }
                prop_assert_eq!(table.deadline(timer), model.get(&timer).copied());
                prop_assert_eq!(table.next_deadline(), model.values().min().copied());
                now += MILLISECOND * passes;
                let due = |&(_, at): &(&Letter, &Instant)| *at <= now;
                let due: Vec<Letter> = model.iter().filter(due).map(|(&timer, _)| timer).collect();
                for timer in due {
                    model.remove(&timer);
                    prop_assert!(table.is_expired(timer, now));
                    prop_assert_eq!(table.poll_expired(now), Some(timer));
                    prop_assert!(!table.is_expired(timer, now), "it fires once");
                }
                prop_assert_eq!(table.poll_expired(now), None);
                prop_assert!(table.next_deadline().is_none_or(|next| next > now), "no spin");
            }
        }
    }

    #[test]
    fn a_timer_that_fires_may_set_a_later_one_of_the_same_round_or_stop_it() {
        let mut table = TimerTable::<Letter, 4>::default();
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
    }
}
