//! Timers of a link.

use crate::timers::TimerTable;

/// Timers of a link, in the order in which they fire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// Nothing has arrived for so long that the link counts as broken.
    Silence,
    /// A PING is due, unless the last one is unanswered.
    Ping,
    /// Delayed acknowledgements are due.
    Ack,
}

pub(super) type Timers = TimerTable<Timer, 3>;

impl crate::timers::Timer for Timer {
    const ALL: &'static [Timer] = &[Timer::Silence, Timer::Ping, Timer::Ack];

    fn index(self) -> usize {
        self as usize
    }
}
