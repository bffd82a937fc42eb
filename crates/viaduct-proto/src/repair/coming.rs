//! Repairs that are on their way.

use super::receiver::TICK;
use crate::time::Duration;

/// Repairs on their way.
#[derive(Debug, Default)]
pub(super) struct Coming {
    /// A second, on average.
    pace: f64,
    /// The same of packets.
    packets: f64,
    /// Packets that the newest repair covered.
    pub(super) cover: u16,
    /// Repairs and packets of all time when that was last reckoned.
    before: (u64, u64),
}

impl Coming {
    /// Weight of the newest count.
    const WEIGHT: f64 = 0.3;

    /// Reckons anew, a tick after the last time.
    pub(super) fn tick(&mut self, repairs: u64, packets: u64) {
        let newest = |of: u64, before: u64| (of - before) as f64 / TICK.as_secs_f64();
        self.pace += Coming::WEIGHT * (newest(repairs, self.before.0) - self.pace);
        self.packets += Coming::WEIGHT * (newest(packets, self.before.1) - self.packets);
        self.before = (repairs, packets);
    }

    /// Those that come in such a time, of what is lost now.
    pub(super) fn within(&self, time: Duration) -> usize {
        let covered = f64::from(self.cover) / self.packets.max(1.0);
        (self.pace * time.as_secs_f64().min(covered)) as usize
    }
}
