//! Time as an argument: an instant on a clock that the caller owns.

pub use std::time::Duration;

use std::ops::{Add, AddAssign, Sub};

/// Point in time, in nanoseconds since an origin that the caller chose. A shell derives instants
/// from the monotonic clock, a simulation from its virtual clock. Range: 584 years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// Origin of the clock.
    pub const ZERO: Instant = Instant(0);

    /// Instant `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Instant(nanos)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Seconds since the origin.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Time since `earlier`; zero if `earlier` is the later one.
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, after: Duration) -> Instant {
        Instant(self.0.saturating_add(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;
    /// Saturates at the origin.
    fn sub(self, before: Duration) -> Instant {
        Instant(self.0.saturating_sub(u64::try_from(before.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, after: Duration) {
        *self = *self + after;
    }
}

impl Sub for Instant {
    type Output = Duration;
    /// Saturates at zero, as [`Instant::since`].
    fn sub(self, earlier: Instant) -> Duration {
        self.since(earlier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_saturate_and_sums_do_not_wrap() {
        let a = Instant::from_nanos(10);
        let b = a + Duration::from_nanos(5);
        assert_eq!(b - a, Duration::from_nanos(5));
        assert_eq!(a - b, Duration::ZERO);
        assert_eq!(Instant::from_nanos(u64::MAX) + Duration::MAX, Instant::from_nanos(u64::MAX));
    }
}
