//! Packet plane of one gateway: all its peers, and the assignment of packets to them.

mod handover;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use super::clocks::Clocks;
use super::outbox::Outbox;
use super::peer::{Local, Peer, PeerConfig, PeerError, PeerFacts};
use super::stats::PeerStats;
use super::transport::Endpoint;
use super::wire::{Datagram, Hint};
use crate::keys::PublicKey;
use crate::time::{Duration, Instant};
use crate::wire::ip::Header;

/// Limit of peers of one gateway: their slots fit a session index.
pub const MAX_PEERS: usize = 1 << 12;

/// Limit of remembered sources of datagrams of other protocol versions.
const MAX_OTHERS: usize = 16;
/// Time for which such a source is remembered; a running gateway sends again much sooner.
const OTHERS_TTL: Duration = Duration::from_secs(60);

/// Entry point of the packet plane. See the drawing in [`super`].
pub struct Plane {
    local: Local,
    peers: Vec<Peer>,
    /// Peer of each session index, by its slot.
    slots: HashMap<u16, usize>,
    /// Peer of each initiation, by its hint.
    hints: HashMap<Hint, usize>,
    /// Clocks of peers from earlier runs.
    remembered: HashMap<PublicKey, Clocks>,
    /// Sources of datagrams of other protocol versions, latest first.
    others: Vec<(SocketAddr, u8, Instant)>,
    /// Another process has the sessions: handshakes are left to it.
    is_passive: bool,
    inject: Outbox,
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
            slots: HashMap::new(),
            hints: HashMap::new(),
            remembered: HashMap::new(),
            others: Vec::new(),
            is_passive: false,
            inject: Outbox::new(),
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
        let mut free = (0..=u16::MAX).filter(|slot| !self.slots.contains_key(slot));
        let (mut next, mut taken) = (Vec::new(), HashSet::new());
        for config in peers {
            let refused = |error| PeersError::Peer(config.name.clone(), error);
            let stays = self.peers.iter().position(|old| old.stays(&config));
            let stays = stays.filter(|at| taken.insert(*at));
            let fresh = match stays {
                Some(_) => config.check().map(|()| None).map_err(refused)?,
                None => {
                    let slot = free.next().unwrap_or_default();
                    Some(Peer::new(&self.local, config.clone(), slot, now).map_err(refused)?)
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
    }

    /// Clocks of present and former peers, to be kept over a restart.
    pub fn clocks(&self) -> HashMap<PublicKey, Clocks> {
        let mut clocks = self.remembered.clone();
        for (key, of) in self.peers.iter().map(Peer::clocks) {
            let before = clocks.entry(key).or_default();
            *before = before.max(of);
        }
        clocks.retain(|_, of| *of != Clocks::default());
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
        match route(&mut self.peers, packet, |peer, header| peer.config.sites.leaves(header)) {
            Some((peer, packet)) => peer.handle_outgoing(now, left, packet),
            None => self.stats.ignored += 1,
        }
    }

    /// Handles a copy, which is overwritten, of a packet that came from the WAN at `came`.
    pub fn handle_incoming(&mut self, now: Instant, came: Instant, packet: &mut [u8]) {
        match route(&mut self.peers, packet, |peer, header| peer.config.sites.arrives(header)) {
            Some((peer, packet)) => peer.handle_incoming(now, came, packet),
            None => self.stats.ignored += 1,
        }
    }

    /// Notes that the tap missed `missed` outgoing packets; their peers are unknown.
    pub fn miss_outgoing(&mut self, missed: u64) {
        match &mut self.peers[..] {
            [only] => only.miss_outgoing(missed),
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
        self.peers.iter_mut().for_each(|peer| peer.receiver.miss(now));
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
                self.slots.get(&(receiver as u16)).map(|&at| &mut self.peers[at])
            }
            Some(Datagram::Initiation { hint, .. }) => {
                self.hints.get(&hint).map(|&at| &mut self.peers[at])
            }
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
            Some(peer) => peer.handle_datagram(now, from, datagram),
            None => {
                self.stats.stray += 1;
                false
            }
        }
    }

    /// Datagrams to send, with destinations; [`Plane::clear_transmits`] clears them once sent.
    pub fn transmits(&self) -> impl Iterator<Item = (Endpoint, &[u8])> {
        let handshakes = self.peers.iter().flat_map(|peer| &peer.handshakes);
        let handshakes = handshakes.map(|(to, message)| (*to, &message[..]));
        let others =
            self.peers.iter().filter_map(|peer| Some((peer.paths.endpoint?, &peer.transmits)));
        handshakes.chain(others.flat_map(|(endpoint, transmits)| {
            transmits.iter().map(move |datagram| (endpoint, datagram))
        }))
    }

    /// Drops the datagrams to send.
    pub fn clear_transmits(&mut self) {
        for peer in &mut self.peers {
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
        self.peers.iter().map(Peer::poll_timeout).min()
    }

    /// Handles every deadline that has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        for peer in self.peers.iter_mut().filter(|peer| peer.poll_timeout() <= now) {
            peer.handle_timeout(now, &mut self.inject);
        }
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

    /// Total of repairs sent and received.
    pub fn repairs(&self) -> u64 {
        let repairs = |peer: &Peer| peer.stats().sender.repairs + peer.stats().receiver.repairs;
        self.peers.iter().map(repairs).sum()
    }

    /// Facts of each peer by its name.
    pub fn facts(&self, now: Instant) -> HashMap<String, PeerFacts> {
        let version = |endpoint: Option<SocketAddr>| {
            let mut recent = self.others.iter().filter(|(.., at)| now.since(*at) < OTHERS_TTL);
            let from = recent.find(|(from, ..)| Some(*from) == endpoint);
            from.map(|(_, version, _)| *version)
        };
        let facts = |peer: &Peer| {
            let facts = peer.facts(now);
            PeerFacts { other_version: version(facts.endpoint), ..facts }
        };
        self.peers.iter().map(|peer| (peer.config.name.clone(), facts(peer))).collect()
    }

    /// Counters of packets and datagrams that belong to no peer.
    pub fn plane_stats(&self) -> PlaneStats {
        self.stats
    }

    /// Bytes of memory held for all peers.
    pub fn memory(&self) -> usize {
        self.peers.iter().map(Peer::memory).sum()
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

/// Finds the peer of a packet; returns it with the packet, without the link's padding.
fn route<'a, 'b>(
    peers: &'a mut [Peer],
    bytes: &'b mut [u8],
    belongs: impl Fn(&Peer, &Header) -> bool,
) -> Option<(&'a mut Peer, &'b mut [u8])> {
    let header = Header::parse(bytes).ok()?;
    let peer = peers.iter_mut().find(|peer| belongs(peer, &header))?;
    Some((peer, &mut bytes[..header.total_len]))
}
