//! Demultiplexing of received packets and datagrams to connections.

use std::collections::HashMap;
use std::net::SocketAddr;

use slab::Slab;
use viaduct_proto::trickles::packet::icmp::{self, Report, Why};
use viaduct_proto::trickles::packet::stats::Refusal;
use viaduct_proto::trickles::packet::tcp::{self, Checksum, Packet, Segment};
use viaduct_proto::trickles::packet::{Format, Role, udp};
use viaduct_sys::socket::error_queue::{IcmpError, take_error};
use viaduct_sys::socket::mmsg::Received;

use super::super::door::Door;
use super::connection::Connection;
use super::{Flow, Heard};

/// ICMP type and code of the error that a datagram was too long.
const TOO_BIG_V4: [u8; 2] = [3, 4];
const TOO_BIG_V6: [u8; 2] = [2, 0];

/// Receiving side of a client's port.
pub(super) struct Ears<'a> {
    /// Connections in TCP's format, by local address.
    pub(super) places: &'a HashMap<SocketAddr, usize>,
    pub(super) flows: &'a mut Slab<Connection>,
    pub(super) door: &'a mut Door,
    /// Buffer for a packet.
    pub(super) packet: &'a mut Vec<u8>,
}

impl Ears<'_> {
    /// Processes a packet from the tap, and calls `each` for its effects.
    pub(super) fn packet<'p>(
        &mut self,
        got: &Received<'p>,
        each: &mut impl FnMut(Flow, Heard<'p>),
    ) {
        let mut tell = |said: Option<(usize, Heard<'p>)>| {
            if let Some((flow, heard)) = said {
                each(Flow(flow), heard);
            }
        };
        if let Some(said) = icmp::parse(got.bytes) {
            return tell(self.report(&said));
        }
        let checksum = if got.check { Checksum::Check } else { Checksum::Trust };
        let heard = match tcp::parse(got.bytes, got.length, checksum) {
            Ok(Packet::Message(answer, messages)) => {
                self.answered(&answer, messages.len()).map(|flow| {
                    let each = answer.messages(messages).map(Heard::Message);
                    each.for_each(|heard| tell(Some((flow, heard))));
                })
            }
            Ok(Packet::Plain { source, destination, ack, reset }) => {
                self.plain(source, destination, ack, reset).map(tell)
            }
            Err(why) => Err(why),
        };
        if let Err(why) = heard {
            self.door.stats.refuse(why);
        }
    }

    /// Processes a packet of a server with `bytes` bytes behind its headers, and returns its
    /// connection.
    fn answered(&mut self, answer: &Segment, bytes: usize) -> Result<usize, Refusal> {
        let (flow, to) = self.find(answer.destination)?;
        let (numbers, _) = to.tcp.as_mut().ok_or(Refusal::NotOurs)?;
        let was_open = numbers.is_open();
        if !numbers.handle_answer(answer, bytes) {
            return Err(Refusal::NotOurs);
        }
        let opens = !was_open && numbers.is_open();
        to.heard(Format::Tcp);
        if opens {
            // As with TCP, routers that know of a smaller MTU lower the MSS in SYNs.
            let ip = answer.source.ip();
            self.door.learn(ip, tcp::mtu(ip.is_ipv4(), answer.largest));
        }
        self.door.stats.received += 1;
        Ok(flow)
    }

    /// Processes a packet of a kernel's TCP.
    fn plain(
        &mut self,
        source: SocketAddr,
        destination: SocketAddr,
        ack: u32,
        reset: bool,
    ) -> Result<Option<(usize, Heard<'static>)>, Refusal> {
        // With thousands of connections the tap also sees packets of other programs'
        // connections.
        let Ok((flow, to)) = self.find(destination) else { return Ok(None) };
        let (numbers, _) = to.tcp.as_ref().ok_or(Refusal::NotOurs)?;
        let ours = (numbers.remote(), numbers.local()) == (source, destination);
        // An off-path attacker does not know our number. A server that has answered is not a
        // plain TCP server.
        if !ours || !numbers.answers_syn(ack) {
            return Err(Refusal::NotOurs);
        }
        Ok(match reset {
            true => self.refuse(flow, Format::Tcp, true),
            false => Some((flow, Heard::PlainTcp)),
        })
    }

    /// Processes the ICMP errors about a connection's datagrams, and returns the last effect.
    pub(super) fn undelivered(&mut self, flow: usize) -> Option<Heard<'static>> {
        let mut heard = None;
        while let Some(IcmpError { to, why }) = {
            let udp = self.flows.get(flow)?.udp.as_ref()?;
            take_error(udp.as_fd())
        } {
            let said = match (to.is_ipv4(), why) {
                (true, TOO_BIG_V4) | (false, TOO_BIG_V6) => {
                    self.door.ask_kernel(to.ip()).then_some(Heard::Shorter)
                }
                (true, [3, _]) | (false, [1, _]) => {
                    self.refuse(flow, Format::Udp, false).map(|(_, heard)| heard)
                }
                _ => None,
            };
            heard = said.or(heard);
        }
        heard
    }

    /// Processes an ICMP error of a router, or of the server's host, about a packet in TCP's
    /// format.
    fn report(&mut self, said: &Report) -> Option<(usize, Heard<'static>)> {
        let flow = *self.places.get(&said.source)?;
        let to = self.flows.get(flow).filter(|to| to.remote == said.destination)?;
        let (numbers, _) = to.tcp.as_ref()?;
        if !numbers.has_sent(said.number) {
            self.door.stats.refuse(Refusal::NotOurs);
            return None;
        }
        match said.why {
            Why::TooBig(mtu) => {
                self.door.too_big(said.destination.ip(), mtu).then_some((flow, Heard::Shorter))
            }
            Why::Unreachable => self.refuse(flow, Format::Tcp, false),
        }
    }

    /// Processes the refusal of a packet format, by a TCP reset of the server's kernel or
    /// otherwise.
    fn refuse(
        &mut self,
        flow: usize,
        format: Format,
        reset: bool,
    ) -> Option<(usize, Heard<'static>)> {
        let to = self.flows.get_mut(flow)?;
        if to.opening.decided().is_some() {
            return None;
        }
        to.reset |= reset;
        let reset = to.reset;
        let nobody = to.refuse(format, self.door, self.packet);
        Some((flow, if nobody { Heard::Refused { reset } } else { Heard::Turned { reset } }))
    }

    fn find(&mut self, place: SocketAddr) -> Result<(usize, &mut Connection), Refusal> {
        let flow = *self.places.get(&place).ok_or(Refusal::NotOurs)?;
        Ok((flow, self.flows.get_mut(flow).ok_or(Refusal::NotOurs)?))
    }
}

/// The message of a datagram from `remote`.
pub(super) fn datagram<'a>(got: &Received<'a>, remote: SocketAddr) -> Result<&'a [u8], Refusal> {
    let from = got.from.map(|from| (from.ip(), from.port()));
    if got.length > got.bytes.len() {
        return Err(Refusal::Cut);
    }
    match udp::parse(got.bytes)? {
        (Role::Answer, _, message) if from == Some((remote.ip(), remote.port())) => Ok(message),
        _ => Err(Refusal::NotOurs),
    }
}
