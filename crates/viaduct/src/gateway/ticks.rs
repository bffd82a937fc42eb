//! Intervals of the control side.

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};

const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between looks at the sessions of a rack's member, for its routes.
const RACK_INTERVAL: Duration = Duration::from_millis(100);

/// Work that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tick {
    /// Checks of the peers and the machine.
    Check,
    /// Routes of a rack's member.
    Rack,
}

/// Both intervals.
#[derive(Debug)]
pub struct Ticks {
    check: Interval,
    rack: Interval,
}

impl Ticks {
    /// Begins with both.
    pub fn new() -> Ticks {
        let mut rack = interval(RACK_INTERVAL);
        rack.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ticks { check: interval(CHECK_INTERVAL), rack }
    }

    /// Waits for the next work. No tick is lost if the future is dropped.
    pub async fn next(&mut self, has_rack: bool) -> Tick {
        tokio::select! {
            _ = self.check.tick() => Tick::Check,
            _ = self.rack.tick(), if has_rack => Tick::Rack,
        }
    }
}
