//! Counters and facts of a plane's peers, and their cached packets.

use std::collections::HashMap;

use super::{OTHERS_TTL, Plane, PlaneStats};
use crate::keys::PublicKey;
use crate::repair::clocks::Clocks;
use crate::repair::peer::PeerFacts;
use crate::repair::stats::PeerStats;
use crate::repair::touched::Purpose;
use crate::time::Instant;

impl Plane {
    /// Packets from the peers' sites in the local cache (paper, 4.5), newest first for each
    /// peer, in normalised form.
    pub fn cached(&self) -> impl Iterator<Item = &[u8]> {
        self.peers.iter().flat_map(|peer| peer.receiver.cached())
    }

    /// Counters of each peer, in the order of the config.
    pub fn stats(&self) -> Vec<(String, PeerStats)> {
        let names = self.configs.iter().enumerate();
        names.map(|(peer, config)| (config.name.clone(), self.stats_of(peer))).collect()
    }

    /// Counters of a peer, summed over its lanes.
    fn stats_of(&self, peer: usize) -> PeerStats {
        let of = &self.lanes.peers[peer];
        let mut stats = of.former;
        self.peers[of.owned.clone()].iter().for_each(|lane| stats.merge(&lane.stats()));
        stats
    }

    /// Index of the peer of a lane.
    pub(super) fn peer_of(&self, lane: usize) -> usize {
        self.lanes.peers.partition_point(|of| of.owned.end <= lane)
    }

    /// Calls `each` with the index in the config and the counters of each peer with an event since
    /// the last call.
    pub fn take_stats(&mut self, mut each: impl FnMut(usize, PeerStats)) {
        let mut last = None;
        while let Some(at) = self.touched.pop(Purpose::Counters) {
            let peer = &mut self.peers[at];
            let repairs = peer.stats().repairs();
            let before = std::mem::replace(&mut peer.repairs, repairs);
            self.repairs += repairs - before;
            // The lanes of a peer are often listed one after another.
            let peer = self.peer_of(at);
            if last.replace(peer) != Some(peer) {
                each(peer, self.stats_of(peer));
            }
        }
    }

    /// Total number of repairs sent and received until the last call of [`Plane::take_stats`].
    pub fn repairs(&self) -> u64 {
        self.repairs
    }

    /// Facts of each peer by its name.
    pub fn facts(&self, now: Instant) -> HashMap<String, PeerFacts> {
        let names = self.configs.iter().enumerate();
        names.map(|(peer, config)| (config.name.clone(), self.facts_of(now, peer))).collect()
    }

    /// Facts of a peer, merged from its lanes.
    fn facts_of(&self, now: Instant, peer: usize) -> PeerFacts {
        let lanes = self.peers[self.lanes.peers[peer].owned.clone()].iter();
        let mut facts = PeerFacts::default();
        lanes.for_each(|lane| facts.merge(lane.facts(now)));
        let mut recent = self.others.iter().filter(|(.., at)| now.since(*at) < OTHERS_TTL);
        let from = recent.find(|(from, ..)| Some(*from) == facts.endpoint);
        let other_version = from.map(|(_, version, _)| *version);
        PeerFacts { other_version, slices: self.racks.slices(peer), ..facts }
    }

    /// Calls `each` with the name, the facts, the key and the handshake timestamps of each peer
    /// with an event since the last call.
    pub fn take_facts(
        &mut self,
        now: Instant,
        mut each: impl FnMut(&str, PeerFacts, (PublicKey, Clocks)),
    ) {
        // A datagram of another version counts as an event of the peer at its source, both when it
        // arrives and when it expires.
        for (at, peer) in self.peers.iter().enumerate().filter(|_| !self.others.is_empty()) {
            let endpoint = peer.paths.endpoint.map(|at| at.address);
            if self.others.iter().any(|(from, ..)| Some(*from) == endpoint) {
                self.touched.add(Purpose::Facts, at);
            }
        }
        let mut last = None;
        while let Some(at) = self.touched.pop(Purpose::Facts) {
            let peer = self.peer_of(at);
            if last.replace(peer) != Some(peer) {
                let lanes = self.peers[self.lanes.peers[peer].owned.clone()].iter();
                let clocks = lanes.map(|lane| lane.clocks().1).fold(Clocks::default(), Clocks::max);
                let config = &self.configs[peer];
                each(&config.name, self.facts_of(now, peer), (config.key, clocks));
            }
        }
        self.others.retain(|(.., at)| now.since(*at) < OTHERS_TTL);
    }

    /// Counters of packets and datagrams that do not belong to any peer.
    pub fn plane_stats(&self) -> PlaneStats {
        self.stats
    }

    /// Bytes of memory held for all peers at the last call of [`Plane::handle_timeout`].
    pub fn memory(&self) -> usize {
        self.budget.total()
    }
}
