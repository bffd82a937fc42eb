//! Answers to the service manager's watchdog (`WatchdogSec=` of systemd). Each event loop records
//! the time of its latest turn, and the control side answers only while all these times are recent.
//! If a loop hangs, the answers stop, and the manager restarts the service.
//!
//! ```text
//!   loop ── beat, each turn ──▶ Heartbeat ◀── age ── control side ── WATCHDOG=1 ──▶ manager
//! ```

use std::env;
use std::future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};
use tracing::error;
use viaduct_sys::clock;

use crate::notify::{Phase, notify};

/// Number of answers within the manager's interval, so that a single late answer is not a failure.
const ANSWERS: u32 = 3;
/// Minimum interval of answers.
const MIN_INTERVAL: Duration = Duration::from_millis(50);

/// Time of the latest turn of an event loop.
#[derive(Debug)]
pub struct Heartbeat(AtomicU64);

impl Default for Heartbeat {
    fn default() -> Heartbeat {
        Heartbeat(AtomicU64::new(clock::now()))
    }
}

impl Heartbeat {
    /// Records a turn.
    pub fn beat(&self) {
        self.0.store(clock::now(), Ordering::Relaxed);
    }

    /// Records that the loop has ended normally.
    pub fn end(&self) {
        self.0.store(u64::MAX, Ordering::Relaxed);
    }

    /// Returns whether the loop has ended normally.
    pub fn has_ended(&self) -> bool {
        self.0.load(Ordering::Relaxed) == u64::MAX
    }

    /// Time since the latest turn; zero if the loop has ended.
    pub fn age(&self) -> Duration {
        Duration::from_nanos(clock::now().saturating_sub(self.0.load(Ordering::Relaxed)))
    }
}

/// Interval within which the service manager expects an answer; `None` if the manager expects no
/// answers from this process.
pub fn expected() -> Option<Duration> {
    let number = |name| env::var(name).ok()?.parse::<u64>().ok();
    interval_of(number("WATCHDOG_USEC"), number("WATCHDOG_PID"), std::process::id())
}

/// Interval from the values of the manager's two environment variables.
fn interval_of(micros: Option<u64>, process: Option<u64>, own: u32) -> Option<Duration> {
    let is_own = process.is_none_or(|process| process == u64::from(own));
    micros.filter(|&micros| is_own && micros > 0).map(Duration::from_micros)
}

/// Interval of the answers to a manager that expects one within `expected`.
pub fn answer_interval(expected: Duration) -> Duration {
    (expected / ANSWERS).max(MIN_INTERVAL)
}

/// Control side's part of the watchdog.
#[derive(Debug)]
pub struct Watchdog {
    /// Timer of the answers, and maximum age of a heartbeat; `None` without a watchdog.
    answers: Option<(Interval, Duration)>,
    is_hung: bool,
}

impl Watchdog {
    /// Creates the watchdog that the service manager requests. Must be called in a runtime.
    pub fn new() -> Watchdog {
        Watchdog::with_interval(expected())
    }

    fn with_interval(expected: Option<Duration>) -> Watchdog {
        let answers = expected.map(|expected| {
            let mut times = interval(answer_interval(expected));
            times.set_missed_tick_behavior(MissedTickBehavior::Delay);
            (times, expected / 2)
        });
        Watchdog { answers, is_hung: false }
    }

    /// Waits until the next answer is due; forever without a watchdog.
    pub async fn due(&mut self) {
        match &mut self.answers {
            Some((times, _)) => {
                times.tick().await;
            }
            None => future::pending().await,
        }
    }

    /// Answers if `age`, the age of the oldest heartbeat, is below half of the manager's interval.
    pub fn answer(&mut self, age: Duration) {
        let Some((_, limit)) = self.answers else { return };
        let was_hung = std::mem::replace(&mut self.is_hung, age >= limit);
        match self.is_hung {
            false => notify(Phase::Alive),
            true if was_hung => {}
            true => error!("an event loop has hung for {age:?}: the watchdog gets no answer"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_applies_to_the_process_that_it_names() {
        let second = Some(Duration::from_secs(1));
        assert_eq!(interval_of(Some(1_000_000), None, 7), second);
        assert_eq!(interval_of(Some(1_000_000), Some(7), 7), second);
        assert_eq!(interval_of(Some(1_000_000), Some(8), 7), None);
        assert_eq!(interval_of(Some(0), Some(7), 7), None);
        assert_eq!(interval_of(None, Some(7), 7), None);
    }

    #[test]
    fn a_loop_that_hangs_ages_and_one_that_has_ended_does_not() {
        let heartbeat = Heartbeat::default();
        std::thread::sleep(Duration::from_millis(20));
        assert!(heartbeat.age() >= Duration::from_millis(20));
        heartbeat.beat();
        assert!(heartbeat.age() < Duration::from_millis(20));
        heartbeat.end();
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!(heartbeat.age(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn answers_are_due_three_times_in_the_managers_interval() {
        let begun = tokio::time::Instant::now();
        let mut watchdog = Watchdog::with_interval(Some(Duration::from_secs(30)));
        for _ in 0..4 {
            watchdog.due().await;
        }
        assert_eq!(begun.elapsed(), Duration::from_secs(30));
        watchdog.answer(Duration::from_secs(14));
        assert!(!watchdog.is_hung);
        watchdog.answer(Duration::from_secs(15));
        assert!(watchdog.is_hung);
        watchdog.answer(Duration::ZERO);
        assert!(!watchdog.is_hung);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_manager_no_answer_is_due() {
        let mut watchdog = Watchdog::with_interval(None);
        let hour = Duration::from_secs(3600);
        assert!(tokio::time::timeout(hour, watchdog.due()).await.is_err());
    }
}
