//! State of a peer as JSON, in the status of a gateway.

use serde::{Deserialize, Serialize};

use super::control;
use super::peer::PathFacts;
use super::racks::SliceCount;
use super::shadow::{Outcome, TRIED};
use super::stats::PeerStats;
use crate::time::Duration;

/// Peer in the status and the metrics.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Name of the peer.
    pub name: String,
    /// `up`, `up, nothing recovered`, `degraded` or `down`.
    pub state: String,
    /// Reason why the state is not `up`.
    pub reason: Option<String>,
    /// Address to which datagrams for the peer are sent.
    pub endpoint: Option<String>,
    /// Transport of these datagrams: `udp` or `fake-tcp`.
    #[serde(default)]
    pub transport: String,
    /// Reason why this transport is used.
    #[serde(default)]
    pub transport_reason: String,
    /// Encoding of packets to the peer; `none` if they are not encoded.
    pub code: String,
    /// Maximum length of packets to the peer, if it is lowered so that repairs fit.
    pub kept_below: Option<usize>,
    /// Version of the peer's program.
    pub version: Option<String>,
    /// Encoding of packets from the peer.
    pub peer_code: Option<String>,
    /// Time since the last completed handshake, in seconds.
    pub last_handshake: Option<f64>,
    /// MSS to which a device on the path lowers the MSS of SYNs, for IPv4 and IPv6.
    pub lowered_mss: [Option<u16>; 2],
    /// State of the path to the peer, if the code adapts to its losses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<LinkStatus>,
    /// Number of lanes.
    #[serde(default)]
    pub lanes: usize,
    /// Number of lanes without a session, or whose peer is silent.
    #[serde(default)]
    pub lanes_down: usize,
    /// Slices that the peer owns, if it is a member of a rack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slices: Option<SliceCount>,
    /// Paths to the peer, if there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathStatus>,
    /// Counters of the peer.
    pub counters: PeerStats,
}

impl PeerStatus {
    /// Description of the peer's problem, if there is one.
    pub fn trouble(&self) -> Option<String> {
        let reason = self.reason.as_ref()?;
        Some(format!("peer {}: {}: {reason}", self.name, self.state))
    }
}

/// Path to a peer that has several.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PathStatus {
    /// Name of the WAN.
    pub wan: String,
    /// True if the path carries datagrams in both directions.
    pub up: bool,
    /// Round-trip time in milliseconds.
    pub rtt_ms: Option<f64>,
    /// Name of the WAN over which repairs of this path's packets are sent.
    pub repairs_by: String,
    /// Packets that were sent over this path.
    pub sent: u64,
    /// Packets from the peer: the number whose fate is known, and how many of these were lost.
    pub received: (u64, u64),
    /// The same two numbers for packets to the peer, as the peer reports them.
    pub reported: (u64, u64),
}

impl PathStatus {
    /// Status of a path; `wans` are the names of the WANs.
    pub fn new(wans: &[String], facts: &PathFacts) -> PathStatus {
        let name = |path: u8| wans.get(usize::from(path)).cloned().unwrap_or_default();
        PathStatus {
            wan: name(facts.path),
            up: facts.is_up,
            rtt_ms: facts.rtt.map(|rtt| rtt.as_secs_f64() * 1e3),
            repairs_by: name(facts.via),
            sent: facts.packets,
            received: (facts.incoming.covered, facts.incoming.lost),
            reported: (facts.outgoing.covered, facts.outgoing.lost),
        }
    }
}

/// State of the path to a peer, as reported by the peer, and the repairs chosen for it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LinkStatus {
    /// Regime of the repairs, in words.
    pub regime: String,
    /// Repairs per packet.
    pub overhead: f64,
    /// Packets per second.
    pub pace: f64,
    /// Time for which flows can wait for a packet, in milliseconds.
    pub wait_ms: f64,
    /// Round-trip time between the gateways, in milliseconds.
    pub rtt_ms: Option<f64>,
    /// Packets whose fate is known, since the peer's gateway started.
    pub packets: u64,
    /// Bursts of random losses.
    pub bursts: u64,
    /// Packets dropped by a full queue.
    pub congested: u64,
    /// Random losses that flows have noticed.
    pub visible: u64,
    /// Results that codes would have achieved, if the link is only observed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trials: Vec<TrialStatus>,
}

impl LinkStatus {
    /// Status of a link whose controller has this `state`.
    pub fn new(state: &control::State, trials: Option<&[Outcome; TRIED.len()]>) -> LinkStatus {
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        let report = state.report;
        LinkStatus {
            regime: state.regime.to_string(),
            overhead: state.overhead,
            pace: state.pace,
            wait_ms: millis(state.wait),
            rtt_ms: state.rtt.map(millis),
            packets: report.random.packets,
            bursts: report.random.bursts.iter().sum(),
            congested: report.congested,
            visible: report.visible,
            trials: trials.map(TrialStatus::all).unwrap_or_default(),
        }
    }
}

/// Result that a code would have achieved.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrialStatus {
    /// Name of the code in a config.
    pub code: String,
    /// Packets lost at random.
    pub lost: u64,
    /// Share of the lost packets that would have been recovered.
    pub recovered: f64,
    /// Share of the lost packets that would have been recovered within a quarter of a round trip.
    pub in_time: f64,
    /// Repairs per packet.
    pub overhead: f64,
}

impl TrialStatus {
    /// Results of all codes that were tried.
    pub fn all(outcomes: &[Outcome; TRIED.len()]) -> Vec<TrialStatus> {
        let share = |part: u64, of: u64| part as f64 / of.max(1) as f64;
        let trial = |(code, of): (&&str, &Outcome)| TrialStatus {
            code: (*code).to_owned(),
            lost: of.lost,
            recovered: share(of.recovered, of.lost),
            in_time: share(of.in_time, of.lost),
            overhead: share(of.repairs, of.packets),
        };
        TRIED.iter().zip(outcomes).map(trial).collect()
    }
}
