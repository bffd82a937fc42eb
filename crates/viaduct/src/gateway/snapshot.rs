//! What the worker shows of itself: counters, copied out by value a few times a second.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use viaduct_proto::health::State;
use viaduct_proto::keys::PublicKey;
use viaduct_proto::repair::shadow::{Outcome, TRIED};
use viaduct_proto::repair::stats::PeerStats;
use viaduct_proto::repair::{Clocks, PeerFacts, Plane, PlaneStats, control};
use viaduct_sys::udp::SendReport;

use super::config::Peer;
use super::site::Site;
use crate::proxy::snapshot::ProxyStatus;

/// Counters of the shell around the packet plane, since the gateway started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shell {
    /// Outgoing packets that found the tap full: forwarded, not protected.
    pub tap_drops_out: u64,
    /// Outgoing packets whose copies were looked at too late: forwarded, not protected.
    #[serde(default)]
    pub tap_late_out: u64,
    /// Incoming packets that found the tap full: forwarded, not seen.
    pub tap_drops_in: u64,
    /// Copies longer than the tap keeps.
    pub truncated: u64,
    /// Copies whose checksum the device was still to fill in.
    pub unfinished: u64,
    /// Datagrams sent to peers.
    pub datagrams: u64,
    /// Datagrams that the kernel would not take.
    pub send_failed: u64,
    /// Of them, those that were longer than the path's MTU.
    pub send_too_long: u64,
    /// Recovered packets handed to the kernel.
    pub injected: u64,
    /// Recovered packets that the kernel would not take.
    pub inject_failed: u64,
    /// Times that the WAN interface went down.
    pub wan_falls: u64,
    /// Packets that its queueing discipline has dropped.
    #[serde(default)]
    pub wan_drops: u64,
}

impl Shell {
    /// Counts a batch.
    pub fn sent(&mut self, report: SendReport) {
        self.datagrams += report.sent;
        self.send_failed += report.failed();
        self.send_too_long += report.too_long;
    }
}

/// All counters at one moment.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Snapshot {
    /// Each peer's, in the order of the config.
    pub peers: Vec<(String, PeerStats)>,
    /// Of what belongs to no peer.
    pub plane: PlaneStats,
    /// Of the shell.
    pub shell: Shell,
    /// Bytes of memory that the packet plane holds.
    pub memory: usize,
}

/// What is known of the peers beside their counters, once a second.
#[derive(Clone, Debug, Default)]
pub struct Details {
    /// Of each peer by its name.
    pub facts: HashMap<String, PeerFacts>,
    /// Clocks of initiations, to be kept over a restart.
    pub clocks: HashMap<PublicKey, Clocks>,
}

/// The latest snapshot and when it was made, and the latest details.
#[derive(Debug)]
pub struct Published(Mutex<(Snapshot, Instant)>, Mutex<Details>);

impl Default for Published {
    fn default() -> Self {
        Published(Mutex::new((Snapshot::default(), Instant::now())), Mutex::default())
    }
}

impl Published {
    /// Replaces it.
    pub fn publish(&self, plane: &Plane, shell: Shell) {
        let snapshot = Snapshot {
            peers: plane.stats(),
            plane: plane.plane_stats(),
            shell,
            memory: plane.memory(),
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = (snapshot, Instant::now());
    }

    /// Replaces the details.
    pub fn publish_details(&self, plane: &Plane, now: viaduct_proto::time::Instant) {
        let details = Details { facts: plane.facts(now), clocks: plane.clocks() };
        *self.1.lock().unwrap_or_else(PoisonError::into_inner) = details;
    }

    /// A copy of the details.
    pub fn details(&self) -> Details {
        self.1.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A copy of it.
    pub fn get(&self) -> Snapshot {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// How long ago that was; the worker publishes ten times a second.
    pub fn age(&self) -> Duration {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1.elapsed()
    }
}

/// Counters of the packet cache's service, since the gateway started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheStats {
    /// Queries that were looked up.
    pub queries: u64,
    /// Packets that were found and sent again.
    pub resent: u64,
    /// Queries from outside the site.
    pub strangers: u64,
    /// Queries that are none.
    pub malformed: u64,
    /// Queries beyond what is served in a second.
    pub limited: u64,
}

/// A peer, as status and metrics tell of it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Its name.
    pub name: String,
    /// `up`, `up, nothing recovered`, `degraded` or `down`.
    pub state: String,
    /// Why it is not `up`.
    pub reason: Option<String>,
    /// Where datagrams to it are sent.
    pub endpoint: Option<String>,
    /// How what leaves for it is encoded; `none` where nothing is.
    pub code: String,
    /// The length that packets towards it are kept below so that repairs fit.
    pub kept_below: Option<usize>,
    /// Version of its program.
    pub version: Option<String>,
    /// How it encodes what it sends here.
    pub peer_code: Option<String>,
    /// How long ago the last handshake was completed, in seconds.
    pub last_handshake: Option<f64>,
    /// The MSS that the path lowers SYNs to, for IPv4 and IPv6.
    pub lowered_mss: [Option<u16>; 2],
    /// The way to it, where the code follows what it loses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<LinkStatus>,
    /// Its counters.
    pub counters: PeerStats,
}

/// The way to a peer, as the peer reports it, and how it is answered.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LinkStatus {
    /// How it is, in words.
    pub regime: String,
    /// Repairs for each packet.
    pub overhead: f64,
    /// Packets a second.
    pub pace: f64,
    /// Time for which flows can wait for a packet, in milliseconds.
    pub wait_ms: f64,
    /// Round-trip time between the gateways, in milliseconds.
    pub rtt_ms: Option<f64>,
    /// Packets whose fate is known, since the peer's gateway began.
    pub packets: u64,
    /// Bursts of packets that were lost by chance.
    pub bursts: u64,
    /// Packets that a full queue has dropped.
    pub congested: u64,
    /// Losses by chance that flows have seen.
    pub visible: u64,
    /// What codes would have done, where the link is observed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trials: Vec<TrialStatus>,
}

/// What a code would have done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrialStatus {
    /// Its name in a config.
    pub code: String,
    /// Packets that were lost by chance.
    pub lost: u64,
    /// Share of them that would have come back.
    pub recovered: f64,
    /// Share of them that would have come back within a quarter of a round trip.
    pub in_time: f64,
    /// Repairs for each packet.
    pub overhead: f64,
}

impl TrialStatus {
    /// Of each code that was tried.
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

impl LinkStatus {
    fn new(state: &control::State, trials: Option<&[Outcome; TRIED.len()]>) -> LinkStatus {
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

impl PeerStatus {
    /// What is wrong with it, if something is.
    pub fn trouble(&self) -> Option<String> {
        let reason = self.reason.as_ref()?;
        Some(format!("peer {}: {}: {reason}", self.name, self.state))
    }
}

/// What `viaduct status` is told.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// Version of the program.
    pub version: String,
    /// The site's name.
    pub site: String,
    /// The WAN interface.
    pub wan: String,
    /// Its MTU, in bytes.
    pub wan_mtu: usize,
    /// Each peer's code, in the order of the config; "none" where nothing is encoded.
    pub codes: Vec<String>,
    /// Per peer, the length that packets are kept below so that repairs fit; `None` where no
    /// packet is touched.
    pub kept_below: Vec<Option<usize>>,
    /// How long the gateway has run, in seconds.
    pub uptime: f64,
    /// How long ago the counters were read, in seconds; more than a second means that the packet
    /// thread hangs.
    pub age: f64,
    /// Bytes of memory that packets may take, taps included.
    pub memory_limit: usize,
    /// Bytes that each of the two taps takes of them.
    pub tap_memory: usize,
    /// What keeps repairs from fitting the WAN, if anything does.
    pub trouble: Option<String>,
    /// Of the packet cache's service.
    pub cache: CacheStats,
    /// What the proxy of split mode says, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<ProxyStatus>,
    /// Each peer, in the order of the config.
    #[serde(default)]
    pub peers: Vec<PeerStatus>,
    /// The counters. Its `peers` are pairs of name and counters, as in earlier versions; the objects
    /// of `peers` above have the same and more.
    pub counters: Snapshot,
}

impl Status {
    /// Of this site now; what only the control side knows is left at zero.
    pub fn new(site: &Site, published: &Published) -> Status {
        let peers = &site.config.peers;
        let code =
            |peer: &Peer| peer.coding.as_ref().map_or("none".to_owned(), ToString::to_string);
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            site: site.config.name.clone(),
            wan: site.config.wan.clone(),
            wan_mtu: site.wan_mtu,
            codes: peers.iter().map(code).collect(),
            kept_below: peers.iter().map(|peer| site.clamp(peer)).collect(),
            age: published.age().as_secs_f64(),
            memory_limit: site.config.memory,
            tap_memory: site.ring_bytes(),
            counters: published.get(),
            ..Status::default()
        }
    }

    /// With what is known of the peers, whose states are `states`.
    #[must_use]
    pub fn with_peers(mut self, details: &Details, states: &[(String, State)]) -> Status {
        let peers = self.counters.peers.iter().enumerate();
        self.peers = peers
            .map(|(at, (name, counters))| {
                let state = states.iter().find(|(of, _)| of == name).map(|(_, state)| state);
                let facts = details.facts.get(name).cloned().unwrap_or_default();
                let terms = facts.terms.as_deref();
                PeerStatus {
                    name: name.clone(),
                    state: state.map_or("down", State::name).to_owned(),
                    reason: match state {
                        Some(state) => state.reason().map(str::to_owned),
                        None => Some("it has just been added".to_owned()),
                    },
                    endpoint: facts.endpoint.map(|at| at.to_string()),
                    code: self.codes.get(at).cloned().unwrap_or_default(),
                    kept_below: self.kept_below.get(at).copied().flatten(),
                    version: terms.map(|terms| terms.version.clone()),
                    peer_code: terms.map(|terms| terms.code.clone()),
                    last_handshake: facts.handshake.map(|age| age.as_secs_f64()),
                    lowered_mss: facts.lowered_mss,
                    link: facts
                        .control
                        .as_ref()
                        .map(|of| LinkStatus::new(of, facts.trials.as_ref())),
                    counters: *counters,
                }
            })
            .collect();
        self
    }

    /// All that is wrong, one line each.
    pub fn troubles(&self) -> Vec<String> {
        let peers = self.peers.iter().filter_map(PeerStatus::trouble);
        self.trouble.iter().cloned().chain(peers).collect()
    }
}
