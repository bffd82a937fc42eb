//! Round trips, and how long to wait for what does not come (RFC 6298).

use crate::time::{Duration, Instant};

/// The wait before anything was measured.
const FIRST: Duration = Duration::from_secs(1);
/// Shortest wait beyond the round trip, as Linux has it.
const LEAST: Duration = Duration::from_millis(200);
/// Longest wait.
const MOST: Duration = Duration::from_secs(60);

/// The smoothed round trip and its variation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trips {
    /// What the first answer took at most, since the first request.
    first: Option<Duration>,
    smoothed: Option<Duration>,
    variation: Duration,
    /// The shortest: that of the way, where the smoothed one has the queue's wait in it.
    shortest: Option<Duration>,
    /// Packets have overtaken each other on this way.
    uneven: bool,
    /// So often what was waited for came after its wait.
    short: u32,
}

impl Trips {
    /// The first answer came: until a round trip is measured no less is waited than for that.
    pub(super) fn opened(&mut self, trip: Duration) {
        self.first.get_or_insert(trip);
    }

    /// A round trip was measured.
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

    /// How long to wait for an answer after `attempts` that had none.
    pub(super) fn wait(&self, attempts: u32) -> Duration {
        let smoothed = self.smoothed.map(|trip| trip + (4 * self.variation).max(LEAST));
        let unmeasured = || self.first.map_or(FIRST, |trip| (trip * 5 / 4).max(FIRST));
        smoothed.unwrap_or_else(unmeasured).saturating_mul(1 << attempts.min(8)).min(MOST)
    }

    /// How long to wait for the last packets of what is wanted, where a trickle is there to ask once more: as for
    /// an answer, without the least wait, and no longer than RFC 8985 has it for TCP; None while no round trip
    /// is known.
    pub(super) fn probe(&self) -> Option<Duration> {
        self.smoothed.map(|trip| (trip + 4 * self.variation).min(2 * trip).max(LEAST / 20))
    }

    /// How long to wait before the last request is said once more (RFC 8985, 7.2); None while no round trip is known.
    pub(super) fn repeat(&self) -> Option<Duration> {
        self.smoothed.map(|trip| (2 * trip).max(trip + 4 * self.variation).max(LEAST / 20))
    }

    /// Whether an answer to what was asked for at `later` says that none comes to what was asked for at `sent`: as far
    /// apart no packets are overtaken.
    pub(super) fn overtakes(&self, later: Instant, sent: Instant) -> bool {
        later > sent + self.patience()
    }

    /// A packet has come behind one that was sent later.
    pub(super) fn overtaken(&mut self) {
        self.uneven = true;
    }

    /// What was waited for has come after its wait.
    pub(super) fn were_short(&mut self) {
        self.short = self.short.saturating_add(1);
    }

    /// How long packets wait for those before them, which may have been overtaken: as RFC 8985 has it, a quarter of
    /// the shortest round trip, and more where that was seen. Two ways may have a queue each: there it is a quarter
    /// of what a round trip takes with those, and one more each time that this was too short, up to all of it.
    pub(super) fn patience(&self) -> Duration {
        let trip = if self.uneven { self.smoothed } else { self.shortest };
        let quarters = self.short.saturating_add(1).min(4);
        trip.map_or(LEAST / 10, |trip| trip * quarters / 4).max(Duration::from_millis(1))
    }
}
