//! Packet plane of one gateway: all its peers, and the assignment of packets to them.

mod handover;
mod lane_table;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use super::budget::Budget;
use super::clocks::Clocks;
use super::handshake_pace::HandshakePace;
use super::lanes::{LaneCount, Shares};
use super::outbox::Outbox;
use super::peer::{Local, Peer, PeerConfig, PeerError, PeerFacts, Place};
use super::site_table::SiteTable;
use super::stats::PeerStats;
use super::touched::{Purpose, Touched};
use super::transport::Endpoint;
use super::wire::{Datagram, Hint};
use crate::keys::PublicKey;
use crate::time::{Duration, Instant};
use crate::timers::DeadlineQueue;
use crate::wire::ip::Header;
use lane_table::{LaneTable, PeerLanes};

/// Limit of peers of one gateway: their slots fit a session index.
pub const MAX_PEERS: usize = 1 << 12;

/// Limit of lanes of all peers together, for the same reason.
const MAX_ALL_LANES: usize = 1 << 16;

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
    /// Peers, in the order of the config.
    configs: Vec<PeerConfig>,
    /// Lanes of each of them.
    lanes: LaneTable,
    /// Time at which it was found that a peer wants another number of lanes than before.
    lanes_due: Option<Instant>,
    /// Owned lanes of all peers.
    peers: Vec<Peer>,
    /// Index of the peer of each address.
    sites: SiteTable,
    /// Lane of each session index, by its slot.
    slots: HashMap<u16, usize>,
    /// Index of the peer of each initiation, by its hint.
    hints: HashMap<Hint, usize>,
    /// Lanes with an event lately.
    touched: Touched,
    /// Deadlines of the lanes, except for those in `touched`.
    deadlines: DeadlineQueue,
    /// Memory of the lanes.
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
    /// Copies of packets that are not IP, not between two configured sites, or of a lane that
    /// another worker owns.
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
    /// Too many lanes.
    #[error("{0} lanes are too many; at most {MAX_ALL_LANES} fit one gateway: fewer [site] lanes")]
    TooManyLanes(usize),
    /// A peer that cannot be created.
    #[error("peer {0}: {1}")]
    Peer(String, PeerError),
    /// Record of a peer that does not exist.
    #[error("a record of the peer with the key {0}, which is not in the config")]
    Foreign(String),
}

impl Plane {
    /// Creates a plane with the given peers, which owns all of their lanes.
    pub fn new(local: Local, peers: Vec<PeerConfig>, now: Instant) -> Result<Self, PeersError> {
        let shares = Shares::all(local.lanes);
        Plane::with_shares(local, peers, shares, now)
    }

    /// Creates a plane with the given peers, which owns the lanes of some shares.
    pub fn with_shares(
        local: Local,
        peers: Vec<PeerConfig>,
        shares: Shares,
        now: Instant,
    ) -> Result<Self, PeersError> {
        let mut plane = Plane {
            lanes: LaneTable::new(local.lanes, shares),
            local,
            configs: vec![],
            lanes_due: None,
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
        self.rebuild(peers, self.lanes.shares(), now)
    }

    /// Owns the lanes of these shares from now on, and no others. Lanes that were not owned before
    /// begin with a handshake.
    pub fn own(&mut self, shares: Shares, now: Instant) -> Result<(), PeersError> {
        self.rebuild(self.configs.clone(), shares, now)
    }

    /// Shares whose lanes are owned.
    pub fn shares(&self) -> Shares {
        self.lanes.shares()
    }

    fn rebuild(
        &mut self,
        configs: Vec<PeerConfig>,
        shares: Shares,
        now: Instant,
    ) -> Result<(), PeersError> {
        if configs.len() > MAX_PEERS {
            return Err(PeersError::TooMany(configs.len()));
        }
        let lanes = self.lanes_of(&configs, shares);
        let all = lanes.peers.last().map_or(0, |last| last.owned.end);
        if all > MAX_ALL_LANES {
            return Err(PeersError::TooManyLanes(all));
        }
        let of_lanes = configs.iter().zip(&lanes.peers).flat_map(|(config, of)| {
            lanes.owned(of.count).map(|lane| (lane, config.of_lane(of.count)))
        });
        let of_lanes: Vec<_> = of_lanes.collect();
        let budget = Budget::new(of_lanes.iter().map(|(_, config)| config.memory));
        let mut free = (0..=u16::MAX).filter(|slot| !self.slots.contains_key(slot));
        let known = self.peers.iter().enumerate().map(|(at, old)| (old.key_and_lane(), at));
        let known: HashMap<(PublicKey, u8), usize> = known.collect();
        let (mut next, mut taken) = (Vec::new(), HashSet::new());
        for (lane, config) in of_lanes {
            let refused = |error| PeersError::Peer(config.name.clone(), error);
            let stays = known.get(&(config.key, lane)).copied();
            let stays = stays.filter(|at| self.peers[*at].stays(&config) && taken.insert(*at));
            let fresh = match stays {
                Some(_) => config.check().map(|()| None).map_err(refused)?,
                None => {
                    let place = Place {
                        slot: free.next().unwrap_or_default(),
                        lane,
                        memory: budget.limit(),
                    };
                    Some(Peer::new(&self.local, config.clone(), place, now).map_err(refused)?)
                }
            };
            next.push((config, stays, fresh));
        }
        self.remembered = self.clocks();
        // All peers are valid.
        (self.lanes, self.configs) = (lanes, configs);
        let mut old: Vec<_> = std::mem::take(&mut self.peers).into_iter().map(Some).collect();
        let peer = |(config, stays, fresh): (_, Option<usize>, Option<Peer>)| {
            let Some(mut peer) = stays.and_then(|at| old[at].take()) else {
                return fresh.map(|peer| recalled(peer, &self.remembered));
            };
            let changed = peer.change(now, config);
            debug_assert!(changed.is_ok(), "the config was checked: {changed:?}");
            Some(peer)
        };
        self.peers = next.into_iter().filter_map(peer).collect();
        self.keep_counters(old.into_iter().flatten());
        self.budget = budget;
        self.sites = SiteTable::new(self.configs.iter().map(|config| &config.sites));
        self.peers.iter_mut().for_each(|peer| peer.repairs = peer.stats().repairs());
        self.repairs = self.peers.iter().map(|peer| peer.repairs).sum();
        self.enter_slots();
        Ok(())
    }

    /// Lanes of these peers; the counters and wishes of known peers stay.
    fn lanes_of(&self, configs: &[PeerConfig], shares: Shares) -> LaneTable {
        let mut lanes = LaneTable::new(self.local.lanes, shares);
        let known: HashMap<PublicKey, &PeerLanes> =
            self.lanes.peers.iter().map(|of| (of.key, of)).collect();
        let mut first = 0;
        for config in configs {
            let known = known.get(&config.key);
            let peer_wants = known.map_or(LaneCount::ONE, |of| of.peer_wants);
            let count = lanes.in_force(peer_wants);
            let owned = first..first + lanes.owned(count).count();
            first = owned.end;
            let former = known.map_or_else(PeerStats::none, |of| of.former);
            lanes.peers.push(PeerLanes { key: config.key, peer_wants, count, owned, former });
        }
        lanes
    }

    /// Adds the counters of lanes that are no longer owned to those of their peers.
    fn keep_counters(&mut self, former: impl Iterator<Item = Peer>) {
        for lane in former {
            let key = lane.config.key;
            if let Some(of) = self.lanes.peers.iter_mut().find(|of| of.key == key) {
                of.former.merge(&PeerStats { up: true, ..lane.stats() });
            }
        }
    }

    fn enter_slots(&mut self) {
        self.slots = self.peers.iter().enumerate().map(|(at, peer)| (peer.slot, at)).collect();
        let lanes = self.lanes.peers.iter().enumerate().filter(|(_, of)| !of.owned.is_empty());
        let hint = |of: &PeerLanes| self.peers[of.owned.start].session.identities.hint_in;
        self.hints = lanes.map(|(at, of)| (hint(of), at)).collect();
        self.deadlines.clear();
        self.touched.reset(self.peers.len());
    }

    /// Returns the lane for an event.
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
        let former = clocks.len().saturating_sub(self.configs.len());
        if former > MAX_PEERS {
            // The former peers that were heard longest ago are forgotten.
            let present: HashSet<_> = self.configs.iter().map(|config| config.key).collect();
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
        let peers = std::mem::take(&mut self.peers).into_iter();
        self.peers = peers.map(|peer| recalled(peer, &self.remembered)).collect();
    }

    /// Handles a copy, which is overwritten, of a packet that left on the WAN at `left`.
    pub fn handle_outgoing(&mut self, now: Instant, left: Instant, packet: &mut [u8]) {
        let lane = |header: &Header| self.lanes.of_packet(self.sites.leaves(header)?, header);
        match route(packet, lane) {
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
        let lane = |header: &Header| self.lanes.of_packet(self.sites.arrives(header)?, header);
        match route(packet, lane) {
            Some((at, packet)) => self.peer(at).handle_incoming(now, came, packet),
            None => self.stats.ignored += 1,
        }
    }

    /// Notes that the tap missed `missed` outgoing packets; their peers are unknown.
    pub fn miss_outgoing(&mut self, missed: u64) {
        match self.configs.len() {
            1 if !self.peers.is_empty() => self.peer(0).miss_outgoing(missed),
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
        let lane = match Datagram::parse(datagram) {
            Some(Datagram::Initiation { .. } | Datagram::Response { .. }) if self.is_passive => {
                return false;
            }
            Some(Datagram::Transport { lane, receiver, .. }) => self.slot(lane, receiver),
            Some(Datagram::Response { offer, receiver, .. }) => self.slot(offer.lane, receiver),
            Some(Datagram::Initiation { hint, offer, .. }) => match self.hints.get(&hint) {
                Some(&peer) => match self.lanes.find(peer, offer.lane) {
                    // The peer wants more lanes, which a handshake of the first ones will tell.
                    None => return false,
                    found => found,
                },
                None => None,
            },
            None => {
                if let Some(version) = Datagram::other_version(datagram) {
                    self.others.retain(|(source, ..)| *source != from.address);
                    self.others.truncate(MAX_OTHERS - 1);
                    self.others.insert(0, (from.address, version, now));
                }
                None
            }
        };
        let Some(at) = lane else {
            self.stats.stray += 1;
            return false;
        };
        let is_authentic = self.peer(at).handle_datagram(now, from, datagram);
        self.note_wish(now, at);
        is_authentic
    }

    /// Lane of a session index, if it is this one.
    fn slot(&self, lane: u8, index: u32) -> Option<usize> {
        let at = self.slots.get(&(index as u16)).copied();
        at.filter(|at| self.peers[*at].key_and_lane().1 == lane)
    }

    /// Notes how many lanes the peer of a lane wants, as its last handshake told.
    fn note_wish(&mut self, now: Instant, at: usize) {
        let session = &mut self.peers[at].session;
        let Some(wanted) = session.take_wish() else { return };
        let hint = session.identities.hint_in;
        let Some(&peer) = self.hints.get(&hint) else { return };
        let count = self.lanes.in_force(wanted);
        let of = &mut self.lanes.peers[peer];
        of.peer_wants = wanted;
        if count != of.count {
            self.lanes_due.get_or_insert(now);
        }
    }

    /// Changes the number of lanes of peers that want another one.
    fn change_lanes(&mut self, now: Instant) {
        self.lanes_due = None;
        // With too many lanes, the packets of some lanes are not protected.
        let _ = self.rebuild(self.configs.clone(), self.lanes.shares(), now);
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
        touched.chain(self.deadlines.next_deadline()).chain(self.lanes_due).min()
    }

    /// Handles every deadline that has passed. Must be called after events even if none has: the
    /// new deadlines of peers are noted then.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.lanes_due.is_some() {
            self.change_lanes(now);
        }
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
        let names = self.configs.iter().enumerate();
        names.map(|(peer, config)| (config.name.clone(), self.stats_of(peer))).collect()
    }

    /// Counters of a peer: those of all lanes together.
    fn stats_of(&self, peer: usize) -> PeerStats {
        let of = &self.lanes.peers[peer];
        let mut stats = of.former;
        self.peers[of.owned.clone()].iter().for_each(|lane| stats.merge(&lane.stats()));
        stats
    }

    /// Index of the peer of a lane.
    fn peer_of(&self, lane: usize) -> usize {
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

    /// Total of repairs sent and received until the last call of [`Plane::take_stats`].
    pub fn repairs(&self) -> u64 {
        self.repairs
    }

    /// Facts of each peer by its name.
    pub fn facts(&self, now: Instant) -> HashMap<String, PeerFacts> {
        let names = self.configs.iter().enumerate();
        names.map(|(peer, config)| (config.name.clone(), self.facts_of(now, peer))).collect()
    }

    /// Facts of a peer: of all lanes together.
    fn facts_of(&self, now: Instant, peer: usize) -> PeerFacts {
        let lanes = self.peers[self.lanes.peers[peer].owned.clone()].iter();
        let mut facts = PeerFacts::default();
        lanes.for_each(|lane| facts.merge(lane.facts(now)));
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

/// Returns the peer with its clocks from earlier sessions.
fn recalled(mut peer: Peer, remembered: &HashMap<PublicKey, Clocks>) -> Peer {
    if let Some(clocks) = remembered.get(&peer.config.key) {
        peer.session.remember(*clocks);
    }
    peer
}

/// Finds the index of the lane of a packet; returns it with the packet, without the link's padding.
fn route(
    bytes: &mut [u8],
    find: impl FnOnce(&Header) -> Option<usize>,
) -> Option<(usize, &mut [u8])> {
    let header = Header::parse(bytes).ok()?;
    Some((find(&header)?, &mut bytes[..header.total_len]))
}
