//! What the worker shows of itself: counters, copied out by value a few times a second.

use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use viaduct_proto::repair::stats::PeerStats;
use viaduct_proto::repair::{Plane, PlaneStats};
use viaduct_sys::udp::SendReport;

use super::config::Peer;
use super::site::Site;

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

/// The latest snapshot, for whoever asks.
#[derive(Debug, Default)]
pub struct Published(Mutex<Snapshot>);

impl Published {
    /// Replaces it.
    pub fn publish(&self, plane: &Plane, shell: Shell) {
        let snapshot = Snapshot {
            peers: plane.stats(),
            plane: plane.plane_stats(),
            shell,
            memory: plane.memory(),
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = snapshot;
    }

    /// A copy of it.
    pub fn get(&self) -> Snapshot {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What `viaduct status` is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
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
    /// The counters.
    pub counters: Snapshot,
}

impl Status {
    /// Of this site now.
    pub fn new(site: &Site, counters: Snapshot) -> Status {
        let peers = &site.config.peers;
        let code = |peer: &Peer| peer.code.as_ref().map_or("none".to_owned(), ToString::to_string);
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            site: site.config.name.clone(),
            wan: site.config.wan.clone(),
            wan_mtu: site.wan_mtu,
            codes: peers.iter().map(code).collect(),
            kept_below: peers.iter().map(|peer| site.clamp(peer)).collect(),
            counters,
        }
    }
}
