//! Round-trip estimation and timeouts (RFC 6298).

use crate::time::{Duration, Instant};

/// Minimum timeout until a round trip is measured.
const FIRST: Duration = Duration::from_secs(1);
/// Minimum of the variance term of the timeout, as in Linux. The minimums of the other timeouts are
/// fractions of this value.
const MIN_TIMEOUT: Duration = Duration::from_millis(200);
const MAX_TIMEOUT: Duration = Duration::from_secs(60);

/// Smoothed round trip and its variation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trips {
    /// Time from the first request to the first answer, an upper bound of the first round trip.
    /// Until a round trip is measured, the timeout is longer than this time.
    pub(super) first: Option<Duration>,
    smoothed: Option<Duration>,
    variation: Duration,
    /// Shortest round trip: unlike the smoothed round trip, it includes no queueing delay.
    shortest: Option<Duration>,
    /// True if packets were reordered on this path.
    pub(super) is_uneven: bool,
    /// Number of packets that arrived after they were given up, because the reordering window was
    /// too short.
    short: u32,
}

impl Trips {
    /// Adds a round trip sample.
    pub(super) fn measure(&mut self, trip: Duration) {
        self.shortest = Some(self.shortest.map_or(trip, |shortest| shortest.min(trip)));
        match self.smoothed {
            None => (self.smoothed, self.variation) = (Some(trip), trip / 2),
            Some(smoothed) => {
                self.variation = (self.variation * 3 + smoothed.abs_diff(trip)) / 4;
                self.smoothed = Some((smoothed * 7 + trip) / 8);
            }
        }
    }

    /// Timeout for an answer after `attempts` unanswered attempts.
    pub(super) fn wait(&self, attempts: u32) -> Duration {
        let smoothed = self.smoothed.map(|trip| trip + (4 * self.variation).max(MIN_TIMEOUT));
        let unmeasured = || self.first.map_or(FIRST, |trip| (trip * 5 / 4).max(FIRST));
        smoothed.unwrap_or_else(unmeasured).saturating_mul(1 << attempts.min(8)).min(MAX_TIMEOUT)
    }

    /// Timeout of a tail probe: the round trip plus four times its variation, at most two round
    /// trips (as in RFC 8985), and at least 10 ms. `None` while no round trip is known.
    pub(super) fn probe(&self) -> Option<Duration> {
        self.smoothed.map(|trip| (trip + 4 * self.variation).min(2 * trip).max(MIN_TIMEOUT / 20))
    }

    /// Interval before the last request is repeated (RFC 8985, 7.2); at least 10 ms. `None` while
    /// no round trip is known.
    pub(super) fn repeat(&self) -> Option<Duration> {
        self.smoothed.map(|trip| (2 * trip).max(trip + 4 * self.variation).max(MIN_TIMEOUT / 20))
    }

    /// Returns whether an answer to a request sent at `later` shows that the answer to a request
    /// sent at `sent` is lost, because packets are not reordered that far.
    pub(super) fn overtakes(&self, later: Instant, sent: Instant) -> bool {
        later > sent + self.reorder_timeout()
    }

    /// Records that a packet arrived after it was given up.
    pub(super) fn were_short(&mut self) {
        self.short = self.short.saturating_add(1);
    }

    /// Reordering window: time for which packets wait for a missing earlier packet. The window is a
    /// quarter of the shortest round trip, as in RFC 8985, or a quarter of the smoothed round trip
    /// if reordering was seen, because two paths may have a queue each. Each time that the window
    /// was too short, another quarter is added, up to a full round trip. The minimum is 1 ms;
    /// before the first measurement the window is 20 ms.
    pub(super) fn reorder_timeout(&self) -> Duration {
        let trip = if self.is_uneven { self.smoothed } else { self.shortest };
        let quarters = self.short.saturating_add(1).min(4);
        trip.map_or(MIN_TIMEOUT / 10, |trip| trip * quarters / 4).max(Duration::from_millis(1))
    }
}
