//! What the worker shows of itself: counters, copied out by value a few times a second.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use viaduct_proto::repair::stats::PeerStats;
use viaduct_proto::repair::{Plane, PlaneStats};
use viaduct_sys::udp::SendReport;

use super::config::Peer;
use super::site::Site;
use crate::proxy::snapshot::ProxyStatus;

/// Counters of the shell around the packet plane, since the gateway started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shell {
    /// Outgoing packets that found the tap full: forwarded, not protected.
    pub tap_drops_out: u64,
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

/// The latest snapshot, for whoever asks, and when it was made.
#[derive(Debug)]
pub struct Published(Mutex<(Snapshot, Instant)>);

impl Default for Published {
    fn default() -> Self {
        Published(Mutex::new((Snapshot::default(), Instant::now())))
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
    /// The counters.
    pub counters: Snapshot,
}

impl Status {
    /// Of this site now; what only the control side knows is left at zero.
    pub fn new(site: &Site, published: &Published) -> Status {
        let peers = &site.config.peers;
        let code = |peer: &Peer| peer.code.as_ref().map_or("none".to_owned(), ToString::to_string);
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
}
