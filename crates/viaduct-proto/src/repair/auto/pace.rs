//! Rate of packets.

use crate::time::{Duration, Instant};

/// Rate of packets a second.
#[derive(Debug, Default)]
pub(in crate::repair) struct Pace {
    since: Option<Instant>,
    count: u32,
    value: f64,
}

impl Pace {
    /// Time over which packets are counted.
    const SPAN: Duration = Duration::from_millis(100);
    /// Weight of the newest count.
    const WEIGHT: f64 = 0.3;
    /// Growth factor above which the newest count replaces the mean.
    const GROWS: f64 = 1.5;

    /// Creates a rate with a value that was measured earlier.
    pub(super) fn new(value: f64) -> Pace {
        Pace { value, ..Pace::default() }
    }

    /// Counts a packet; returns whether the rate was updated.
    pub(in crate::repair) fn count(&mut self, now: Instant) -> bool {
        self.count += 1;
        let since = *self.since.get_or_insert(now);
        let passed = now.since(since);
        if passed < Pace::SPAN {
            return false;
        }
        let newest = f64::from(self.count) / passed.as_secs_f64();
        // A flow in slow start doubles its rate in a round trip.
        let weight = if newest > Pace::GROWS * self.value { 1.0 } else { Pace::WEIGHT };
        self.value += weight * (newest - self.value);
        (self.since, self.count) = (Some(now), 0);
        true
    }

    pub(in crate::repair) fn value(&self) -> f64 {
        self.value
    }
}
