//! Counters that each worker publishes, copied by value ten times a second.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use viaduct_proto::fake_tcp::FakeTcpStats;
use viaduct_proto::keys::PublicKey;
use viaduct_proto::repair::stats::PeerStats;
use viaduct_proto::repair::{Clocks, PeerFacts, Plane, PlaneStats};
use viaduct_sys::socket::udp::SendReport;

/// Counters of the shell around the packet plane, since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shell {
    /// Outgoing packets that were not captured because the tap was full: forwarded, not protected.
    pub tap_drops_out: u64,
    /// Outgoing packets whose copies were read too late: forwarded, not protected.
    #[serde(default)]
    pub tap_late_out: u64,
    /// Incoming packets that were not captured because the tap was full: forwarded, not seen.
    pub tap_drops_in: u64,
    /// Copies that the tap has truncated.
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

/// Raises `a` to `b`, another value of the same counter, if `b` is larger.
fn raise(a: &mut u64, b: u64) {
    *a = b.max(*a);
}

impl Shell {
    /// Adds the counters of another worker. `wan_falls` and `wan_drops` are not added, since all
    /// workers count the same events.
    fn merge(&mut self, more: &Shell) {
        let Shell { wan_falls, wan_drops, .. } = *more;
        raise(&mut self.wan_falls, wan_falls);
        raise(&mut self.wan_drops, wan_drops);
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
    /// Keeps only the counters of a worker that has died. Its peers count as up, so that
    /// [`Snapshot::merge`] takes their states from the other workers.
    pub fn retire(&mut self) {
        self.memory = 0;
        self.peers.iter_mut().for_each(|(_, stats)| stats.up = true);
    }

    /// Adds the counters of another worker. That worker may still have the peers of an
    /// earlier config.
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
    /// Clocks of handshake initiations, which are kept across a restart.
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

    /// Updates the counters of peers that have had events since the last call, and all other
    /// counters. Never waits for a reader: while a reader copies the snapshot, the call changes
    /// nothing, and the next call catches up.
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

    /// Updates the details of peers that have had events since the last call. Like
    /// [`Published::publish`], never waits for a reader.
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

    /// Counters of the shell.
    pub fn shell(&self) -> Shell {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0.shell
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
