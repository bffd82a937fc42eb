//! Demultiplexing of received packets and datagrams to connections.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;

use slab::Slab;
use viaduct_proto::trickles::packet::icmp::{self, Report, Why};
use viaduct_proto::trickles::packet::stats::Refusal;
use viaduct_proto::trickles::packet::tcp::{self, Checksum, Packet, Segment};
use viaduct_proto::trickles::packet::{Format, Role, udp};
use viaduct_sys::socket::error_queue::{IcmpError, take_error};
use viaduct_sys::socket::mmsg::Received;

use super::connection::Connection;
use super::{Flow, PortEvent};
use crate::egress::Egress;

/// ICMP type and code of the error for a datagram that is too long.
const TOO_BIG_V4: [u8; 2] = [3, 4];
/// ICMPv6 type and code of the error for a packet that is too long.
const TOO_BIG_V6: [u8; 2] = [2, 0];

/// Receiving side of a client's port.
pub(super) struct Receiver<'a> {
    /// Connections in TCP's format, by local address.
    pub(super) by_address: &'a HashMap<SocketAddr, usize>,
    pub(super) flows: &'a mut Slab<Connection>,
    pub(super) egress: &'a mut Egress,
    pub(super) packet: &'a mut Vec<u8>,
}

impl Receiver<'_> {
    /// Processes a packet from the tap, and calls `each` for the resulting events.
    pub(super) fn packet<'p>(
        &mut self,
        got: &Received<'p>,
        each: &mut impl FnMut(Flow, PortEvent<'p>),
    ) {
        let mut report = |event: Option<(usize, PortEvent<'p>)>| {
            if let Some((flow, event)) = event {
                each(Flow(flow), event);
            }
        };
        if let Some(error) = icmp::parse(got.bytes) {
            return report(self.icmp(&error));
        }
        let checksum = if got.check { Checksum::Check } else { Checksum::Trust };
        let outcome = match tcp::parse(got.bytes, got.length, checksum) {
            Ok(Packet::Message(answer, messages)) => {
                self.answered(&answer, messages.len()).map(|flow| {
                    let each = answer.messages(messages).map(PortEvent::Message);
                    each.for_each(|event| report(Some((flow, event))));
                })
            }
            Ok(Packet::Plain { source, destination, ack, reset }) => {
                self.plain(source, destination, ack, reset).map(report)
            }
            Err(why) => Err(why),
        };
        if let Err(why) = outcome {
            self.egress.stats.refuse(why);
        }
    }

    /// Processes a server's packet with `bytes` bytes after its headers, and returns the
    /// connection.
    fn answered(&mut self, answer: &Segment, bytes: usize) -> Result<usize, Refusal> {
        let (flow, to) = self.find(answer.destination)?;
        let (numbers, _) = to.tcp.as_mut().ok_or(Refusal::NotOurs)?;
        let was_open = numbers.is_open();
        if !numbers.handle_answer(answer, bytes) {
            return Err(Refusal::NotOurs);
        }
        let is_open = numbers.is_open();
        if is_open {
            // Other packets before the SYN-ACK may be forged.
            to.record_answer(Format::Tcp);
        }
        if is_open && !was_open {
            // As with TCP, routers that know of a smaller MTU lower the MSS in SYNs.
            let ip = answer.source.ip();
            self.egress.learn(ip, tcp::mtu(ip.is_ipv4(), answer.largest));
        }
        self.egress.stats.received += 1;
        Ok(flow)
    }

    /// Processes a packet of a kernel's TCP.
    fn plain(
        &mut self,
        source: SocketAddr,
        destination: SocketAddr,
        ack: u32,
        reset: bool,
    ) -> Result<Option<(usize, PortEvent<'static>)>, Refusal> {
        // The tap's filter may also pass packets of other programs' connections.
        let Ok((flow, to)) = self.find(destination) else { return Ok(None) };
        let (numbers, _) = to.tcp.as_ref().ok_or(Refusal::NotOurs)?;
        let ours = (numbers.remote(), numbers.local()) == (source, destination);
        // An off-path attacker does not know our sequence number. A server that has answered in
        // Trickles is not a plain TCP server.
        if !ours || !numbers.answers_syn(ack) {
            return Err(Refusal::NotOurs);
        }
        Ok(match reset {
            true => self.refuse(flow, Format::Tcp, true),
            false => Some((flow, PortEvent::PlainTcp)),
        })
    }

    /// Processes the ICMP errors about a connection's datagrams; returns the last event.
    pub(super) fn undelivered(&mut self, flow: usize) -> Option<PortEvent<'static>> {
        let mut last = None;
        while let Some(IcmpError { to, why }) = {
            let udp = self.flows.get(flow)?.udp.as_ref()?;
            take_error(udp.socket.as_fd())
        } {
            let event = match (to.is_ipv4(), why) {
                (true, TOO_BIG_V4) | (false, TOO_BIG_V6) => {
                    self.egress.ask_kernel(to.ip()).then_some(PortEvent::MtuDecreased)
                }
                (true, [3, _]) | (false, [1, _]) => {
                    self.refuse(flow, Format::Udp, false).map(|(_, event)| event)
                }
                _ => None,
            };
            last = event.or(last);
        }
        last
    }

    /// Processes a router's or server host's ICMP error about a packet in TCP's format.
    fn icmp(&mut self, error: &Report) -> Option<(usize, PortEvent<'static>)> {
        let flow = *self.by_address.get(&error.source)?;
        let to = self.flows.get(flow).filter(|to| to.remote == error.destination)?;
        let (numbers, _) = to.tcp.as_ref()?;
        if !numbers.has_sent(error.number) {
            self.egress.stats.refuse(Refusal::NotOurs);
            return None;
        }
        match error.why {
            Why::TooBig(mtu) => self
                .egress
                .too_big(error.destination.ip(), mtu)
                .then_some((flow, PortEvent::MtuDecreased)),
            Why::Unreachable => self.refuse(flow, Format::Tcp, false),
        }
    }

    /// Processes the refusal of a packet format. `reset` is true if the server's kernel sent a TCP
    /// reset.
    fn refuse(
        &mut self,
        flow: usize,
        format: Format,
        reset: bool,
    ) -> Option<(usize, PortEvent<'static>)> {
        let to = self.flows.get_mut(flow)?;
        if to.opening.decided().is_some() {
            return None;
        }
        to.reset |= reset;
        let reset = to.reset;
        let none_left = to.refuse(format, self.egress, self.packet);
        Some((
            flow,
            if none_left { PortEvent::Refused { reset } } else { PortEvent::FellBack { reset } },
        ))
    }

    fn find(&mut self, address: SocketAddr) -> Result<(usize, &mut Connection), Refusal> {
        let flow = *self.by_address.get(&address).ok_or(Refusal::NotOurs)?;
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

#[cfg(test)]
mod tests {
    use viaduct_proto::trickles::packet::tcp::Kind;
    use viaduct_proto::trickles::packet::{FormatChoice, Mark, Numbers, Opening};

    use super::super::connection::reserve_port;
    use super::*;

    #[test]
    fn only_a_syn_ack_of_our_syn_fixes_the_format() {
        let source: SocketAddr = "127.0.0.1:80".parse().unwrap();
        let (destination, reserved) = reserve_port(source).unwrap();
        let mut flows = Slab::new();
        let flow = flows.insert(Connection {
            remote: source,
            opening: Opening::new(FormatChoice::Any),
            tcp: Some((Numbers::new(destination, source, 7), reserved)),
            udp: None,
            reset: false,
            unanswered: Vec::new(),
        });
        let by_address = HashMap::from([(destination, flow)]);
        let (mut egress, mut packet) = (Egress::new(None, None, 1500), Vec::new());
        let (flows, egress, packet) = (&mut flows, &mut egress, &mut packet);
        let mut receiver = Receiver { by_address: &by_address, flows, egress, packet };
        let tcp = Some(Format::Tcp);
        for (kind, ack, decided) in
            [(Kind::Data, 8, None), (Kind::SynAck, 9, None), (Kind::SynAck, 8, tcp)]
        {
            let mark = Mark { role: Role::Answer, count: 0, length: 0, ahead: 0 };
            let (seq, scaled, largest) = (9, true, 1_460);
            let answer = Segment { source, destination, kind, seq, ack, scaled, largest, mark };
            assert!(receiver.answered(&answer, 0).is_ok());
            assert_eq!(receiver.flows[flow].opening.decided(), decided, "{kind:?} {ack}");
        }
    }
}
