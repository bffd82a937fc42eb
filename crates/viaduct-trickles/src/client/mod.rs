//! Client side: [`ClientPort`] sends the requests of a client's connections, and receives the
//! answers.
//!
//! | file | contents |
//! |---|---|
//! | here | [`ClientPort`]: all connections of the port |
//! | `connection` | the sockets of one connection |
//! | `receive` | received packets, and their connections |
//! | `settings` | settings of the port, and its events |

mod connection;
mod receive;
mod settings;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use slab::Slab;
use tracing::info;
use viaduct_proto::rng::Rng;
use viaduct_proto::trickles::packet::{
    Format, FormatChoice, Numbers, Opening, Role, Room, TooLong, mark,
};
use viaduct_sys::capture::filter::{OptionFilter, OptionMark};
use viaduct_sys::capture::option_tap::OptionTap;
use viaduct_sys::journal::Changes;
use viaduct_sys::nft::rst_guard::RstGuard;
use viaduct_sys::socket::mmsg::Inbox;

use crate::egress::Egress;
use crate::gso;
use crate::stats::PortStats;
use crate::tcp_sockets::TcpSockets;
use crate::{PortError, check_mtu};
use connection::{Connection, Datagrams, reserve_port, source_towards};
use receive::Receiver;
pub use settings::{ClientSettings, PortEvent};

/// A connection of a [`ClientPort`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow(pub(super) usize);

/// A client's port. Its connections are independent of each other.
#[derive(Debug)]
pub struct ClientPort {
    formats: FormatChoice,
    tap: Option<OptionTap>,
    inbox: Inbox,
    egress: Egress,
    flows: Slab<Connection>,
    /// Connections in TCP's format, by local address, because two may have the same port number.
    by_address: HashMap<SocketAddr, usize>,
    rng: Rng,
    packet: Vec<u8>,
    _changes: Option<Changes>,
}

const ANSWERS: OptionMark = OptionMark { word: mark::WORD, byte: Role::Answer.byte() };

fn open_tcp(settings: &ClientSettings) -> Result<TcpSockets, PortError> {
    let untracked = settings.untracked.then_some(Role::Request.byte());
    let (instance, at) = (settings.instance.clone(), Vec::new());
    let rule = RstGuard { instance, mark: ANSWERS, at, untracked };
    TcpSockets::open(filter(&[]), Some(rule), &settings.run_dir)
}

/// Filter of the tap for connections with these local ports.
fn filter(ports: &[u16]) -> OptionFilter<'_> {
    OptionFilter { mark: ANSWERS, ports, plain: true, share: None }
}

impl ClientPort {
    /// Opens the port in the calling thread's network namespace. The initial sequence numbers are
    /// derived from `seed`, which is random. Errors: privilege is missing and only TCP's format is
    /// allowed, or a rule cannot be set. On an error, the rules that were changed are reverted. If
    /// any format is allowed and privilege is missing, the port uses only UDP.
    pub fn open(settings: &ClientSettings, seed: u64) -> Result<ClientPort, PortError> {
        check_mtu(settings.mtu)?;
        let udp = FormatChoice::Only(Format::Udp);
        let (formats, tcp) = match settings.formats {
            formats if formats == udp => (formats, TcpSockets::default()),
            formats => match open_tcp(settings) {
                Ok(tcp) => (formats, tcp),
                Err(error) if formats == FormatChoice::Any && error.is_privilege() => {
                    info!("Trickles uses only UDP: {:#}", anyhow::Error::new(error));
                    (udp, TcpSockets::default())
                }
                Err(error) => return Err(error),
            },
        };
        let TcpSockets { tap, raw, changes } = tcp;
        Ok(ClientPort {
            formats,
            tap,
            inbox: Inbox::new((gso::MAX_PACKETS * settings.mtu).min(usize::from(u16::MAX))),
            egress: Egress::new(raw, None, settings.mtu),
            flows: Slab::new(),
            by_address: HashMap::new(),
            rng: Rng::from_seed(seed),
            packet: Vec::new(),
            _changes: changes,
        })
    }

    /// Opens a connection to `remote`, without sending anything. Errors: no route, or no local port
    /// is free.
    pub fn connect(&mut self, remote: SocketAddr) -> std::io::Result<Flow> {
        let opening = Opening::new(self.formats);
        let tcp = match &self.tap {
            None => None,
            Some(_) => {
                let (local, reserved) = reserve_port(remote)?;
                let first = self.rng.next_u64() as u32;
                Some((Numbers::new(local, remote, first), reserved))
            }
        };
        let udp = match self.formats {
            FormatChoice::Only(Format::Tcp) => None,
            _ => Some(Datagrams::open(remote)?),
        };
        self.egress.ask_kernel(remote.ip());
        let (reset, unanswered) = (false, Vec::new());
        let connection = Connection { remote, opening, tcp, udp, reset, unanswered };
        let flow = self.flows.insert(connection);
        if let Some((numbers, _)) = &self.flows[flow].tcp {
            self.by_address.insert(numbers.local(), flow);
        }
        if let Err(error) = self.watch() {
            self.close(Flow(flow));
            return Err(error);
        }
        Ok(Flow(flow))
    }

    /// Closes a connection, without sending anything.
    pub fn close(&mut self, flow: Flow) {
        if let Some((numbers, _)) = self.flows.try_remove(flow.0).and_then(|gone| gone.tcp) {
            self.by_address.remove(&numbers.local());
            // If this fails, the old filter still passes packets of the closed connection, which
            // are then refused.
            let _ = self.watch();
        }
    }

    /// Current maximum message lengths to and from the server, such that messages fit in either
    /// packet format. Panics if the flow was closed.
    pub fn room(&self, flow: Flow) -> Room {
        let to = &self.flows[flow.0];
        to.room(self.egress.least_mtu(to.remote.ip()))
    }

    /// Queues a request for the next [`ClientPort::flush`]. `expected` is the expected length of
    /// its answers in bytes; see [`Numbers::request`]. Errors: the message is longer than
    /// [`ClientPort::room`]. Panics if the flow was closed.
    pub fn send(&mut self, flow: Flow, message: &[u8], expected: u32) -> Result<(), TooLong> {
        let ClientPort { flows, egress, packet, .. } = self;
        flows[flow.0].send(message, expected, egress, packet)
    }

    /// Sends these connections' queued datagrams, and all queued packets in TCP's format.
    pub fn flush(&mut self, flows: impl IntoIterator<Item = Flow>) {
        for flow in flows {
            if let Some(to) = self.flows.get_mut(flow.0) {
                to.flush(&mut self.egress);
            }
        }
        self.egress.flush();
    }

    /// Processes one batch of packets in TCP's format, for all connections, and calls `each` for
    /// the resulting events. Does not block. Returns the number of packets. Errors: the socket's
    /// error, for instance because an interface went down. The port stays usable.
    pub fn receive_tap(
        &mut self,
        mut each: impl FnMut(Flow, PortEvent<'_>),
    ) -> std::io::Result<usize> {
        let ClientPort { tap: Some(tap), inbox, by_address, flows, egress, packet, .. } = self
        else {
            return Ok(0);
        };
        let packets = inbox.receive(tap.as_fd())?;
        let mut receiver = Receiver { by_address, flows, egress, packet };
        for got in inbox.iter() {
            receiver.packet(&got, &mut each);
        }
        Ok(packets)
    }

    /// Like [`ClientPort::receive_tap`], for the datagrams of a connection's UDP socket. Every
    /// message is assumed to be the server's. Errors: those of [`ClientPort::receive_tap`].
    pub fn receive_flow(
        &mut self,
        flow: Flow,
        mut each: impl FnMut(Flow, PortEvent<'_>),
    ) -> std::io::Result<usize> {
        self.receive_checked(flow, |flow, event| {
            each(flow, event);
            true
        })
    }

    /// Like [`ClientPort::receive_flow`], but `each` returns whether a message is the server's. A
    /// datagram may be forged, so only the server's messages decide the packet format.
    pub(crate) fn receive_checked(
        &mut self,
        flow: Flow,
        mut each: impl FnMut(Flow, PortEvent<'_>) -> bool,
    ) -> std::io::Result<usize> {
        let ClientPort { inbox, by_address, flows, egress, packet, .. } = self;
        let Some(to) = flows.get_mut(flow.0) else { return Ok(0) };
        let Some(udp) = &to.udp else { return Ok(0) };
        let received = inbox.receive(udp.socket.as_fd());
        let datagrams = received.as_ref().map_or(0, |datagrams| *datagrams);
        for got in inbox.iter() {
            if let Some(message) = egress.stats.count(receive::datagram(&got, to.remote))
                && each(flow, PortEvent::Message(message))
            {
                to.record_answer(Format::Udp);
            }
        }
        // A socket that is readable without a datagram has ICMP errors.
        if datagrams == 0
            && let Some(event) =
                (Receiver { by_address, flows, egress, packet }).undelivered(flow.0)
        {
            each(flow, event);
            return Ok(1);
        }
        received
    }

    /// Packet format in which the server has answered; `None` if it has not answered. Panics if the
    /// flow was closed.
    pub fn format(&self, flow: Flow) -> Option<Format> {
        self.flows[flow.0].opening.decided()
    }

    /// Local address of a connection.
    pub fn local(&self, flow: Flow) -> Option<SocketAddr> {
        let to = self.flows.get(flow.0)?;
        match (to.opening.decided(), &to.tcp, &to.udp) {
            (Some(Format::Tcp) | None, Some((numbers, _)), _) => Some(numbers.local()),
            (_, _, Some(udp)) => {
                let port = udp.socket.local_addr().ok()?.port();
                Some(SocketAddr::new(source_towards(to.remote).ok()?, port))
            }
            _ => None,
        }
    }

    /// Returns whether packets would now be sent from a local address other than the connection's,
    /// for instance after a change of the network. With UDP the kernel chooses the address for each
    /// packet. Panics if the flow was closed.
    pub fn has_moved(&self, flow: Flow) -> bool {
        let to = &self.flows[flow.0];
        let left = |(numbers, _): &(Numbers, _)| {
            source_towards(to.remote).is_ok_and(|ip| ip != numbers.local().ip())
        };
        to.opening.decided() != Some(Format::Udp) && to.tcp.as_ref().is_some_and(left)
    }

    /// Moves a connection to another local port number after a long silence, and tries all formats
    /// again. The transport state of the connection stays valid. Errors: those of
    /// [`ClientPort::connect`].
    pub fn reopen(&mut self, flow: Flow) -> std::io::Result<()> {
        let to = &mut self.flows[flow.0];
        if let Some((numbers, reserved)) = &mut to.tcp {
            // If there is no route now, the connection keeps its local port number.
            let (local, fresh) = reserve_port(to.remote)?;
            self.by_address.remove(&numbers.local());
            *numbers = Numbers::new(local, to.remote, self.rng.next_u64() as u32);
            *reserved = fresh;
            self.by_address.insert(local, flow.0);
        }
        to.opening.doubt();
        self.watch()
    }

    /// The socket of [`ClientPort::receive_tap`], to poll: readable when there are packets to
    /// process.
    pub fn tap(&self) -> Option<BorrowedFd<'_>> {
        self.tap.as_ref().map(|tap| tap.as_fd())
    }

    /// The socket of [`ClientPort::receive_flow`], to poll.
    pub fn socket(&self, flow: Flow) -> Option<BorrowedFd<'_>> {
        self.flows.get(flow.0)?.udp.as_ref().map(|udp| udp.socket.as_fd())
    }

    /// Counters of the port.
    pub fn stats(&self) -> PortStats {
        self.egress.stats
    }

    /// Sets the tap's filter to the local port numbers of the connections.
    fn watch(&self) -> std::io::Result<()> {
        let Some(tap) = &self.tap else { return Ok(()) };
        let ports: Vec<u16> = self.by_address.keys().map(SocketAddr::port).collect();
        tap.set_filter(filter(&ports))
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use viaduct_proto::trickles::packet::udp;

    use super::*;

    #[test]
    fn a_message_that_is_not_the_servers_does_not_fix_the_format() {
        let settings = ClientSettings {
            formats: FormatChoice::Only(Format::Udp),
            mtu: 1500,
            untracked: true,
            instance: "test".to_owned(),
            run_dir: std::env::temp_dir(),
        };
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut port = ClientPort::open(&settings, 7).unwrap();
        let flow = port.connect(server.local_addr().unwrap()).unwrap();
        let message = [&udp::head(Role::Answer, 0)[..], b"message"].concat();
        for (is_servers, format) in [(false, None), (true, Some(Format::Udp))] {
            server.send_to(&message, port.local(flow).unwrap()).unwrap();
            assert_eq!(port.receive_checked(flow, |_, _| is_servers).unwrap(), 1);
            assert_eq!(port.format(flow), format);
        }
    }
}
