//! Status of a gateway, as its control socket sends it and `viaduct status` reads it.

pub use viaduct_proto::repair::status::{LinkStatus, PathStatus, PeerStatus, TrialStatus};

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use viaduct_proto::health::State;
use viaduct_proto::repair::Coding;

use super::config::Peer;
use super::site::Site;
use super::snapshot::{Details, Snapshot};
use super::workers::Workers;
use crate::engine::snapshot::ProxyStatus;

/// Age of the counters, in seconds, at which the packet thread is considered hung: the thread
/// publishes them ten times a second.
const HANGS_AFTER: f64 = 2.0;

/// Counters of the packet cache's service, since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheStats {
    /// Queries that were looked up.
    pub queries: u64,
    /// Packets that were found and sent again.
    pub resent: u64,
    /// Queries from outside the site.
    pub strangers: u64,
    /// Malformed queries.
    pub malformed: u64,
    /// Queries beyond the limit per second.
    pub limited: u64,
}

/// Status of a gateway, as `viaduct status` reads it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// Version of the program.
    pub version: String,
    /// Process ID.
    #[serde(default)]
    pub pid: u32,
    /// Name of the site.
    pub site: String,
    /// WAN interface; both, separated by a comma, if there are two.
    pub wan: String,
    /// Names of the WANs, if there are two.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wans: Vec<String>,
    /// MTU of the WAN interface, in bytes; the lower MTU, if there are two WANs.
    pub wan_mtu: usize,
    /// Code of each peer, in the order of the config; "none" if packets to it are not encoded.
    pub codes: Vec<String>,
    /// Maximum length of packets to each peer, if it is lowered so that repairs fit.
    pub kept_below: Vec<Option<usize>>,
    /// `max_overhead` of each peer, if its code adapts to the losses.
    #[serde(default)]
    pub max_overhead: Vec<Option<f64>>,
    /// Time since the process started, in seconds.
    pub uptime: f64,
    /// Number of packet threads.
    #[serde(default)]
    pub workers: usize,
    /// Number of packet threads that have panicked. The others have taken over their lanes.
    #[serde(default)]
    pub workers_dead: usize,
    /// Age of the counters, in seconds. At 2 s or more, the packet thread is reported as hung.
    pub age: f64,
    /// Maximum memory of packets in bytes, taps included.
    pub memory_limit: usize,
    /// Part of `memory_limit` that the taps of each direction take, in bytes.
    pub tap_memory: usize,
    /// Problem of the gateway itself, if there is one: repairs do not fit the WAN, rules or routes
    /// are missing, or packets are routed into the TUN.
    pub trouble: Option<String>,
    /// Counters of the packet cache's service.
    pub cache: CacheStats,
    /// Status of the proxy of split mode, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<ProxyStatus>,
    /// State of each peer, in the order of the config.
    #[serde(default)]
    pub peers: Vec<PeerStatus>,
    /// All counters. Its `peers` are pairs of name and counters, as in earlier versions; the
    /// objects of [`Status::peers`] have the same counters and more.
    pub counters: Snapshot,
}

/// `max_overhead` of a peer whose code adapts to the losses.
fn max_overhead(peer: &Peer) -> Option<f64> {
    match &peer.coding {
        Some(Coding::Auto(settings)) => Some(settings.limits.max_overhead),
        _ => None,
    }
}

impl Status {
    /// Status of `site` now. Fields that only the control side knows are left at zero.
    pub fn new(site: &Site, workers: &Workers) -> Status {
        let peers = &site.config.peers;
        let code =
            |peer: &Peer| peer.coding.as_ref().map_or("none".to_owned(), ToString::to_string);
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            site: site.config.name.clone(),
            wan: site.config.interfaces().collect::<Vec<_>>().join(", "),
            wans: site.config.wans.iter().map(|wan| wan.name.clone()).collect(),
            wan_mtu: site.wan_mtu,
            codes: peers.iter().map(code).collect(),
            kept_below: peers.iter().map(|peer| site.clamp(peer)).collect(),
            max_overhead: peers.iter().map(max_overhead).collect(),
            workers: workers.counts().0,
            workers_dead: workers.counts().1,
            age: workers.age().as_secs_f64(),
            memory_limit: site.config.memory,
            tap_memory: site.tap_memory(),
            counters: workers.snapshot(),
            ..Status::default()
        }
    }

    /// Adds the details and the states of the peers.
    #[must_use]
    pub fn with_peers(
        mut self,
        now: viaduct_proto::time::Instant,
        details: &Details,
        states: &[(String, State)],
    ) -> Status {
        let states: HashMap<&String, &State> =
            states.iter().map(|(name, state)| (name, state)).collect();
        let peers = self.counters.peers.iter().enumerate();
        self.peers = peers
            .map(|(at, (name, counters))| {
                let state = states.get(name).copied();
                let facts = details.facts.get(name).cloned().unwrap_or_default();
                let terms = facts.terms.as_deref();
                PeerStatus {
                    name: name.clone(),
                    state: state.map_or("down", State::name).to_owned(),
                    reason: match state {
                        Some(state) => state.reason().map(str::to_owned),
                        None => Some("the peer has just been added".to_owned()),
                    },
                    endpoint: facts.endpoint.map(|at| at.to_string()),
                    transport: facts.transport.to_string(),
                    transport_reason: facts.cause.to_string(),
                    code: self.codes.get(at).cloned().unwrap_or_default(),
                    kept_below: self.kept_below.get(at).copied().flatten(),
                    version: terms.map(|terms| terms.version.clone()),
                    peer_code: terms.map(|terms| terms.code.clone()),
                    last_handshake: facts.handshake_at.map(|at| now.since(at).as_secs_f64()),
                    lowered_mss: facts.lowered_mss,
                    link: facts
                        .control
                        .as_ref()
                        .map(|of| LinkStatus::new(of, facts.trials.as_ref())),
                    lanes: facts.lanes,
                    lanes_down: facts.lanes_down,
                    slices: facts.slices,
                    paths: facts.paths.iter().map(|of| PathStatus::new(&self.wans, of)).collect(),
                    counters: *counters,
                }
            })
            .collect();
        self
    }

    /// Report of a packet thread that hangs.
    pub fn hang(&self) -> Option<String> {
        let what = || format!("the packet thread has not reported for {:.1} s", self.age);
        (self.age >= HANGS_AFTER).then(what)
    }

    /// Report of packet threads that have panicked.
    pub fn dead_workers(&self) -> Option<String> {
        let (all, dead) = (self.workers, self.workers_dead);
        let what = || {
            format!(
                "{dead} of {all} packet threads panicked, and the others have their lanes: a \
                 restart is needed"
            )
        };
        (dead > 0).then(what)
    }

    /// All problems, including a packet thread that hangs, one line each.
    pub fn all_troubles(&self) -> Vec<String> {
        self.hang().into_iter().chain(self.troubles()).collect()
    }

    /// Problems of the gateway and its peers, one line each.
    pub fn troubles(&self) -> Vec<String> {
        let peers = self.peers.iter().filter_map(PeerStatus::trouble);
        self.trouble.iter().cloned().chain(self.dead_workers()).chain(peers).collect()
    }
}
