//! Path of a datagram in either direction: read, check against the rules, hold until due, release.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd as _;

use tracing::debug;
use viaduct_proto::flow::datagrams::{Direction, Ends, Taken};
use viaduct_proto::wire::datagram::{Datagram, MAX_QUOTED, emit, undelivered};
use viaduct_proto::wire::ip::{self, MutableFields};
use viaduct_proto::wrap::{Fate, Transport};
use viaduct_sys::socket::error_queue::take_error_of;
use viaduct_sys::socket::hop_fields::{self, HopFields};

use super::host_sockets::HostSocket;
use super::{DNS, State, UserUdp, now};
use crate::run::report::FlowOutcome;

/// Maximum number of datagrams held at a time, and of their bytes in total.
const MAX_WAITING: usize = 16_384;
const MAX_BYTES: usize = 32 << 20;
/// Maximum number of datagrams read from one source before other sources are served.
const MAX_READS: usize = 64;
/// Default hop limit (TTL) in the capture namespace.
const DEFAULT_HOP_LIMIT: u8 = 64;

/// A datagram that waits for its release time.
pub(super) struct HeldDatagram {
    pub(super) direction: Direction,
    pub(super) ends: Ends,
    pub(super) bytes: Vec<u8>,
    /// Hop limit and traffic class, if they differ from the defaults.
    pub(super) fields: HopFields,
}

impl UserUdp {
    /// Reads datagrams that programs have sent.
    pub(super) fn read_namespace(
        &self,
        read: impl Fn(&mut [u8]) -> io::Result<usize>,
        packet: &mut [u8],
    ) {
        for _ in 0..MAX_READS {
            let Ok(length) = read(packet) else { return };
            let Some((datagram, payload)) = Datagram::split(&packet[..length]) else { continue };
            let Datagram { source: own, destination: peer, bytes } = datagram;
            // A fragment of a longer datagram is dropped.
            if payload.len() < bytes {
                continue;
            }
            let (direction, ends) = (Direction::Out, Ends { own, peer });
            let (bytes, fields) = (payload.to_vec(), fields_of(&packet[..length]));
            self.handle_datagram(HeldDatagram { direction, ends, bytes, fields });
        }
    }

    /// Reads datagrams that relays have delivered.
    pub(super) fn read_relays(&self) {
        let (mut received, mut state) = (Vec::new(), self.state());
        if let Some(relays) = &mut state.relays {
            relays.receive(now(), |ends, bytes| received.push((ends, bytes.to_vec())));
        }
        let (direction, fields) = (Direction::Back, HopFields::default());
        for (ends, bytes) in received {
            // Only datagrams of peers to which the program's datagrams go through the relay are
            // accepted.
            match state.rules.fate(Transport::Udp, ends.peer) {
                Fate::Divert => state.hold(HeldDatagram { direction, ends, bytes, fields }),
                Fate::Leave | Fate::Refuse => state.lost[1] += 1,
            }
        }
    }

    /// Reads datagrams and errors of a host socket.
    pub(super) fn read_host_socket(&self, number: u64, packet: &mut [u8]) {
        let (host_socket, from) = {
            let state = self.state();
            (state.host_sockets.list.get(&number).cloned(), state.own.clone())
        };
        let Some(HostSocket { socket, at, port, .. }) = host_socket else { return };
        let own = |peer: IpAddr| SocketAddr::new(from.towards(at.of(peer), peer), port);
        let mut quoted = [0; MAX_QUOTED];
        while let Some((error, length)) = take_error_of(socket.as_fd(), &mut quoted) {
            let quoted = &quoted[..length];
            self.write(&undelivered(own(error.to.ip()), error.to, error.why, quoted));
        }
        for _ in 0..MAX_READS {
            let (length, peer, fields) = match hop_fields::receive_from(socket.as_fd(), packet) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // This is the error of an earlier datagram that was not delivered.
                Err(_) => continue,
            };
            let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
            let (direction, ends) = (Direction::Back, Ends { own: own(peer.ip()), peer });
            let bytes = packet[..length].to_vec();
            self.handle_datagram(HeldDatagram { direction, ends, bytes, fields });
        }
    }

    fn handle_datagram(&self, held: HeldDatagram) {
        let mut state = self.state();
        if let (Some(names), Direction::Out, DNS) =
            (&state.names, held.direction, held.ends.peer.port())
        {
            let Ends { own, peer } = held.ends;
            let packet = names.answer_to(&held.bytes).and_then(|answer| emit(peer, own, &answer));
            if let Some(packet) = packet {
                self.write(&packet);
            }
            return;
        }
        let by_relay_alone = state.relays.as_ref().is_some_and(|relays| !relays.may_go_direct());
        match state.rules.fate(Transport::Udp, held.ends.peer) {
            // Datagrams to this peer go only through the relay, so a datagram that has bypassed the
            // relay is dropped.
            Fate::Divert if held.direction == Direction::Back && by_relay_alone => {
                state.lost[1] += 1;
            }
            Fate::Divert => state.hold(held),
            Fate::Leave => {
                if let (Some(report), Direction::Out) = (&state.report, held.direction) {
                    report.count(FlowOutcome::Direct, "udp", held.ends.peer);
                }
                self.release(&mut state, &held);
            }
            // The datagram is dropped. The program's sends to this peer already fail in their
            // system calls.
            Fate::Refuse => {}
        }
    }

    pub(super) fn release(&self, state: &mut State, held: &HeldDatagram) {
        let Ends { own, peer } = held.ends;
        match held.direction {
            Direction::Back => {
                if let Some(mut packet) = emit(peer, own, &held.bytes) {
                    let HopFields { limit, class } = held.fields;
                    let ttl = limit.unwrap_or(DEFAULT_HOP_LIMIT);
                    ip::restore(&mut packet, MutableFields { ttl, tos: class.unwrap_or(0) });
                    self.write(&packet);
                }
            }
            Direction::Out => {
                if let Err(error) = self.send(state, own, peer, held) {
                    debug!("cannot send a datagram to {peer}: {error}");
                }
            }
        }
    }

    fn send(
        &self,
        state: &mut State,
        own: SocketAddr,
        peer: SocketAddr,
        HeldDatagram { bytes, fields, .. }: &HeldDatagram,
    ) -> io::Result<()> {
        if state.host_sockets.find(own).is_none() {
            // The program has not bound its socket, so any port is suitable.
            let any: IpAddr = match own.ip() {
                IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            let at = |port| HostSocket::at(SocketAddr::new(any, port));
            let host_socket = at(own.port()).or_else(|_| at(0))?;
            self.register(state, host_socket, own.port())?;
        }
        // If the peer is a host socket whose program has just closed its own socket, the host
        // socket is closed first, so that the kernel reports the error.
        let ours = peer.ip().is_loopback() || state.own.has(peer.ip());
        if let (true, true, Some(lookup)) =
            (ours, state.host_sockets.ports.contains_key(&peer.port()), &self.lookup)
            && !lookup.finds(own, peer)?
        {
            self.sweep(state);
        }
        let Some(host_socket) = state.host_sockets.find(own) else { return Ok(()) };
        // The first call may return the error of an earlier datagram.
        host_socket.send(bytes, peer, *fields).or_else(|_| host_socket.send(bytes, peer, *fields))
    }

    /// Writes a packet to the capture namespace, where it is dropped if no socket receives it.
    fn write(&self, packet: &[u8]) {
        let written = match &self.v6 {
            Some(v6) if packet.first().is_some_and(|first| first >> 4 == 6) => v6.write(packet),
            _ => self.out.write(packet),
        };
        if let Err(error) = written {
            debug!("cannot deliver a datagram to a program: {error}");
        }
    }
}

impl State {
    /// Holds a datagram until the handlers release it.
    fn hold(&mut self, held: HeldDatagram) {
        if self.waiting.len() >= MAX_WAITING || self.waiting_bytes + held.bytes.len() > MAX_BYTES {
            self.lost[0] += 1;
            return;
        }
        let id = self.next;
        self.next = id.wrapping_add(1);
        let HeldDatagram { direction, ends, ref bytes, .. } = held;
        match self.passage.handle_datagram(now(), ends, direction, bytes.len(), id) {
            Taken::Waits { begins } => {
                if let (Some(report), true) = (&self.report, begins) {
                    report.count(FlowOutcome::Handled, "udp", ends.peer);
                }
                self.waiting_bytes += held.bytes.len();
                self.waiting.insert(id, held);
            }
            Taken::Dropped => {}
        }
    }
}

/// Returns the hop limit and traffic class that the program has set, by a socket option or a
/// control message.
fn fields_of(packet: &[u8]) -> HopFields {
    let Some(fields) = ip::mutable_fields(packet) else { return HopFields::default() };
    let other = |value: u8, usual: u8| (value != usual).then_some(value);
    HopFields {
        limit: other(fields.ttl, DEFAULT_HOP_LIMIT).filter(|&limit| limit > 0),
        class: other(fields.tos, 0),
    }
}
