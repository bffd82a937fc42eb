//! Next hops that are checked. A flow takes the first hop of a list that is up, or hops that
//! measurements choose.
//!
//! ```text
//!   checks: a thread ── TCP or HTTP ──▶ hops
//!     │ states    ▲ suspicions: a flow's connection has failed
//!     ▼           │
//!   HopHealth ────┴──▶ event loops ── HopList::choose ──▶ route of each flow
//!     └ down: flows that are being connected try the next hop (retry)
//! ```
//!
//! | file | |
//! |---|---|
//! | here | [`HopList`], and the choice of a hop |
//! | `health` | states of the hops, shared by checks and event loops |
//! | `checks` | thread that checks the hops |
//! | `retry` | flows whose hop has failed |
//! | `auto` | hops chosen by measurements, and the measurements of this proxy |
//! | `overlay` | measurements of these hops: the overlay's, and the hops' own |

mod auto;
mod checks;
mod health;
mod overlay;
mod retry;

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use clap::ValueEnum;
use viaduct_proto::health::Timing;

pub use auto::{AutoHops, AutoSpec};
pub use checks::HopChecks;
pub use health::{HopHealth, HopStatus};

/// Hops in order of preference.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HopList {
    /// Addresses of the hops.
    pub hops: Vec<SocketAddr>,
    /// Check of each hop; `None` if the hops are not checked.
    pub check: Option<HopCheck>,
    /// Treatment of flows if no hop is up.
    pub fallback: Fallback,
}

/// Treatment of flows for which no next hop is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, ValueEnum)]
pub enum Fallback {
    /// Flows go directly to their servers
    #[default]
    Direct,
    /// Flows are refused
    Refuse,
}

/// Check of a hop.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HopCheck {
    /// Times and counts.
    pub timing: Timing,
    /// Path that is requested over HTTP; `None` if a connection is enough.
    pub path: Option<String>,
}

/// Result of a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Through this hop.
    Hop(SocketAddr),
    /// Directly to the server.
    Direct,
    /// The flow is refused.
    Refused,
}

impl Default for HopCheck {
    /// A hop that does not answer is marked as down within 1.85 s. Three probes must fail, because
    /// one or two may be lost on a lossy path.
    fn default() -> HopCheck {
        let (interval, timeout) = (Duration::from_millis(500), Duration::from_millis(450));
        HopCheck { timing: Timing { interval, timeout, rise: 2, fall: 3 }, path: None }
    }
}

impl HopList {
    /// Chooses the hop of a flow for which the hops in `tried` have failed. A hop that was not
    /// checked yet counts as up.
    pub fn choose(&self, health: &HopHealth, tried: &[SocketAddr]) -> Choice {
        let left = self.hops.iter().filter(|hop| !tried.contains(hop));
        match (left.copied().find(|hop| !health.is_down(*hop)), self.fallback) {
            (Some(hop), _) => Choice::Hop(hop),
            (None, Fallback::Direct) => Choice::Direct,
            (None, Fallback::Refuse) => Choice::Refused,
        }
    }

    /// Addresses of the hops as text.
    pub fn names(&self) -> String {
        self.hops.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }
}

/// Form used for `--check`: `the first of 10.0.0.1:7000, 10.0.0.2:7000 that is up, else directly`.
impl fmt::Display for HopList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.hops[..] {
            [hop] => write!(f, "{hop}")?,
            _ => write!(f, "the first of {}", self.names())?,
        }
        match (&self.check, self.hops.len()) {
            (None, 1) => {}
            (None, _) => f.write_str(" that answers")?,
            (Some(_), 1) => f.write_str(" if it is up")?,
            (Some(_), _) => f.write_str(" that is up")?,
        }
        match self.fallback {
            Fallback::Direct => f.write_str(", else directly"),
            Fallback::Refuse => f.write_str(", else refused"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(n: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, n], 7000))
    }

    #[test]
    fn the_first_hop_is_taken_that_is_up_and_was_not_tried() {
        let (health, check) = (HopHealth::default(), Some(HopCheck::default()));
        let mut list = HopList { hops: vec![at(1), at(2)], check, fallback: Fallback::Direct };
        let choice =
            |list: &HopList, health: &HopHealth, tried: &[SocketAddr]| list.choose(health, tried);
        assert_eq!(choice(&list, &health, &[]), Choice::Hop(at(1)), "not checked yet");
        health.publish(HopStatus::of(at(1), true));
        assert_eq!(choice(&list, &health, &[]), Choice::Hop(at(2)));
        assert_eq!(choice(&list, &health, &[at(2)]), Choice::Direct);
        health.publish(HopStatus::of(at(2), true));
        assert_eq!(choice(&list, &health, &[]), Choice::Direct);
        list.fallback = Fallback::Refuse;
        assert_eq!(choice(&list, &health, &[]), Choice::Refused);
        health.publish(HopStatus::of(at(1), false));
        assert_eq!(choice(&list, &health, &[]), Choice::Hop(at(1)));
    }

    #[test]
    fn a_silent_hop_is_down_within_two_seconds() {
        let Timing { interval, timeout, fall, .. } = HopCheck::default().timing;
        assert!(interval + timeout * fall < Duration::from_secs(2));
    }
}
