//! Deadlines of a multipath flow, except those of its connections and slots.

use crate::timers::{Timer, TimerTable};

/// Deadlines, in the order in which they are acted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deadline {
    /// No connection has been usable for the maximum time: the flow fails.
    Reconnect,
    /// The application has closed the flow, and the other end has not: the flow is reset.
    Linger,
    Ack,
}

pub(super) type Deadlines = TimerTable<Deadline, 3>;

impl Timer for Deadline {
    const ALL: &'static [Deadline] = &[Deadline::Reconnect, Deadline::Linger, Deadline::Ack];

    fn index(self) -> usize {
        self as usize
    }
}
