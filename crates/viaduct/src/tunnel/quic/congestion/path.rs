//! Model of a path: delivery rate, round-trip time, and aggregation of acknowledgements.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::samples::Sample;

/// Number of rounds over which the maximum delivery rate is taken.
const ROUNDS: u64 = 10;
/// Time after which the minimum round-trip time must be measured again.
const FRESH: Duration = Duration::from_secs(10);
/// Maximum aggregation of acknowledgements, as a time at the delivery rate.
const CLUSTER: Duration = Duration::from_millis(100);

/// Model of a path.
#[derive(Clone, Debug)]
pub(super) struct Path {
    rates: Highest,
    clusters: Highest,
    /// Start of the current burst of acknowledgements, and bytes acknowledged since then. The burst
    /// lasts while more bytes are acknowledged than the rate predicts.
    cluster: (Instant, u64),
    round: u64,
    /// The current round ends with the acknowledgement of a packet that was sent when at least this
    /// many bytes had been delivered.
    round_ends: u64,
    /// Shortest round trip in this round.
    round_rtt: Option<Duration>,
    /// Minimum round-trip time, and the time of its measurement.
    rtt: Option<(Duration, Instant)>,
}

/// Consequences of a sample.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// True if a round has ended.
    pub(super) round: bool,
    /// True if there was a queue of more than 1/25 of a round trip throughout that round.
    pub(super) stood: bool,
    /// True if there was a queue of more than 1/8 of a round trip throughout that round.
    pub(super) queue: bool,
    /// True if the minimum round-trip time was measured too long ago; the current sample replaces
    /// it.
    pub(super) stale: bool,
}

impl Path {
    pub(super) fn new(now: Instant) -> Path {
        Path {
            rates: Highest::default(),
            clusters: Highest::default(),
            cluster: (now, 0),
            round: 0,
            round_ends: 0,
            round_rtt: None,
            rtt: None,
        }
    }

    /// Delivery rate, in bytes a second.
    pub(super) fn rate(&self) -> Option<f64> {
        self.rates.get()
    }

    /// Round-trip time without queues.
    pub(super) fn rtt(&self) -> Option<Duration> {
        self.rtt.map(|(rtt, _)| rtt)
    }

    /// Aggregation: bytes acknowledged in a burst beyond what the rate predicts.
    pub(super) fn cluster(&self) -> u64 {
        self.clusters.get().unwrap_or(0.0) as u64
    }

    /// Updates the model with a sample.
    pub(super) fn see(&mut self, now: Instant, sample: &Sample) -> Seen {
        let stale = self.see_rtt(now, sample.rtt);
        let mut seen = Seen { stale, ..Seen::default() };
        if sample.before >= self.round_ends {
            (self.round, self.round_ends, seen.round) = (self.round + 1, sample.delivered, true);
            let (least, rtt) = (self.round_rtt.take(), self.rtt().unwrap_or_default());
            let stood = |part| least.is_some_and(|least| least > rtt + rtt / part);
            (seen.stood, seen.queue) = (stood(25), stood(8));
        }
        if let Some(rate) = sample.rate
            && (!sample.limited || self.rate().is_none_or(|highest| rate > highest))
        {
            self.rates.add(self.round, rate);
        }
        self.see_cluster(now, sample.acked);
        seen
    }

    /// Treats the round-trip time as freshly measured.
    pub(super) fn refresh(&mut self, now: Instant) {
        self.rtt = self.rtt.map(|(rtt, _)| (rtt, now));
    }

    /// Updates the round-trip times; returns whether the minimum was measured too long ago.
    fn see_rtt(&mut self, now: Instant, seen: Duration) -> bool {
        self.round_rtt = Some(self.round_rtt.map_or(seen, |least| least.min(seen)));
        let Some((shortest, at)) = self.rtt else {
            self.rtt = Some((seen, now));
            return false;
        };
        let stale = now.saturating_duration_since(at) > FRESH;
        if seen <= shortest || stale {
            self.rtt = Some((seen, now));
        } else if seen <= shortest + shortest / 32 {
            // A round trip close to the minimum confirms the minimum, so that no ProbeRTT is
            // needed.
            self.rtt = Some((shortest, now));
        }
        stale
    }

    fn see_cluster(&mut self, now: Instant, acked: u64) {
        let Some(rate) = self.rate() else { return };
        let expected = |since| rate * now.saturating_duration_since(since).as_secs_f64();
        if self.cluster.1 as f64 <= expected(self.cluster.0) {
            self.cluster = (now, 0);
        }
        self.cluster.1 += acked;
        let more = self.cluster.1 as f64 - expected(self.cluster.0);
        self.clusters.add(self.round, more.min(rate * CLUSTER.as_secs_f64()));
    }
}

/// Windowed maximum over [`ROUNDS`]: values with their rounds, in descending order.
#[derive(Clone, Debug, Default)]
struct Highest(VecDeque<(u64, f64)>);

impl Highest {
    fn add(&mut self, round: u64, value: f64) {
        while self.0.back().is_some_and(|&(_, lower)| lower <= value) {
            self.0.pop_back();
        }
        self.0.push_back((round, value));
        while self.0.front().is_some_and(|&(of, _)| of + ROUNDS < round) {
            self.0.pop_front();
        }
    }

    fn get(&self) -> Option<f64> {
        self.0.front().map(|&(_, value)| value)
    }
}
