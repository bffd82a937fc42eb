//! State of the choice of hops, for status and metrics.

use std::net::SocketAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::Chosen;
use super::score::Preference;

/// State of the choice of hops.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AutoStatus {
    /// True if the overlay's measurements are current; if false, flows go directly.
    pub is_measured: bool,
    /// Hops of the overlay.
    pub hops: Vec<AutoHop>,
    /// Flows by their number of hops: none, one, two.
    pub flows: [u64; 3],
    /// Number of times that a choice was changed although its hops were up.
    pub switches: u64,
    /// Number of networks of servers that are remembered.
    pub networks: u64,
    /// Choices for the most recently used networks, latest first; their number is limited.
    pub choices: Vec<AutoChoice>,
}

/// A hop of the overlay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AutoHop {
    /// Name of its node.
    pub name: String,
    /// Address at which it accepts flows.
    pub at: SocketAddr,
    /// Round trip to the hop in milliseconds; `None` while the hop cannot be used.
    pub rtt_ms: Option<f64>,
    /// Load that the hop has reported: 1 at its capacity.
    pub load: f64,
}

/// Choice for one network of servers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AutoChoice {
    /// The network.
    pub network: IpNet,
    /// Criterion of the choice.
    pub preference: Preference,
    /// Names of the hops, in order.
    pub hops: Vec<String>,
    /// Reason for the choice.
    pub why: String,
    /// Seconds since the route was chosen; `None` if it has never changed.
    pub since_s: Option<u64>,
}

impl AutoChoice {
    /// Returns the status of `chosen`; `name` returns the name of a hop.
    pub(super) fn new(chosen: &Chosen, name: impl Fn(usize) -> String) -> AutoChoice {
        AutoChoice {
            network: chosen.prefix.network(),
            preference: chosen.preference,
            hops: chosen.route.hops().map(name).collect(),
            why: why(chosen),
            since_s: chosen.since.map(|since| since.as_secs()),
        }
    }
}

/// Reason for a choice, as text.
fn why(chosen: &Chosen) -> String {
    let is_direct = chosen.route.hops().next().is_none();
    match (chosen.preference, chosen.cost, chosen.direct) {
        (_, None, _) if is_direct => "no flow has measured its round trip yet".to_owned(),
        (_, None, _) => "it was the best when it was chosen".to_owned(),
        (Preference::FirstByte, Some(cost), _) if is_direct => {
            format!("first byte {cost:.1} ms, no hop is known to be better")
        }
        (Preference::Bulk, Some(_), _) if is_direct => "no hop is known to be faster".to_owned(),
        (Preference::FirstByte, Some(cost), Some(direct)) => {
            format!("first byte {cost:.1} ms, directly {direct:.1} ms")
        }
        (Preference::FirstByte, Some(cost), None) => {
            format!("first byte {cost:.1} ms, the direct path is not measured")
        }
        (Preference::Bulk, Some(cost), Some(direct)) => {
            format!("{:.1} times the throughput of the direct path", direct / cost)
        }
        (Preference::Bulk, Some(_), None) => "the direct path is not measured".to_owned(),
    }
}
