//! Packet plane of one gateway: all its peers, and the assignment of packets to them.

mod handover;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use super::budget::Budget;
use super::clocks::Clocks;
use super::handshake_pace::HandshakePace;
use super::outbox::Outbox;
use super::peer::{Local, Peer, PeerConfig, PeerError, PeerFacts};
use super::site_table::SiteTable;
use super::stats::PeerStats;
use super::touched::{Purpose, Touched};
use super::transport::Endpoint;
use super::wire::{Datagram, Hint};
use crate::keys::PublicKey;
use crate::time::{Duration, Instant};
use crate::timers::DeadlineQueue;
use crate::wire::ip::Header;

/// Limit of peers of one gateway: their slots fit a session index.
pub const MAX_PEERS: usize = 1 << 12;

/// Limit of remembered sources of datagrams of other protocol versions.
const MAX_OTHERS: usize = 16;
/// Time for which such a source is remembered; a running gateway sends again much sooner.
const OTHERS_TTL: Duration = Duration::from_secs(60);

/// Entry point of the packet plane. See the drawing in [`super`].
///
/// The cost of an event does not depend on the number of peers: its peer is found by hash, and only
/// peers with an event are looked at again.
pub struct Plane {
    local: Local,
    peers: Vec<Peer>,
    /// Peer of each address.
    sites: SiteTable,
    /// Peer of each session index, by its slot.
    slots: HashMap<u16, usize>,
    /// Peer of each initiation, by its hint.
    hints: HashMap<Hint, usize>,
    /// Peers with an event lately.
    touched: Touched,
    /// Deadlines of the peers, except for those in `touched`.
    deadlines: DeadlineQueue,
    /// Memory of the peers.
    budget: Budget,
    handshake_pace: HandshakePace,
    /// Number of times that the tap missed incoming packets, and the last time.
    missed: (u64, Instant),
    /// Total of repairs sent and received, of peers whose counters were taken.
    repairs: u64,
    /// Clocks of peers from earlier runs.
    remembered: HashMap<PublicKey, Clocks>,
    /// Sources of datagrams of other protocol versions, latest first.
    others: Vec<(SocketAddr, u8, Instant)>,
    /// Another process has the sessions: handshakes are left to it.
    is_passive: bool,
    inject: Outbox,
    /// Buffer for the packet that is encoded.
    symbol: Vec<u8>,
    stats: PlaneStats,
}

/// Counters of packets and datagrams that belong to no peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PlaneStats {
    /// Datagrams that belong to no session or peer.
    pub stray: u64,
    /// Copies of packets that are not IP, or not between two configured sites.
    pub ignored: u64,
    /// Outgoing packets that the tap missed, if several peers may have been their destination.
    pub missed: u64,
}

/// Reason why a set of peers is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeersError {
    /// Too many peers.
    #[error("{0} peers are too many; at most {MAX_PEERS} fit one gateway")]
    TooMany(usize),
    /// A peer that cannot be created.
    #[error("peer {0}: {1}")]
    Peer(String, PeerError),
    /// Record of a peer that does not exist.
    #[error("a record of the peer with the key {0}, which is not in the config")]
    Foreign(String),
}

impl Plane {
    /// Creates a plane with the given peers.
    pub fn new(local: Local, peers: Vec<PeerConfig>, now: Instant) -> Result<Self, PeersError> {
        let mut plane = Plane {
            local,
            peers: vec![],
            sites: SiteTable::default(),
            slots: HashMap::new(),
            hints: HashMap::new(),
            touched: Touched::default(),
            deadlines: DeadlineQueue::default(),
            budget: Budget::default(),
            handshake_pace: HandshakePace::new(now),
            missed: (0, now),
            repairs: 0,
            remembered: HashMap::new(),
            others: Vec::new(),
            is_passive: false,
            inject: Outbox::new(),
            symbol: Vec::new(),
            stats: PlaneStats::default(),
        };
        plane.change(peers, now)?;
        Ok(plane)
    }

    /// Replaces the set of peers, completely or not at all. Peers that stay keep their sessions and
    /// received packets.
    pub fn change(&mut self, peers: Vec<PeerConfig>, now: Instant) -> Result<(), PeersError> {
        if peers.len() > MAX_PEERS {
            return Err(PeersError::TooMany(peers.len()));
        }
        let budget = Budget::new(peers.iter().map(|config| config.memory));
        let mut free = (0..=u16::MAX).filter(|slot| !self.slots.contains_key(slot));
        let known = self.peers.iter().enumerate().map(|(at, old)| (old.config.key, at));
        let known: HashMap<PublicKey, usize> = known.collect();
        let (mut next, mut taken) = (Vec::new(), HashSet::new());
        for config in peers {
            let refused = |error| PeersError::Peer(config.name.clone(), error);
            let stays = known.get(&config.key).copied();
            let stays = stays.filter(|at| self.peers[*at].stays(&config) && taken.insert(*at));
            let fresh = match stays {
                Some(_) => config.check().map(|()| None).map_err(refused)?,
                None => {
                    let slot = free.next().unwrap_or_default();
                    let memory = budget.limit();
                    let peer = Peer::new(&self.local, config.clone(), (slot, memory), now);
                    Some(peer.map_err(refused)?)
                }
            };
            next.push((config, stays, fresh));
        }
        self.remembered = self.clocks();
        // All peers are valid.
        let mut old: Vec<_> = std::mem::take(&mut self.peers).into_iter().map(Some).collect();
        let peer = |(config, stays, fresh): (_, Option<usize>, _)| {
            let Some(mut peer) = stays.and_then(|at| old[at].take()) else { return fresh };
            let changed = peer.change(now, config);
            debug_assert!(changed.is_ok(), "the config was checked: {changed:?}");
            Some(peer)
        };
        self.peers = next.into_iter().filter_map(peer).collect();
        self.budget = budget;
        self.sites = SiteTable::new(self.peers.iter().map(|peer| &peer.config.sites));
        self.peers.iter_mut().for_each(|peer| peer.repairs = peer.stats().repairs());
        self.repairs = self.peers.iter().map(|peer| peer.repairs).sum();
        self.enter_slots();
        self.hints = self
            .peers
            .iter()
            .enumerate()
            .map(|(at, peer)| (peer.session.identities.hint_in, at))
            .collect();
        self.recall();
        Ok(())
    }

    fn enter_slots(&mut self) {
        self.slots = self.peers.iter().enumerate().map(|(at, peer)| (peer.slot, at)).collect();
        self.deadlines.clear();
        self.touched.reset(self.peers.len());
    }

    /// Returns the peer for an event.
    fn peer(&mut self, at: usize) -> &mut Peer {
        self.touched.touch(at);
        let (peer, (count, missed_at)) = (&mut self.peers[at], self.missed);
        if peer.misses != count {
            peer.misses = count;
            peer.receiver.miss(missed_at);
        }
        peer
    }

    /// Clocks of present and former peers, to be kept over a restart.
    pub fn clocks(&self) -> HashMap<PublicKey, Clocks> {
        let mut clocks = self.remembered.clone();
        for (key, of) in self.peers.iter().map(Peer::clocks) {
            let before = clocks.entry(key).or_default();
            *before = before.max(of);
        }
        clocks.retain(|_, of| *of != Clocks::default());
        let former = clocks.len().saturating_sub(self.peers.len());
        if former > MAX_PEERS {
            // The former peers that were heard longest ago are forgotten.
            let present: HashSet<_> = self.peers.iter().map(|peer| peer.config.key).collect();
            let mut oldest: Vec<_> = clocks
                .iter()
                .filter(|(key, _)| !present.contains(*key))
                .map(|(key, of)| (of.heard.max(of.sent), *key))
                .collect();
            oldest.sort_unstable_by_key(|(latest, _)| *latest);
            let many = oldest.len().saturating_sub(MAX_PEERS);
            for (_, key) in oldest.iter().take(many) {
                clocks.remove(key);
            }
        }
        clocks
    }

    /// Takes over the clocks of an earlier run.
    pub fn remember(&mut self, clocks: HashMap<PublicKey, Clocks>) {
        self.remembered = clocks;
        self.recall();
    }

    fn recall(&mut self) {
        for peer in &mut self.peers {
            if let Some(clocks) = self.remembered.get(&peer.config.key) {
                peer.session.remember(*clocks);
            }
        }
    }

    /// Handles a copy, which is overwritten, of a packet that left on the WAN at `left`.
    pub fn handle_outgoing(&mut self, now: Instant, left: Instant, packet: &mut [u8]) {
        match route(packet, |header| self.sites.leaves(header)) {
            Some((at, packet)) => {
                let mut symbol = std::mem::take(&mut self.symbol);
                self.peer(at).handle_outgoing(now, left, packet, &mut symbol);
                self.symbol = symbol;
            }
            None => self.stats.ignored += 1,
        }
    }

    /// Handles a copy, which is overwritten, of a packet that came from the WAN at `came`.
    pub fn handle_incoming(&mut self, now: Instant, came: Instant, packet: &mut [u8]) {
        match route(packet, |header| self.sites.arrives(header)) {
            Some((at, packet)) => self.peer(at).handle_incoming(now, came, packet),
            None => self.stats.ignored += 1,
        }
    }

    /// Notes that the tap missed `missed` outgoing packets; their peers are unknown.
    pub fn miss_outgoing(&mut self, missed: u64) {
        match self.peers.len() {
            1 => self.peer(0).miss_outgoing(missed),
            _ => self.stats.missed += missed,
        }
    }

    /// Handles drops, perhaps due to repairs, of this host's own queue in front of the link.
    pub fn handle_own_drops(&mut self, now: Instant) {
        self.peers.iter_mut().for_each(|peer| peer.handle_own_drops(now));
    }

    /// Notes that the tap missed incoming packets, whose peers are unknown: for a while, lost
    /// packets cannot be distinguished from packets that the tap missed.
    pub fn miss_incoming(&mut self, now: Instant) {
        // Each peer is told at its next event.
        self.missed = (self.missed.0 + 1, now);
    }

    /// Handles the payload of a datagram between gateways; returns whether it is authentic. Its
    /// bytes are overwritten.
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        from: impl Into<Endpoint>,
        datagram: &mut [u8],
    ) -> bool {
        let from = from.into();
        let peer = match Datagram::parse(datagram) {
            Some(Datagram::Initiation { .. } | Datagram::Response { .. }) if self.is_passive => {
                return false;
            }
            Some(Datagram::Transport { receiver, .. } | Datagram::Response { receiver, .. }) => {
                self.slots.get(&(receiver as u16)).copied()
            }
            Some(Datagram::Initiation { hint, .. }) => self.hints.get(&hint).copied(),
            None => {
                if let Some(version) = Datagram::other_version(datagram) {
                    self.others.retain(|(source, ..)| *source != from.address);
                    self.others.truncate(MAX_OTHERS - 1);
                    self.others.insert(0, (from.address, version, now));
                }
                None
            }
        };
        match peer {
            Some(at) => self.peer(at).handle_datagram(now, from, datagram),
            None => {
                self.stats.stray += 1;
                false
            }
        }
    }

    /// Datagrams to send, with destinations; [`Plane::clear_transmits`] clears them once sent.
    pub fn transmits(&self) -> impl Iterator<Item = (Endpoint, &[u8])> {
        let peers = || self.touched.iter(Purpose::Datagrams).map(|at| &self.peers[at]);
        let handshakes = peers().flat_map(|peer| &peer.handshakes);
        let handshakes = handshakes.map(|(to, message)| (*to, &message[..]));
        let others = peers().filter_map(|peer| Some((peer.paths.endpoint?, &peer.transmits)));
        handshakes.chain(others.flat_map(|(endpoint, transmits)| {
            transmits.iter().map(move |datagram| (endpoint, datagram))
        }))
    }

    /// Drops the datagrams to send.
    pub fn clear_transmits(&mut self) {
        while let Some(at) = self.touched.pop(Purpose::Datagrams) {
            let peer = &mut self.peers[at];
            peer.transmits.clear();
            peer.handshakes.clear();
        }
    }

    /// Recovered packets, to be forwarded as if they had just arrived; clear them when done.
    pub fn injections(&mut self) -> &mut Outbox {
        &mut self.inject
    }

    /// The earliest deadline.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let touched = self.touched.iter(Purpose::Deadline);
        let touched = touched.filter_map(|at| self.peers[at].poll_timeout());
        touched.chain(self.deadlines.next_deadline()).min()
    }

    /// Handles every deadline that has passed. Must be called after events even if none has: the
    /// new deadlines of peers are noted then.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.note_deadlines();
        let expired: Vec<_> = std::iter::from_fn(|| self.deadlines.poll_expired(now)).collect();
        for &at in &expired {
            self.peer(at);
            self.peers[at].handle_timeout(now, &mut self.inject, &mut self.handshake_pace);
        }
        if !expired.is_empty() {
            self.note_deadlines();
        }
    }

    /// Notes the deadlines of peers with an event, and the memory that they hold.
    fn note_deadlines(&mut self) {
        while let Some(at) = self.touched.pop(Purpose::Deadline) {
            self.deadlines.set(at, self.peers[at].poll_timeout());
            self.note_memory(at);
        }
        while let Some(at) = self.budget.debtor() {
            self.peers[at].shed();
            self.note_memory(at);
        }
    }

    fn note_memory(&mut self, at: usize) {
        let peer = &self.peers[at];
        self.budget.note(at, peer.held(), peer.sheddable(), peer.is_idle());
    }

    /// Packets from the peers' sites in the local cache (paper, 4.5), newest first for each
    /// peer, in normalised form.
    pub fn cached(&self) -> impl Iterator<Item = &[u8]> {
        self.peers.iter().flat_map(|peer| peer.receiver.cached())
    }

    /// Counters of each peer, in the order of the config.
    pub fn stats(&self) -> Vec<(String, PeerStats)> {
        self.peers.iter().map(|peer| (peer.config.name.clone(), peer.stats())).collect()
    }

    /// Calls `each` with the index in the config and the counters of each peer with an event since
    /// the last call.
    pub fn take_stats(&mut self, mut each: impl FnMut(usize, PeerStats)) {
        while let Some(at) = self.touched.pop(Purpose::Counters) {
            let peer = &mut self.peers[at];
            let stats = peer.stats();
            let before = std::mem::replace(&mut peer.repairs, stats.repairs());
            self.repairs += stats.repairs() - before;
            each(at, stats);
        }
    }

    /// Total of repairs sent and received until the last call of [`Plane::take_stats`].
    pub fn repairs(&self) -> u64 {
        self.repairs
    }

    /// Facts of each peer by its name.
    pub fn facts(&self, now: Instant) -> HashMap<String, PeerFacts> {
        let facts = |peer: &Peer| (peer.config.name.clone(), self.facts_of(now, peer));
        self.peers.iter().map(facts).collect()
    }

    fn facts_of(&self, now: Instant, peer: &Peer) -> PeerFacts {
        let facts = peer.facts(now);
        let mut recent = self.others.iter().filter(|(.., at)| now.since(*at) < OTHERS_TTL);
        let from = recent.find(|(from, ..)| Some(*from) == facts.endpoint);
        PeerFacts { other_version: from.map(|(_, version, _)| *version), ..facts }
    }

    /// Calls `each` with the name, the facts and the clocks of each peer with an event since the
    /// last call.
    pub fn take_facts(
        &mut self,
        now: Instant,
        mut each: impl FnMut(&str, PeerFacts, (PublicKey, Clocks)),
    ) {
        // A datagram of another version, or its end, is an event of the peer at its source.
        for (at, peer) in self.peers.iter().enumerate().filter(|_| !self.others.is_empty()) {
            let endpoint = peer.paths.endpoint.map(|at| at.address);
            if self.others.iter().any(|(from, ..)| Some(*from) == endpoint) {
                self.touched.add(Purpose::Facts, at);
            }
        }
        while let Some(at) = self.touched.pop(Purpose::Facts) {
            let peer = &self.peers[at];
            each(&peer.config.name, self.facts_of(now, peer), peer.clocks());
        }
        self.others.retain(|(.., at)| now.since(*at) < OTHERS_TTL);
    }

    /// Counters of packets and datagrams that belong to no peer.
    pub fn plane_stats(&self) -> PlaneStats {
        self.stats
    }

    /// Bytes of memory held for all peers at the last call of [`Plane::handle_timeout`].
    pub fn memory(&self) -> usize {
        self.budget.total()
    }
}

/// Actions of a malicious peer that has the right keys, for the fuzz targets.
#[cfg(fuzzing)]
impl Plane {
    /// Handles `message` as if the first peer had sealed it.
    pub fn handle_opened(&mut self, now: Instant, message: &[u8]) {
        if let Some(peer) = self.peers.first_mut() {
            peer.handle_message(now, message);
        }
    }

    /// Name of a normalised packet between the first peer and this site.
    pub fn name(&self, normalised: &[u8]) -> Option<super::identity::Identity> {
        self.peers.first().map(|peer| peer.name(normalised))
    }
}

/// Finds the index of the peer of a packet; returns it with the packet, without the link's padding.
fn route(
    bytes: &mut [u8],
    find: impl FnOnce(&Header) -> Option<usize>,
) -> Option<(usize, &mut [u8])> {
    let header = Header::parse(bytes).ok()?;
    Some((find(&header)?, &mut bytes[..header.total_len]))
}
