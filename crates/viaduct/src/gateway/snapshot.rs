//! Counters that the worker publishes, copied by value a few times a second.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use viaduct_proto::fake_tcp::FakeTcpStats;
use viaduct_proto::health::State;
use viaduct_proto::keys::PublicKey;
use viaduct_proto::repair::shadow::{Outcome, TRIED};
use viaduct_proto::repair::stats::PeerStats;
use viaduct_proto::repair::{
    Clocks, Coding, PathFacts, PeerFacts, Plane, PlaneStats, SliceCount, control,
};
use viaduct_sys::socket::udp::SendReport;

use super::config::Peer;
use super::site::Site;
use super::workers::Workers;
use crate::engine::snapshot::ProxyStatus;

/// Age of the counters, in seconds, from which on the packet thread is considered hung: the thread
/// publishes them ten times a second.
const HANGS_AFTER: f64 = 2.0;

/// Counters of the shell around the packet plane, since the gateway started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shell {
    /// Outgoing packets that found the tap full: forwarded, not protected.
    pub tap_drops_out: u64,
    /// Outgoing packets whose copies were read too late: forwarded, not protected.
    #[serde(default)]
    pub tap_late_out: u64,
    /// Incoming packets that found the tap full: forwarded, not seen.
    pub tap_drops_in: u64,
    /// Copies longer than the tap keeps.
    pub truncated: u64,
    /// Copies whose checksum was left to the device.
    pub unfinished: u64,
    /// Datagrams sent to peers.
    pub datagrams: u64,
    /// Datagrams that the kernel rejected.
    pub send_failed: u64,
    /// Rejected datagrams that were longer than the path's MTU.
    pub send_too_long: u64,
    /// Recovered packets passed to the kernel.
    pub injected: u64,
    /// Recovered packets that the kernel rejected.
    pub inject_failed: u64,
    /// Number of times that the WAN interface went down.
    pub wan_falls: u64,
    /// Packets dropped by the queueing discipline of the WAN interface.
    #[serde(default)]
    pub wan_drops: u64,
}

impl Shell {
    /// Counts a batch of datagrams.
    pub fn sent(&mut self, report: SendReport) {
        self.datagrams += report.sent;
        self.send_failed += report.failed();
        self.send_too_long += report.too_long;
    }
}

/// Later of two values.
fn later(a: &mut u64, b: u64) {
    *a = b.max(*a);
}

impl Shell {
    /// Adds the counters of another worker. All workers see the falls and drops of the WAN.
    fn merge(&mut self, more: &Shell) {
        let Shell { wan_falls, wan_drops, .. } = *more;
        later(&mut self.wan_falls, wan_falls);
        later(&mut self.wan_drops, wan_drops);
        self.tap_drops_out += more.tap_drops_out;
        self.tap_late_out += more.tap_late_out;
        self.tap_drops_in += more.tap_drops_in;
        self.truncated += more.truncated;
        self.unfinished += more.unfinished;
        self.datagrams += more.datagrams;
        self.send_failed += more.send_failed;
        self.send_too_long += more.send_too_long;
        self.injected += more.injected;
        self.inject_failed += more.inject_failed;
    }
}

/// All counters at one moment.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Snapshot {
    /// Counters of each peer, in the order of the config.
    pub peers: Vec<(String, PeerStats)>,
    /// Counters of the packet plane that belong to no peer.
    pub plane: PlaneStats,
    /// Counters of the shell.
    pub shell: Shell,
    /// Counters of fake TCP.
    #[serde(default)]
    pub fake_tcp: FakeTcpStats,
    /// Bytes of memory that the packet plane holds.
    pub memory: usize,
}

impl Snapshot {
    /// Leaves only the counters: the worker has died.
    pub fn retire(&mut self) {
        self.memory = 0;
        self.peers.iter_mut().for_each(|(_, stats)| stats.up = true);
    }

    /// Adds the counters of another worker. Its peers may be those of an earlier config.
    pub fn merge(&mut self, more: &Snapshot) {
        let are_same = self.peers.len() == more.peers.len()
            && self.peers.iter().zip(&more.peers).all(|((a, _), (b, _))| a == b);
        if are_same {
            let pairs = self.peers.iter_mut().zip(&more.peers);
            pairs.for_each(|((_, stats), (_, more))| stats.merge(more));
        } else {
            let more: HashMap<_, _> = more.peers.iter().map(|(name, of)| (name, of)).collect();
            for (name, stats) in &mut self.peers {
                more.get(&*name).iter().for_each(|more| stats.merge(more));
            }
        }
        self.plane.stray += more.plane.stray;
        self.plane.ignored += more.plane.ignored;
        self.plane.missed += more.plane.missed;
        self.shell.merge(&more.shell);
        self.memory += more.memory;
    }
}

/// Data about the peers other than their counters, published less often than the counters.
#[derive(Clone, Debug, Default)]
pub struct Details {
    /// Facts about each peer, by its name.
    pub facts: HashMap<String, PeerFacts>,
    /// Clocks of handshake initiations, which are kept over a restart.
    pub clocks: HashMap<PublicKey, Clocks>,
}

impl Details {
    /// Adds the details of another worker.
    pub fn merge(&mut self, more: Details) {
        for (name, facts) in more.facts {
            self.facts.entry(name).or_default().merge(facts);
        }
        for (key, clocks) in more.clocks {
            let before = self.clocks.entry(key).or_default();
            *before = before.max(clocks);
        }
    }
}

/// Latest snapshot with its time, and latest details.
#[derive(Debug)]
pub struct Published(Mutex<(Snapshot, Instant)>, Mutex<Details>);

impl Default for Published {
    fn default() -> Self {
        Published(Mutex::new((Snapshot::default(), Instant::now())), Mutex::default())
    }
}

impl Published {
    /// Replaces all peers.
    pub fn replace_peers(&self, plane: &Plane, now: viaduct_proto::time::Instant) {
        let details = Details { facts: plane.facts(now), clocks: plane.clocks() };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0.peers = plane.stats();
        *self.1.lock().unwrap_or_else(PoisonError::into_inner) = details;
    }

    /// Updates the snapshot: the counters of peers with events, and all others. Waits for no
    /// reader: while one copies the snapshot, it stays as it is until the next call.
    pub fn publish(&self, plane: &mut Plane, shell: Shell, fake_tcp: FakeTcpStats) {
        let Some(mut published) = try_lock(&self.0) else { return };
        let (snapshot, at) = &mut *published;
        plane.take_stats(|peer, stats| {
            if let Some((_, published)) = snapshot.peers.get_mut(peer) {
                *published = stats;
            }
        });
        (snapshot.plane, snapshot.memory) = (plane.plane_stats(), plane.memory());
        (snapshot.shell, snapshot.fake_tcp) = (shell, fake_tcp);
        *at = Instant::now();
    }

    /// Updates the details of peers with events, as [`Published::publish`].
    pub fn publish_details(&self, plane: &mut Plane, now: viaduct_proto::time::Instant) {
        let Some(mut details) = try_lock(&self.1) else { return };
        plane.take_facts(now, |name, facts, (key, clocks)| {
            if let Some(published) = details.facts.get_mut(name) {
                *published = facts;
            }
            if clocks != Clocks::default() {
                details.clocks.insert(key, clocks);
            }
        });
    }

    /// Copy of the details.
    pub fn details(&self) -> Details {
        self.1.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Copy of the snapshot.
    pub fn get(&self) -> Snapshot {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// Age of the snapshot. The worker publishes ten times a second.
    pub fn age(&self) -> Duration {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1.elapsed()
    }
}

fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
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
    /// Malformed queries.
    pub malformed: u64,
    /// Queries beyond the limit per second.
    pub limited: u64,
}

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
    /// Lanes without a session, or whose peer is silent.
    #[serde(default)]
    pub lanes_down: usize,
    /// Slices that the peer owns, if it is a member of a rack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slices: Option<SliceStatus>,
    /// Paths to the peer, if there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathStatus>,
    /// Counters of the peer.
    pub counters: PeerStats,
}

/// Numbers of slices that a member of a peer's rack owns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceStatus {
    /// Slices of the peer's site, packets to which the member receives.
    pub to: usize,
    /// Slices of this site, packets to which the member sends.
    pub from: usize,
}

impl From<SliceCount> for SliceStatus {
    fn from(SliceCount { to, from }: SliceCount) -> SliceStatus {
        SliceStatus { to, from }
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
    /// Name of the WAN by which repairs of this path's packets are sent.
    pub repairs_by: String,
    /// Packets that were sent by this path.
    pub sent: u64,
    /// Packets from the peer whose fate is known, and those of them that were lost.
    pub received: (u64, u64),
    /// The same of the packets to the peer, as the peer reports them.
    pub reported: (u64, u64),
}

impl PathStatus {
    fn new(wans: &[String], facts: &PathFacts) -> PathStatus {
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
    /// Results that codes would have achieved, if the link is observed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trials: Vec<TrialStatus>,
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
    /// Description of the peer's problem, if there is one.
    pub fn trouble(&self) -> Option<String> {
        let reason = self.reason.as_ref()?;
        Some(format!("peer {}: {}: {reason}", self.name, self.state))
    }
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
    /// WAN interface.
    pub wan: String,
    /// Names of the WANs, if there are two.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wans: Vec<String>,
    /// MTU of the WAN interface, in bytes.
    pub wan_mtu: usize,
    /// Code of each peer, in the order of the config; "none" if packets to it are not encoded.
    pub codes: Vec<String>,
    /// Maximum length of packets to each peer, if it is lowered so that repairs fit.
    pub kept_below: Vec<Option<usize>>,
    /// `max_overhead` of each peer, if its code adapts to the losses.
    #[serde(default)]
    pub max_overhead: Vec<Option<f64>>,
    /// Time since the gateway started, in seconds.
    pub uptime: f64,
    /// Number of packet threads.
    #[serde(default)]
    pub workers: usize,
    /// Packet threads that have panicked; the others have their lanes.
    #[serde(default)]
    pub workers_dead: usize,
    /// Age of the counters, in seconds. More than a second means that the packet thread hangs.
    pub age: f64,
    /// Maximum memory of packets in bytes, taps included.
    pub memory_limit: usize,
    /// Part of `memory_limit` that the taps of each direction take, in bytes.
    pub tap_memory: usize,
    /// Reason why repairs do not fit the WAN, if they do not.
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
                    slices: facts.slices.map(SliceStatus::from),
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
