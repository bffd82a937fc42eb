//! What is known of a path: how fast it delivers, how long a round trip takes, and how
//! acknowledgements cluster.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::samples::Sample;

/// Rounds for which the highest rate counts.
const ROUNDS: u64 = 10;
/// For how long the shortest round trip counts.
const FRESH: Duration = Duration::from_secs(10);
/// A cluster of acknowledgements, at most.
const CLUSTER: Duration = Duration::from_millis(100);

/// The path.
#[derive(Clone, Debug)]
pub(super) struct Path {
    rates: Highest,
    clusters: Highest,
    /// What was acknowledged since a time, and less was to be expected since.
    cluster: (Instant, u64),
    round: u64,
    /// The round ends when what is sent after this is delivered.
    round_ends: u64,
    /// The shortest in this round.
    round_rtt: Option<Duration>,
    /// The shortest round trip, and when it was seen.
    rtt: Option<(Duration, Instant)>,
}

/// What a sample has brought about.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// A round has ended; in all of it a queue stood, of a 25th of a round trip; and one of an eighth.
    pub(super) round: bool,
    pub(super) stood: bool,
    pub(super) queue: bool,
    /// The shortest round trip was seen too long ago; the present one stands for it.
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

    /// Bytes a second that it delivers.
    pub(super) fn rate(&self) -> Option<f64> {
        self.rates.get()
    }

    /// Its round trip, without queues.
    pub(super) fn rtt(&self) -> Option<Duration> {
        self.rtt.map(|(rtt, _)| rtt)
    }

    /// Bytes that come more at once than the rate tells.
    pub(super) fn cluster(&self) -> u64 {
        self.clusters.get().unwrap_or(0.0) as u64
    }

    /// Takes note.
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

    /// The round trip is known from now on, whatever it is.
    pub(super) fn refresh(&mut self, now: Instant) {
        self.rtt = self.rtt.map(|(rtt, _)| (rtt, now));
    }

    /// Whether the shortest has not been seen for long.
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
            // As good as the shortest: there is no need to look.
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

/// The highest of the last [`ROUNDS`], each with its round, falling.
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
