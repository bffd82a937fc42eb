//! Number of repairs in flight.

use super::receiver::TICK;
use crate::time::Duration;

/// Rate of arriving repairs, to estimate how many are in flight.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    /// Moving average of repairs a second.
    pace: f64,
    /// Moving average of packets a second.
    packets: f64,
    /// Number of packets that the newest repair covered.
    pub(super) cover: u16,
    /// Totals of repairs and packets at the last update.
    before: (u64, u64),
}

impl InFlight {
    /// Weight of the newest count.
    const WEIGHT: f64 = 0.3;
    /// Rate, in repairs a second, below which no repair is expected.
    const MIN_PACE: f64 = 1.0;

    /// Updates the rates, a tick after the last update.
    pub(super) fn tick(&mut self, repairs: u64, packets: u64) {
        let newest = |of: u64, before: u64| (of - before) as f64 / TICK.as_secs_f64();
        self.pace += InFlight::WEIGHT * (newest(repairs, self.before.0) - self.pace);
        self.packets += InFlight::WEIGHT * (newest(packets, self.before.1) - self.packets);
        self.before = (repairs, packets);
    }

    /// Returns whether no repairs are expected, because hardly any have arrived recently.
    pub(super) fn is_idle(&self) -> bool {
        self.pace < InFlight::MIN_PACE
    }

    /// Number of repairs expected within `time` that still cover the packets sent now.
    pub(super) fn within(&self, time: Duration) -> usize {
        let covered = f64::from(self.cover) / self.packets.max(1.0);
        (self.pace * time.as_secs_f64().min(covered)) as usize
    }
}
