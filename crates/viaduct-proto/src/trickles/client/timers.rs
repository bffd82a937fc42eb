//! Timers of a client.

use crate::timers::TimerTable;

/// Timers of a client, in the order in which they fire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// A missing packet, for which later ones wait, is given up.
    Reorder,
    /// Tail probe: a held trickle asks again for data that may be lost.
    Probe,
    /// The last request is sent again.
    Repeat,
    /// Retransmission timeout: an answer, or a repair, is overdue.
    Restart,
}

pub(super) type Timers = TimerTable<Timer, 4>;

impl crate::timers::Timer for Timer {
    const ALL: &'static [Timer] = &[Timer::Reorder, Timer::Probe, Timer::Repeat, Timer::Restart];

    fn index(self) -> usize {
        self as usize
    }
}
