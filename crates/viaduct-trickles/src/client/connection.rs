//! A connection of a [`ClientPort`](super::ClientPort): its TCP sequence numbers, its reserved TCP
//! port, its UDP socket, and the choice between the two packet formats.

use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsFd as _;

use viaduct_proto::trickles::packet::{Format, Numbers, Opening, Role, Room, TooLong, udp};
use viaduct_sys::socket::error_queue::enable_error_queue;
use viaduct_sys::socket::mmsg::Outbox;
use viaduct_sys::socket::tcp::TcpOptions;
use viaduct_sys::socket::udp::UdpBatch;

use crate::SEND_BUFFER;
use crate::egress::{Egress, now};

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) remote: SocketAddr,
    pub(super) opening: Opening,
    pub(super) tcp: Option<(Numbers, ReservedPort)>,
    pub(super) udp: Option<Datagrams>,
    /// True if the kernel of the server's host has sent a TCP reset.
    pub(super) reset: bool,
    /// The last request, until the server has answered. If the request's packet format is refused,
    /// the request is sent again in the other format.
    pub(super) unanswered: Vec<u8>,
}

/// A reserved port: a bound socket that neither listens nor is connected, so that the kernel does
/// not assign the port to another socket.
#[derive(Debug)]
pub(super) struct ReservedPort(TcpStream);

/// A UDP socket with its send queue.
#[derive(Debug)]
pub(super) struct Datagrams {
    pub(super) socket: UdpBatch,
    queue: Outbox,
    count: u8,
}

impl Connection {
    /// Maximum message lengths in packets of `mtu` bytes, which fit in either packet format.
    pub(super) fn room(&self, mtu: usize) -> Room {
        let datagram = mtu.saturating_sub(udp::overhead(self.remote.is_ipv4()));
        match &self.tcp {
            // Headers in TCP's format are longer than those of datagrams.
            Some((numbers, _)) => numbers.room(mtu),
            None => Room { first: datagram, later: datagram },
        }
    }

    /// Queues a request for the next flush.
    pub(super) fn send(
        &mut self,
        message: &[u8],
        expected: u32,
        egress: &mut Egress,
        packet: &mut Vec<u8>,
    ) -> Result<(), TooLong> {
        let ip = self.remote.ip();
        let mtu = egress.least_mtu(ip);
        match (self.opening.next(now()), &mut self.tcp, &mut self.udp) {
            (Format::Tcp, Some((numbers, _)), _) => {
                numbers.request(message, expected, mtu, packet)?;
                egress.packet(packet, ip);
            }
            (_, _, Some(udp)) => udp.push(message, self.remote, mtu, egress, packet)?,
            (Format::Tcp | Format::Udp, _, None) => {}
        }
        if self.opening.decided().is_none() {
            self.unanswered.clear();
            self.unanswered.extend_from_slice(message);
        }
        Ok(())
    }

    pub(super) fn flush(&mut self, egress: &mut Egress) {
        if let Some(udp) = &mut self.udp {
            egress.flush_datagrams(&mut udp.queue, udp.socket.as_fd());
        }
    }

    pub(super) fn record_answer(&mut self, format: Format) {
        self.opening.answered(format);
        self.unanswered = Vec::new();
    }

    /// Records that a format is refused. Returns true if no format is left to try. Otherwise, if
    /// `format` is TCP's, sends the last request again in the other format.
    pub(super) fn refuse(
        &mut self,
        format: Format,
        egress: &mut Egress,
        packet: &mut Vec<u8>,
    ) -> bool {
        if !self.opening.refuse(format) {
            return true;
        }
        let message = std::mem::take(&mut self.unanswered);
        if format == Format::Tcp && !message.is_empty() {
            // If the message is too long for this format, the error is reported for the transport's
            // next request, which is as long.
            let _ = self.send(&message, 0, egress, packet);
            self.flush(egress);
        }
        false
    }
}

impl Datagrams {
    /// Opens a socket that receives ICMP errors.
    pub(super) fn open(remote: SocketAddr) -> std::io::Result<Datagrams> {
        let any = if remote.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpBatch::bind(any.parse().expect("a valid address"))?;
        socket.set_buffers(SEND_BUFFER)?;
        enable_error_queue(&socket)?;
        Ok(Datagrams { socket, queue: Outbox::of_datagrams(), count: 0 })
    }

    fn push(
        &mut self,
        message: &[u8],
        to: SocketAddr,
        mtu: usize,
        egress: &mut Egress,
        packet: &mut Vec<u8>,
    ) -> Result<(), TooLong> {
        let room = mtu.saturating_sub(udp::overhead(to.is_ipv4()));
        if message.len() > room {
            return Err(TooLong { have: message.len(), room });
        }
        packet.clear();
        packet.extend(udp::head(Role::Request, self.count));
        packet.extend_from_slice(message);
        self.count = self.count.wrapping_add(1);
        self.queue.push(packet, to, None);
        if self.queue.is_full() {
            egress.flush_datagrams(&mut self.queue, self.socket.as_fd());
        }
        Ok(())
    }
}

/// Local address towards `remote`, with a reserved port.
pub(super) fn reserve_port(remote: SocketAddr) -> std::io::Result<(SocketAddr, ReservedPort)> {
    let ip = source_towards(remote)?;
    let port = ReservedPort(viaduct_sys::socket::tcp::bound(
        SocketAddr::new(ip, 0),
        TcpOptions::default(),
    )?);
    Ok((port.0.local_addr()?, port))
}

/// Local address towards `remote`.
pub(super) fn source_towards(remote: SocketAddr) -> std::io::Result<IpAddr> {
    let any: SocketAddr =
        if remote.is_ipv4() { ([0; 4], 0).into() } else { ([0_u16; 8], 0).into() };
    // Connecting a UDP socket looks up the route, and sends nothing.
    let route = UdpSocket::bind(any)?;
    route.connect(remote)?;
    Ok(route.local_addr()?.ip())
}
