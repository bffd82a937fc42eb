//! Packet plane of one gateway: all its peers, and the assignment of packets to them.

mod by_path;
mod delay_line;
mod handover;
mod lane_table;
mod membership;
mod observation;
mod peer_index;
mod racks;

use std::collections::HashMap;
use std::net::SocketAddr;

use super::budget::Budget;
use super::clocks::Clocks;
use super::handshake_pace::HandshakePace;
use super::lanes::Shares;
use super::outbox::Outbox;
use super::peer::{Local, Peer, PeerConfig, PeerError};
use super::racks::Racks;
use super::touched::{Purpose, Touched};
use super::transport::Endpoint;
use super::wire::Datagram;
use crate::keys::PublicKey;
use crate::time::{Duration, Instant};
use crate::timers::DeadlineQueue;
use crate::wire::ip::Header;
pub use by_path::PathChange;
use by_path::Paths;
use lane_table::LaneTable;
use peer_index::PeerIndex;

/// Maximum number of peers of one gateway: with 16 lanes each, they reach the limit of all lanes.
pub const MAX_PEERS: usize = 1 << 12;

/// Maximum number of lanes of all peers together: each lane has a slot, which is the low 16 bits of
/// its session indices.
const MAX_ALL_LANES: usize = 1 << 16;

/// Maximum number of remembered sources that send datagrams of other protocol versions.
const MAX_OTHERS: usize = 16;
/// Time for which such a source is remembered; a running gateway sends again much sooner.
const OTHERS_TTL: Duration = Duration::from_secs(60);
/// Minimum time between two changes of the number of lanes that one peer wants.
const LANES_EVERY: Duration = Duration::from_secs(5);

/// Entry point of the packet plane. See the drawing in [`super`].
///
/// The cost of a packet or datagram does not depend on the number of peers: hash tables find its
/// peer, and only lanes with an event are examined again.
pub struct Plane {
    local: Local,
    /// Peers, in the order of the config.
    configs: Vec<PeerConfig>,
    /// Lanes of each peer.
    lanes: LaneTable,
    /// Owned lanes of all peers.
    peers: Vec<Peer>,
    index: PeerIndex,
    /// Racks whose members are peers.
    racks: Racks,
    /// Lanes with a recent event.
    touched: Touched,
    /// Deadlines of the lanes, except for those in `touched`.
    deadlines: DeadlineQueue,
    /// Memory of the lanes.
    budget: Budget,
    handshake_pace: HandshakePace,
    /// Number of times that the tap missed incoming packets, and the last of these times.
    missed: (u64, Instant),
    /// Total number of repairs sent and received, at the last call of [`Plane::take_stats`].
    repairs: u64,
    /// Handshake timestamps of peers from earlier runs.
    remembered: HashMap<PublicKey, Clocks>,
    /// Sources of datagrams of other protocol versions, latest first.
    others: Vec<(SocketAddr, u8, Instant)>,
    paths: Paths,
    /// True while another process has the sessions, and alone does the handshakes.
    is_passive: bool,
    inject: Outbox,
    /// Buffer for the packet that is encoded.
    symbol: Vec<u8>,
    stats: PlaneStats,
}

/// Counters of packets and datagrams that do not belong to any peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PlaneStats {
    /// Datagrams that do not belong to any session or peer.
    pub stray: u64,
    /// Copies of packets that are not IP, not between two configured sites, or of a lane that
    /// another worker owns.
    pub ignored: u64,
    /// Outgoing packets that the tap missed, if they may have been for any of several peers.
    pub missed: u64,
}

/// Reason why a set of peers was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeersError {
    /// Too many peers.
    #[error("{0} peers are too many; at most {MAX_PEERS} fit one gateway")]
    TooMany(usize),
    /// Too many lanes.
    #[error("{0} lanes are too many: at most {MAX_ALL_LANES} fit; reduce [site] lanes")]
    TooManyLanes(usize),
    /// A peer that cannot be created.
    #[error("peer {0}: {1}")]
    Peer(String, PeerError),
    /// Record of a peer that is not in the config.
    #[error("a record of the peer with the key {0}, which is not in the config")]
    Foreign(String),
}

impl Plane {
    /// Creates a plane that owns all lanes of the given peers.
    pub fn new(local: Local, peers: Vec<PeerConfig>, now: Instant) -> Result<Self, PeersError> {
        let shares = Shares::all(local.lanes);
        Plane::with_shares(local, peers, shares, now)
    }

    /// Creates a plane that owns the lanes of the given shares.
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
            peers: vec![],
            index: PeerIndex::default(),
            racks: Racks::default(),
            touched: Touched::default(),
            deadlines: DeadlineQueue::default(),
            budget: Budget::default(),
            handshake_pace: HandshakePace::new(now),
            missed: (0, now),
            repairs: 0,
            remembered: HashMap::new(),
            others: Vec::new(),
            paths: Paths::default(),
            is_passive: false,
            inject: Outbox::new(),
            symbol: Vec::new(),
            stats: PlaneStats::default(),
        };
        plane.change(peers, now)?;
        Ok(plane)
    }

    /// Returns lane `at` to handle an event, and marks the lane as touched.
    fn peer(&mut self, at: usize) -> &mut Peer {
        self.touched.touch(at);
        let (peer, (count, missed_at)) = (&mut self.peers[at], self.missed);
        if peer.misses != count {
            peer.misses = count;
            peer.receiver.miss(missed_at);
        }
        peer
    }

    /// Handles the copy of a packet that left on the WAN at `left`. Overwrites the copy.
    pub fn handle_outgoing(&mut self, now: Instant, left: Instant, packet: &mut [u8]) {
        let (mut site, path) = (0, self.paths.current);
        let lane = |header: &Header| {
            site = self.index.sites.leaves(header)?;
            let of = |peer| self.lanes.number(peer, header, path);
            let peer = self.racks.to(site, header.destination, of);
            self.lanes.of_packet(peer, header, path)
        };
        match route(packet, lane) {
            Some((at, header, packet)) => {
                self.carry(now, site, &header);
                let mut symbol = std::mem::take(&mut self.symbol);
                self.peer(at).handle_outgoing(now, left, packet, &mut symbol);
                self.symbol = symbol;
            }
            None => self.stats.ignored += 1,
        }
    }

    /// Handles the copy of a packet that arrived from the WAN at `came`. Overwrites the copy.
    pub fn handle_incoming(&mut self, now: Instant, came: Instant, packet: &mut [u8]) {
        let (mut site, path) = (0, self.paths.current);
        let lane = |header: &Header| {
            site = self.index.sites.arrives(header)?;
            let of = |peer| self.lanes.number(peer, header, path);
            let peer = self.racks.from(site, header.destination, of);
            self.lanes.of_packet(peer, header, path)
        };
        match route(packet, lane) {
            Some((at, header, packet)) => {
                self.carry(now, site, &header);
                self.peer(at).handle_incoming(now, came, packet);
            }
            None => self.stats.ignored += 1,
        }
    }

    /// Records that the tap missed `missed` outgoing packets; their peers are unknown.
    pub fn miss_outgoing(&mut self, missed: u64) {
        match self.configs.len() {
            1 if !self.peers.is_empty() => self.peer(0).miss_outgoing(missed),
            _ => self.stats.missed += missed,
        }
    }

    /// Handles drops by this host's own queue in front of the link, which repairs may have caused.
    pub fn handle_own_drops(&mut self, now: Instant) {
        self.peers.iter_mut().for_each(|peer| peer.handle_own_drops(now));
    }

    /// Records that the tap missed incoming packets, whose peers are unknown: for a while, lost
    /// packets cannot be distinguished from packets that the tap missed.
    pub fn miss_incoming(&mut self, now: Instant) {
        // Each lane's receiver is notified at the lane's next event.
        self.missed = (self.missed.0 + 1, now);
    }

    /// Handles the payload of a datagram between gateways; returns whether it is authentic. Also
    /// returns false if the message is ahead of its packets and is therefore handled later.
    /// Overwrites the bytes of the datagram.
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
            Some(Datagram::Initiation { hint, offer, .. }) => match self.index.hints.get(&hint) {
                Some(&peer) => match self.lanes.find(peer, offer.lane) {
                    // The peer wants more lanes; a handshake of one of the first lanes will show
                    // how many.
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
        if self.delay(now, at, from, datagram) {
            return false;
        }
        self.accept(now, at, from, datagram)
    }

    fn accept(&mut self, now: Instant, at: usize, from: Endpoint, datagram: &mut [u8]) -> bool {
        let is_authentic = self.peer(at).handle_datagram(now, from, datagram);
        self.note_wish(now, at);
        self.take_claims(now, at);
        is_authentic
    }

    /// Index of the lane that has this session index; `None` unless the lane's number is `lane`.
    fn slot(&self, lane: u8, index: u32) -> Option<usize> {
        let at = self.index.slots.get(&(index as u16)).copied();
        at.filter(|at| self.peers[*at].key_and_lane().1 == lane)
    }

    /// Records how many lanes the peer of lane `at` wants, according to the lane's last handshake.
    fn note_wish(&mut self, now: Instant, at: usize) {
        let session = &mut self.peers[at].session;
        let Some(wanted) = session.take_wish() else { return };
        let hint = session.identities.hint_in;
        let Some(&peer) = self.index.hints.get(&hint) else { return };
        let count = self.lanes.in_force(wanted);
        let of = &mut self.lanes.peers[peer];
        if of.by_path {
            return;
        }
        of.peer_wants = wanted;
        if count != of.count {
            let due = now.max(of.free_at);
            self.lanes.due = Some(self.lanes.due.map_or(due, |at| at.min(due)));
        }
    }

    /// Changes the number of lanes of each peer that wants another number.
    fn change_lanes(&mut self, now: Instant) {
        self.lanes.due = None;
        // With too many lanes nothing changes, and the packets of some lanes are not protected.
        let _ = self.rebuild(self.configs.clone(), self.lanes.shares(), now);
    }

    /// Datagrams to send, with destinations. The caller clears them with [`Plane::clear_transmits`]
    /// once they are sent.
    pub fn transmits(&self) -> impl Iterator<Item = (Endpoint, &[u8])> {
        let peers = || self.touched.iter(Purpose::Datagrams).map(|at| &self.peers[at]);
        let handshakes = peers().flat_map(|peer| &peer.handshakes);
        let handshakes = handshakes.map(|(to, message)| (*to, &message[..]));
        let others = peers().filter_map(|peer| Some((peer.paths.endpoint?, &peer.transmits)));
        let probes = peers().filter_map(Peer::probes);
        handshakes.chain(probes.chain(others).flat_map(|(endpoint, transmits)| {
            transmits.iter().map(move |datagram| (endpoint, datagram))
        }))
    }

    /// Clears the datagrams to send.
    pub fn clear_transmits(&mut self) {
        while let Some(at) = self.touched.pop(Purpose::Datagrams) {
            self.peers[at].clear_transmits();
        }
    }

    /// Recovered packets, to be forwarded as if they had just arrived. The caller then clears them.
    pub fn injections(&mut self) -> &mut Outbox {
        &mut self.inject
    }

    /// Returns the earliest deadline.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let touched = self.touched.iter(Purpose::Deadline);
        let touched = touched.filter_map(|at| self.peers[at].poll_timeout());
        let of_racks = self.racks.poll_timeout();
        let others = [self.lanes.due, self.paths.poll_timeout(), of_racks];
        touched.chain(self.deadlines.next_deadline()).chain(others.into_iter().flatten()).min()
    }

    /// Handles every deadline that has passed. Must be called after events even if no deadline has
    /// passed, because this call records the new deadlines of lanes.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.lanes.due.is_some_and(|due| due <= now) {
            self.change_lanes(now);
        }
        if self.racks.is_due(now) {
            self.look_at_racks(now);
        }
        self.release(now);
        self.watch_paths(now);
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

    /// Records the deadlines of lanes with an event and the memory that they hold; frees memory
    /// above the limit.
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
}

/// Actions of a malicious peer that has the right keys, for the fuzz targets.
#[cfg(fuzzing)]
impl Plane {
    /// Handles `message` as if the first peer had sealed it.
    pub fn handle_opened(&mut self, now: Instant, message: &[u8]) {
        if !self.peers.is_empty() {
            self.peer(0).handle_message(now, message);
            self.take_claims(now, 0);
        }
    }

    /// Symbol in repairs of a normalised packet that left with these mutable fields.
    pub fn symbol(
        &self,
        normalised: &[u8],
        fields: crate::wire::ip::MutableFields,
    ) -> Option<Vec<u8>> {
        let identity = self.name(normalised)?;
        Some([&super::prefix::emit(identity, fields)[..], normalised].concat())
    }

    /// Name of a normalised packet between the first peer and this site.
    pub fn name(&self, normalised: &[u8]) -> Option<super::identity::Identity> {
        self.peers.first().map(|peer| peer.name(normalised))
    }
}

/// Returns the index of a packet's lane, as found by `find`, with the packet's header and the
/// packet without the link's padding.
fn route(
    bytes: &mut [u8],
    find: impl FnOnce(&Header) -> Option<usize>,
) -> Option<(usize, Header, &mut [u8])> {
    let header = Header::parse(bytes).ok()?;
    let (at, length) = (find(&header)?, header.total_len);
    Some((at, header, &mut bytes[..length]))
}
