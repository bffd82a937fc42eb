//! Clock of a server for the timestamps of continuations.

use viaduct_proto::time::Instant;

/// Clock that follows the time of day, which replicas share. If the time of day is set back, this
/// clock continues at half speed until the time of day has caught up, because this clock must
/// neither go back nor stop.
#[derive(Debug)]
pub(crate) struct Clock {
    now: Instant,
    /// Monotonic time of the last reading.
    at: Instant,
}

impl Clock {
    /// Starts the clock at the time of day `wall`; `at` is the monotonic time.
    pub(crate) fn new(wall: Instant, at: Instant) -> Clock {
        Clock { now: wall, at }
    }

    /// Advances the clock at the time of day `wall` and monotonic time `at`, and returns its time.
    pub(crate) fn advance(&mut self, wall: Instant, at: Instant) -> Instant {
        let passed = at.since(std::mem::replace(&mut self.at, at));
        self.now = wall.max(self.now + passed / 2);
        self.now
    }

    /// Time of the last reading.
    pub(crate) fn now(&self) -> Instant {
        self.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use viaduct_proto::time::Duration;

    #[test]
    fn the_clock_follows_the_time_of_day_and_advances_if_it_is_set_back() {
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let mut clock = Clock::new(at(1_000), at(5));
        assert_eq!(clock.advance(at(1_010), at(15)), at(1_010));
        assert_eq!(clock.advance(at(2_000), at(16)), at(2_000), "set forward");
        assert_eq!(clock.advance(at(1_900), at(116)), at(2_050), "set back by 200");
        assert_eq!(clock.advance(at(2_100), at(316)), at(2_150));
        assert_eq!(clock.advance(at(2_300), at(516)), at(2_300), "the time of day has caught up");
    }
}
