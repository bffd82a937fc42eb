//! Intervals of the control side.

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};

const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between checks of a rack member's sessions, on which its routes depend.
const RACK_INTERVAL: Duration = Duration::from_millis(100);

/// Periodic work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tick {
    /// Checks of the peers and the machine.
    Check,
    /// Routes of a rack member.
    Rack,
}

/// Timers of both intervals.
#[derive(Debug)]
pub struct Ticks {
    check: Interval,
    rack: Interval,
}

impl Ticks {
    /// Creates timers that are due immediately.
    pub fn new() -> Ticks {
        let mut rack = interval(RACK_INTERVAL);
        rack.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ticks { check: interval(CHECK_INTERVAL), rack }
    }

    /// Waits until the next work is due. No tick is lost if the future is dropped.
    pub async fn next(&mut self, has_rack: bool) -> Tick {
        tokio::select! {
            _ = self.check.tick() => Tick::Check,
            _ = self.rack.tick(), if has_rack => Tick::Rack,
        }
    }
}
