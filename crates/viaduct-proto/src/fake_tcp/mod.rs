//! Fake TCP: datagrams between gateways in packets that look like TCP, for networks that drop UDP.
//!
//! ```text
//!   gateway behind NAT               conntrack          gateway with `listen`
//!   send ── SYN ──────────────────▶ [         ] ──────▶ no state: the number of the SYN-ACK is
//!        ◀──────────────── SYN-ACK  [ valid   ] ◀────── a keyed hash
//!        ── data: datagram ───────▶ [ numbers ] ──────▶ authentic: creates a connection
//!        ◀─────────────── datagram  [         ] ◀────── send
//! ```
//!
//! Each segment carries one datagram, preceded by its length. Segments have the sequence and
//! acknowledgement numbers of a TCP connection with a real handshake and large windows, as
//! firewalls expect. There is no retransmission, no ordering and no congestion control: the
//! datagrams need none of these, just as over UDP.
//!
//! After the handshake, only segments with authentic datagrams have an effect. The accepting side
//! creates a connection only once the gateways' session has authenticated a datagram that arrived
//! on it. Resets and FINs are counted and ignored. The session outlives its connections: if a
//! connection that this gateway has opened falls silent, the next datagram opens a replacement from
//! another port. The old connection is used until the replacement's SYN is answered. SYNs are
//! answered without state, at a limited rate.
//!
//! [`FakeTcp`] has all connections of a gateway. `segment` defines the format of segments;
//! `connection` tracks the sequence numbers of a connection.

mod connection;
mod segment;
mod stats;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use highway::{HighwayHash as _, HighwayHasher, Key};

use connection::Connection;
use segment::{emit, next_datagram};

use crate::keys::{Entropy, random};
use crate::repair::Outbox;
use crate::time::{Duration, Instant};
use crate::upgrade::ConnectionRecord;

pub use segment::{Kind, MORE_THAN_UDP, Segment, parse};
pub use stats::FakeTcpStats;

/// Maximum number of connections. At the limit, a new connection replaces the one that has been
/// silent for the longest time.
const MAX_CONNECTIONS: usize = 1 << 13;
/// Maximum number of connections from one address. At the limit, a new connection replaces the one
/// from this address that has been silent for the longest time. Several gateways may share an
/// address behind NAT.
const MAX_PER_HOST: usize = 512;
/// Maximum number of SYNs answered in a second.
const MAX_SYNS: u32 = 2_000;
/// Time without an authentic datagram after which a connection that this gateway has opened is
/// stale. The next datagram then opens a new connection, because a firewall or NAT may have lost
/// its state. Gateways report once a second, and a report may be lost.
const STALE_AFTER: Duration = Duration::from_millis(1_500);
/// Time after a connection's last authentic datagram for which SYNs from the same address and port
/// are not answered.
const LIVE_FOR: Duration = Duration::from_secs(10);
/// Time without an authentic datagram after which a connection is forgotten.
const IDLE_AFTER: Duration = Duration::from_secs(300);
/// Interval of the search for idle connections.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// Addresses and ports that a gateway uses for fake TCP.
#[derive(Clone, Debug)]
pub struct Ports {
    /// Address at which connections are accepted; may be unspecified.
    pub listen: SocketAddr,
    /// Local ports of the connections that this gateway opens, used in rotation; not empty.
    pub sources: Vec<u16>,
    /// MTU of the path, in bytes.
    pub mtu: usize,
}

impl Ports {
    /// Returns whether `address` has one of these ports and the IP address of `listen`.
    fn contains(&self, address: SocketAddr) -> bool {
        let ours = self.listen.ip();
        let is_port = address.port() == self.listen.port();
        (is_port || self.sources.contains(&address.port()))
            && (ours.is_unspecified() || ours == address.ip())
    }

    /// MSS to advertise to `to`.
    fn mss(&self, to: IpAddr) -> u16 {
        let headers = if to.is_ipv4() { 40 } else { 60 };
        u16::try_from(self.mtu.saturating_sub(headers)).unwrap_or(u16::MAX)
    }
}

/// Connections of one gateway. See the drawing in [`self`].
pub struct FakeTcp {
    ports: Ports,
    entropy: Entropy,
    /// Key of the hash that gives the sequence numbers of SYN-ACKs.
    isn_key: Key,
    /// Open connections by the peer's address.
    connections: HashMap<SocketAddr, Connection>,
    /// Connections that are being opened, by the peer's address.
    opening: HashMap<SocketAddr, Connection>,
    /// Index of the next source port.
    source: usize,
    /// Number of SYNs that may still be answered in the current second, and the start of this
    /// second.
    allowance: (u32, Instant),
    sweep_at: Instant,
    /// Earliest deadline of the sweep and of the connections that are being opened.
    due: Instant,
    transmits: Outbox,
    stats: FakeTcpStats,
}

impl FakeTcp {
    /// Creates the state machine, without connections.
    pub fn new(ports: Ports, entropy: Entropy, now: Instant) -> FakeTcp {
        let word = || u64::from_be_bytes(random(&entropy));
        let isn_key = Key([word(), word(), word(), word()]);
        FakeTcp {
            source: usize::from(u16::from_be_bytes(random(&entropy))),
            ports,
            entropy,
            isn_key,
            connections: HashMap::new(),
            opening: HashMap::new(),
            allowance: (MAX_SYNS, now),
            sweep_at: now + SWEEP_EVERY,
            due: now + SWEEP_EVERY,
            transmits: Outbox::new(),
            stats: FakeTcpStats::default(),
        }
    }

    /// Key of the hash that gives the sequence numbers of SYN-ACKs, for the handover to a new
    /// process.
    pub fn isn_key(&self) -> [u64; 4] {
        self.isn_key.0
    }

    /// Open connections, for the handover to a new process.
    pub fn records(&self) -> impl Iterator<Item = ConnectionRecord> {
        self.connections.values().filter_map(Connection::record)
    }

    /// Takes over the key and the open connections of the previous process.
    pub fn resume(&mut self, isn_key: [u64; 4], records: &[ConnectionRecord]) {
        self.isn_key = Key(isn_key);
        let open = |record: &ConnectionRecord| (record.remote, Connection::restored(record));
        self.connections = records.iter().take(MAX_CONNECTIONS).map(open).collect();
        self.opening.clear();
        self.transmits.clear();
    }

    /// Handles a captured packet. Returns false if the packet is not fake TCP to this gateway.
    /// Passes each datagram, with the address of the sender, to `deliver`, which returns whether
    /// the datagram is authentic. The datagrams' bytes may be overwritten.
    pub fn handle_packet(
        &mut self,
        now: Instant,
        packet: &mut [u8],
        deliver: impl FnMut(SocketAddr, &mut [u8]) -> bool,
    ) -> bool {
        let Some((segment, payload)) = parse(packet) else { return false };
        if !self.ports.contains(segment.destination) {
            return false;
        }
        match segment.kind {
            Kind::Syn => self.answer(now, &segment),
            Kind::SynAck => self.handle_syn_ack(now, &segment),
            Kind::Data => self.handle_data(now, &segment, &mut packet[payload], deliver),
            Kind::End => self.stats.resets += 1,
        }
        true
    }

    /// Returns whether an outgoing packet was sent by this state machine.
    pub fn has_sent(&self, packet: &[u8]) -> bool {
        parse(packet).is_some_and(|(segment, _)| self.ports.contains(segment.source))
    }

    /// Returns whether the connection to `to` was opened by this gateway and has been silent for
    /// [`STALE_AFTER`], so that the next datagram must open a replacement.
    pub fn is_stale(&self, now: Instant, to: SocketAddr) -> bool {
        let accepts = self.ports.listen.port();
        !self.opening.contains_key(&to)
            && self.connections.get(&to).is_some_and(|of| {
                of.local.port() != accepts && now.since(of.heard_at) >= STALE_AFTER
            })
    }

    /// Sends a datagram over the connection to `to`. Without a connection the datagram is dropped.
    ///
    /// With `source`, this host's address towards `to`, a connection is opened if there is none, or
    /// if the current one [is stale](FakeTcp::is_stale). A stale connection is used until the new
    /// connection is open. The datagram is sent again once the new connection is open, unless a
    /// later datagram sent with `source` has replaced it.
    pub fn send(&mut self, now: Instant, to: SocketAddr, source: Option<IpAddr>, datagram: &[u8]) {
        let mss = self.ports.mss(to.ip());
        let is_stale = self.is_stale(now, to);
        let present = self.connections.get_mut(&to);
        let (has_one, old_port) = (present.is_some(), present.as_ref().map(|of| of.local.port()));
        if let Some(connection) = present {
            self.stats.sent += u64::from(connection.send(datagram, mss, &mut self.transmits));
        }
        match source.filter(|ip| ip.is_ipv4() == to.is_ipv4()) {
            Some(ip) if is_stale || !has_one || self.opening.contains_key(&to) => {
                self.open(now, (ip, old_port), to, datagram);
            }
            _ => self.stats.unsent += u64::from(!has_one),
        }
    }

    /// Opens a connection from a port other than `old_port`, with `first` as its first datagram. If
    /// a connection to `to` is already being opened, `first` replaces its first datagram.
    fn open(
        &mut self,
        now: Instant,
        (ip, old_port): (IpAddr, Option<u16>),
        to: SocketAddr,
        first: &[u8],
    ) {
        let mss = self.ports.mss(to.ip());
        if let Some(opening) = self.opening.get_mut(&to) {
            opening.send(first, mss, &mut self.transmits);
            return;
        }
        let ports = &self.ports.sources;
        self.source = self.source.wrapping_add(1);
        if old_port == Some(ports[self.source % ports.len()]) {
            self.source = self.source.wrapping_add(1);
        }
        let local = SocketAddr::new(ip, ports[self.source % ports.len()]);
        let isn = u32::from_be_bytes(random(&self.entropy));
        let mut connection = Connection::open(now, (local, to), isn, first);
        connection.handle_timeout(now, mss, &mut self.transmits);
        self.due = connection.poll_timeout().unwrap_or(self.due).min(self.due);
        self.opening.insert(to, connection);
        self.stats.opened += 1;
    }

    /// Packets to send, including their IP headers. The caller clears them with
    /// [`FakeTcp::clear_transmits`] once they are sent.
    pub fn transmits(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.transmits.iter()
    }

    /// Clears the packets to send.
    pub fn clear_transmits(&mut self) {
        self.transmits.clear();
    }

    /// Returns the earliest deadline.
    pub fn poll_timeout(&self) -> Option<Instant> {
        Some(self.due)
    }

    /// Handles every deadline that has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        let FakeTcp { opening, ports, transmits, .. } = self;
        opening
            .retain(|to, connection| connection.handle_timeout(now, ports.mss(to.ip()), transmits));
        if now >= self.sweep_at {
            self.connections.retain(|_, of| now.since(of.heard_at) < IDLE_AFTER);
            self.sweep_at = now + SWEEP_EVERY;
        }
        let opening = self.opening.values().filter_map(Connection::poll_timeout);
        self.due = opening.fold(self.sweep_at, Instant::min);
    }

    /// Counters since the start.
    pub fn stats(&self) -> FakeTcpStats {
        FakeTcpStats { connections: self.connections.len() as u64, ..self.stats }
    }

    /// Answers a SYN. Retransmitted SYNs get equal answers, so that firewalls see one connection.
    fn answer(&mut self, now: Instant, syn: &Segment) {
        self.stats.syns += 1;
        let (left, since) = &mut self.allowance;
        if now.since(*since) >= Duration::from_secs(1) {
            (*left, *since) = (MAX_SYNS, now);
        }
        // If a SYN on a live connection were answered, a firewall would conclude that it had missed
        // the opening of a new connection.
        let known = self.connections.get(&syn.source);
        let is_live = known.is_some_and(|of| now.since(of.heard_at) < LIVE_FOR);
        if *left == 0 || is_live || syn.destination.port() != self.ports.listen.port() {
            self.stats.syns_refused += 1;
            return;
        }
        *left -= 1;
        let answer = Segment {
            source: syn.destination,
            destination: syn.source,
            kind: Kind::SynAck,
            seq: self.isn(syn),
            ack: syn.seq.wrapping_add(1),
            ..*syn
        };
        let mss = self.ports.mss(syn.source.ip());
        self.transmits.push_with(|out| emit(&answer, mss, None, out));
    }

    /// Sequence number of the answer to a SYN: a keyed hash, whose lowest bit is set if windows are
    /// scaled.
    fn isn(&self, syn: &Segment) -> u32 {
        let mut hasher = HighwayHasher::new(self.isn_key);
        for at in [syn.source, syn.destination] {
            match at.ip() {
                IpAddr::V4(ip) => hasher.append(&ip.octets()),
                IpAddr::V6(ip) => hasher.append(&ip.octets()),
            }
            hasher.append(&at.port().to_be_bytes());
        }
        hasher.append(&syn.seq.to_be_bytes());
        (hasher.finalize64() as u32) & !1 | u32::from(syn.scaled)
    }

    fn handle_syn_ack(&mut self, now: Instant, answer: &Segment) {
        let mss = self.ports.mss(answer.source.ip());
        let opening = self.opening.get_mut(&answer.source);
        let is_first =
            opening.is_some_and(|of| of.handle_syn_ack(now, answer, mss, &mut self.transmits));
        self.stats.sent += u64::from(is_first);
        self.stats.refused += u64::from(!is_first);
        if is_first && let Some(connection) = self.opening.remove(&answer.source) {
            self.insert(answer.source, connection);
        }
    }

    fn handle_data(
        &mut self,
        now: Instant,
        segment: &Segment,
        mut payload: &mut [u8],
        mut deliver: impl FnMut(SocketAddr, &mut [u8]) -> bool,
    ) {
        let mut is_authentic = false;
        while let Some(datagram) = next_datagram(&mut payload) {
            self.stats.received += 1;
            is_authentic |= deliver(segment.source, datagram);
        }
        self.stats.refused += u64::from(!payload.is_empty());
        if is_authentic {
            self.follow(now, segment);
        }
    }

    /// Updates the connection of a segment with an authentic datagram. If there is no such
    /// connection, or the segment's numbers do not continue it, a segment to the listening port
    /// creates a new connection.
    fn follow(&mut self, now: Instant, segment: &Segment) {
        let known = self.connections.get_mut(&segment.source);
        if let Some(connection) =
            known.filter(|of| of.local == segment.destination && of.continues(segment))
        {
            connection.handle_data(now, segment);
        } else if segment.destination.port() == self.ports.listen.port() {
            // The acknowledgement is `isn` plus one, unless this gateway has restarted.
            let scaled = segment.ack.wrapping_sub(1) & 1 == 1;
            self.insert(segment.source, Connection::accept(now, segment, scaled));
            self.stats.accepted += 1;
        }
    }

    fn insert(&mut self, remote: SocketAddr, connection: Connection) {
        if !self.connections.contains_key(&remote) {
            let is_same = |at: &SocketAddr| at.ip() == remote.ip();
            let has_many = self.connections.len() >= MAX_PER_HOST
                && self.connections.keys().filter(|at| is_same(at)).count() >= MAX_PER_HOST;
            if has_many || self.connections.len() >= MAX_CONNECTIONS {
                let all = self.connections.iter().filter(|(at, _)| !has_many || is_same(at));
                let oldest = all.min_by_key(|(_, of)| of.heard_at).map(|(at, _)| *at);
                oldest.map(|oldest| self.connections.remove(&oldest));
            }
        }
        self.connections.insert(remote, connection);
    }
}
