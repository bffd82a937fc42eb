//! State of the path to a peer, as reported by the peer and as classified by the controller.

use std::fmt;

use super::bursts::Counts;
use crate::time::Duration;

/// Report of a peer on the path to this peer. Counters are totals since the peer's receiver
/// started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Random losses.
    pub random: Counts,
    /// Packets lost by congestion.
    pub congested: u64,
    /// Random losses that flows have seen: not repaired, or repaired too late.
    pub visible: u64,
    /// True if the queue is currently long, and may be full.
    pub queue_full: bool,
    /// True if the cause of several losses is unknown because they occurred while the queue was
    /// long.
    pub in_doubt: bool,
}

/// State of the path to a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Regime {
    /// The fate of too few packets is known so far.
    #[default]
    Unknown,
    /// Fewer than three bursts of random losses in the last minute: no repairs.
    Clean,
    /// Repairs of random losses are being sent.
    Repairing,
    /// More repairs would be needed than the bounds allow.
    Bounded,
    /// The queue is long: the rate of repairs does not rise.
    Congested,
    /// The link is only observed: no repairs are sent.
    Observed,
}

impl fmt::Display for Regime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Regime::Unknown => "little is known of the link yet",
            Regime::Clean => "clean: fewer than 3 random losses in 60 s",
            Regime::Repairing => "repairing random losses",
            Regime::Bounded => "losses require more repairs than max_overhead allows",
            Regime::Congested => "congested: the queue is long, so the repair rate does not rise",
            Regime::Observed => "observed: nothing is repaired",
        })
    }
}

/// State of the path to a peer, and of the repairs on it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct State {
    /// State of the link.
    pub regime: Regime,
    /// Repairs for each packet.
    pub overhead: f64,
    /// Packets a second.
    pub pace: f64,
    /// Time for which flows can wait for a lost packet.
    pub wait: Duration,
    /// Round-trip time, if it is known.
    pub rtt: Option<Duration>,
    /// Last report of the peer.
    pub report: Report,
}

impl Report {
    fn plus(&self, other: &Report) -> Report {
        Report {
            random: self.random.plus(&other.random),
            congested: self.congested + other.congested,
            visible: self.visible + other.visible,
            queue_full: self.queue_full || other.queue_full,
            in_doubt: self.in_doubt || other.in_doubt,
        }
    }
}

impl State {
    /// Combined state of two lanes; `None` if neither lane has a state. The regime and the times
    /// are those of the lane with more packets a second.
    pub fn combined(a: Option<State>, b: Option<State>) -> Option<State> {
        let (Some(a), Some(b)) = (a, b) else { return a.or(b) };
        let (more, less) = if a.pace >= b.pace { (a, b) } else { (b, a) };
        let pace = a.pace + b.pace;
        let repairs = a.overhead * a.pace + b.overhead * b.pace;
        Some(State {
            pace,
            overhead: if pace > 0.0 { repairs / pace } else { more.overhead },
            rtt: more.rtt.or(less.rtt),
            report: a.report.plus(&b.report),
            ..more
        })
    }
}
