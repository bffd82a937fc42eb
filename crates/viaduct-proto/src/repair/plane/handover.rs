//! Handover of the plane's peers to a new process.
//!
//! ```text
//!   old plane: records() ─────────────▶ new plane, passive: resume(records)
//!     continues                           also opens and decodes all messages; the caller drops
//!                                         the datagrams and packets that it would send or inject
//!     finish(), records() ────────────▶ resume(records), set_passive(false)
//!     reclaim(), if the new process fails
//! ```

use std::collections::{HashMap, HashSet};

use super::{Peer, PeersError, Plane};
use crate::keys::PublicKey;
use crate::repair::lanes::LaneCount;
use crate::time::Instant;
use crate::upgrade::PeerRecord;

impl Plane {
    /// Sets whether another process has the sessions. If so, this plane only listens, and the
    /// caller drops the datagrams and packets that this plane would send or inject.
    pub fn set_passive(&mut self, is_passive: bool) {
        self.is_passive = is_passive;
    }

    /// Sends the last repairs of this process, before a new process takes over.
    pub fn finish(&mut self, now: Instant) {
        (0..self.peers.len()).for_each(|at| self.peer(at).finish(now));
    }

    /// State of all peers, for the handover to a new process.
    pub fn records(&self) -> Vec<PeerRecord> {
        self.peers.iter().map(Peer::record).collect()
    }

    /// Takes over the state of the previous process. This plane keeps what it has received in the
    /// meantime. `records` contains all lanes of each peer; lanes that this plane does not own are
    /// skipped.
    ///
    /// # Errors
    /// A record belongs to a peer that is not in the config.
    pub fn resume(&mut self, now: Instant, records: &[PeerRecord]) -> Result<(), PeersError> {
        self.take_lanes(now, records)?;
        let lanes = self.peers.iter().enumerate();
        let lanes: HashMap<(PublicKey, u8), usize> =
            lanes.map(|(at, peer)| (peer.key_and_lane(), at)).collect();
        let known: HashSet<PublicKey> = self.lanes.peers.iter().map(|of| of.key).collect();
        for record in records {
            let key = record.key.parse().ok().filter(|key| known.contains(key));
            let key = key.ok_or_else(|| PeersError::Foreign(record.key.clone()))?;
            let Some(&at) = lanes.get(&(key, record.lane)) else { continue };
            let peer = self.peer(at);
            let name = peer.config.name.clone();
            peer.resume(now, record).map_err(|error| PeersError::Peer(name, error))?;
        }
        self.enter_slots();
        self.inject.clear();
        Ok(())
    }

    /// Takes over the number of lanes of each peer: each lane has a record, but some packet threads
    /// may have stopped before a change of this number, and others after it.
    fn take_lanes(&mut self, now: Instant, records: &[PeerRecord]) -> Result<(), PeersError> {
        let mut counts: HashMap<&str, usize> = HashMap::new();
        for record in records {
            let count = counts.entry(&record.key).or_default();
            *count = (*count).max(usize::from(record.lane) + 1);
        }
        let mut has_changed = false;
        for of in &mut self.lanes.peers {
            let count = counts.get(&of.key.to_string()[..]).copied().and_then(LaneCount::new);
            if let Some(count) = count.filter(|count| *count != of.count) {
                (of.peer_wants, has_changed) = (count, true);
            }
        }
        if has_changed { self.own(self.lanes.shares(), now) } else { Ok(()) }
    }

    /// Resumes after a new process has failed to take over.
    pub fn reclaim(&mut self) {
        self.peers.iter_mut().for_each(|peer| peer.session.skip_counters());
    }
}
