//! A UDP socket that sends many datagrams per system call, without IP fragmentation.
//!
//! ```text
//!   [(peer, bytes), ...]  --runs to one peer, of one length-->  one message each (UDP_SEGMENT)
//!                         --up to 64 messages-->                one sendmmsg
//! ```
//!
//! The sender of [`crate::socket::mmsg`] sends the batches. `report` counts the results; `name` has
//! addresses in the kernel's format.

mod name;
mod report;

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::SystemTime;

use rustix::net::sockopt;

use crate::capture::filter::{self, Share};
use crate::os;
use crate::socket::mmsg::{BatchSender, Datagram};
use crate::socket::timestamp;

pub(crate) use name::address;
pub use report::SendReport;

/// Max datagrams in one message (the kernel's limit was 64 until 6.9).
const MAX_SEGMENTS: usize = 64;

/// A UDP socket for batches of datagrams.
#[derive(Debug)]
pub struct UdpBatch {
    socket: UdpSocket,
    sender: BatchSender,
}

impl UdpBatch {
    /// Binds a non-blocking socket. Its datagrams have DF set: a datagram that exceeds the known
    /// path MTU is refused, not fragmented. Errors: the address is in use, or not this machine's.
    pub fn bind(address: SocketAddr) -> io::Result<UdpBatch> {
        UdpBatch::new(UdpSocket::bind(address)?, address)
    }

    /// Binds like [`UdpBatch::bind`], with two differences. `[::]` is IPv6 only, so that `0.0.0.0`
    /// may be bound with the same port. With a `share`, several sockets share the address, and each
    /// receives from the peers of its share; they must be bound in the order of their numbers.
    /// Errors: those of [`UdpBatch::bind`].
    pub fn bind_one_family(address: SocketAddr, share: Option<Share>) -> io::Result<UdpBatch> {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        if address.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, true)?;
        }
        if share.is_some() {
            sockopt::set_socket_reuseport(&socket, true)?;
        }
        bind(&socket, &address)?;
        if let Some(share) = share {
            filter::attach_to_group(socket.as_fd(), &filter::listener_of(share.of))?;
        }
        UdpBatch::new(socket.into(), address)
    }

    /// Uses the socket of another process, which has sent the socket's descriptor.
    ///
    /// # Errors
    /// The descriptor is not an IP socket.
    pub fn inherited(socket: OwnedFd) -> io::Result<UdpBatch> {
        let socket = UdpSocket::from(socket);
        let address = socket.local_addr()?;
        UdpBatch::new(socket, address)
    }

    /// Opens another socket with the same address, which receives the datagrams of `peer` from now
    /// on: the kernel prefers a connected socket. Queued datagrams remain in this socket's queue.
    /// While the call lasts, the new socket may also receive datagrams of other peers.
    ///
    /// # Errors
    /// No descriptor is left, or there is no route to `peer`.
    pub fn connected_to(&self, peer: SocketAddr) -> io::Result<UdpBatch> {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
        let address = self.local_addr()?;
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        if address.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, sockopt::ipv6_v6only(&self.socket)?)?;
        }
        // Two sockets can be bound to an address only if both allow it. Afterwards this one no
        // longer does, so that no further socket gets its datagrams.
        sockopt::set_socket_reuseport(&socket, true)?;
        sockopt::set_socket_reuseport(&self.socket, true)?;
        let connected = bind(&socket, &address).and_then(|()| connect(&socket, &peer));
        sockopt::set_socket_reuseport(&self.socket, false)?;
        connected?;
        UdpBatch::new(socket.into(), address)
    }

    /// Returns another handle of the same socket, for another thread.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn try_clone(&self) -> io::Result<UdpBatch> {
        let sender = BatchSender::with_segments(MAX_SEGMENTS);
        Ok(UdpBatch { socket: self.socket.try_clone()?, sender })
    }

    fn new(socket: UdpSocket, address: SocketAddr) -> io::Result<UdpBatch> {
        socket.set_nonblocking(true)?;
        let fd = socket.as_fd();
        if address.is_ipv6() {
            let option = libc::IPV6_MTU_DISCOVER;
            os::setsockopt(fd, libc::IPPROTO_IPV6, option, &libc::IPV6_PMTUDISC_DO)?;
        }
        // On an IPv6 socket this applies to datagrams to IPv4-mapped addresses.
        os::setsockopt(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, &libc::IP_PMTUDISC_DO)?;
        Ok(UdpBatch { socket, sender: BatchSender::with_segments(MAX_SEGMENTS) })
    }

    /// Sets the sizes of the send and receive buffers to `bytes` each, or to the kernel's maximum.
    pub fn set_buffers(&self, bytes: usize) -> io::Result<()> {
        os::set_send_buffer(&self.socket, bytes)?;
        os::set_receive_buffer(&self.socket, bytes)
    }

    /// Sets the mark of the socket's datagrams, for rules of policy routing. Errors: a privilege
    /// is missing.
    pub fn set_mark(&self, mark: u32) -> io::Result<()> {
        os::setsockopt(self.socket.as_fd(), libc::SOL_SOCKET, libc::SO_MARK, &mark.cast_signed())
    }

    /// Returns the local address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Sends the datagrams in order, and does not block: those that the kernel does not accept now
    /// are dropped. An error is counted for the datagrams that it concerns; the others are sent.
    pub fn send(&mut self, datagrams: &[(SocketAddr, &[u8])]) -> SendReport {
        let datagram = |&(to, bytes): &(SocketAddr, _)| Datagram { bytes, to, from: None };
        let datagrams: Vec<_> = datagrams.iter().map(datagram).collect();
        self.sender.send(self.socket.as_fd(), &datagrams, |_, _| {})
    }

    /// Receives the next datagram, if any. Returns its length and sender. A datagram longer than
    /// `buffer` is truncated. Errors: those of `recvfrom(2)`, except that a peer's refusal of an
    /// earlier datagram (`ECONNREFUSED`) is not reported: the call returns `None`, although
    /// datagrams may be queued.
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<Option<(usize, SocketAddr)>> {
        match self.socket.recv_from(buffer) {
            Ok(received) => Ok(Some(received)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Enables receive timestamps, for [`recv_at`](UdpBatch::recv_at).
    pub fn enable_timestamps(&self) -> io::Result<()> {
        timestamp::enable(self)
    }

    /// Receives like [`recv`](UdpBatch::recv), with the time of arrival.
    /// [`enable_timestamps`](UdpBatch::enable_timestamps) must have been called. Errors: those of
    /// [`recv`](UdpBatch::recv), and `InvalidData` if the datagram has no timestamp.
    pub fn recv_at(
        &self,
        buffer: &mut [u8],
    ) -> io::Result<Option<(usize, SocketAddr, SystemTime)>> {
        let (length, from, at) = match timestamp::receive_from(self, buffer) {
            Ok(received) => received,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => return Ok(None),
            Err(e) => return Err(e),
        };
        let unknown =
            || io::Error::new(io::ErrorKind::InvalidData, "the datagram's sender has no address");
        Ok(Some((length, address(&from).ok_or_else(unknown)?, at)))
    }

    /// Drops all incoming datagrams, which a tap reads instead. The socket only keeps its port
    /// bound, so that the kernel does not answer the datagrams with ICMP errors.
    pub fn block_receive(&self) -> io::Result<()> {
        filter::attach(self.socket.as_fd(), &filter::drop_all())
    }
}

impl AsFd for UdpBatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn peer(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    #[test]
    fn datagrams_arrive_one_by_one_and_in_order() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let receiver = UdpBatch::bind(host.parse().unwrap()).unwrap();
            let mut sender = UdpBatch::bind(host.parse().unwrap()).unwrap();
            let to = receiver.local_addr().unwrap();
            // A run of 50, and then datagrams that cannot be merged: more messages than one call
            // can send.
            let length =
                |i| if i < 50 { 200 - usize::from(i == 49) } else { 10 + usize::from(i % 2) };
            let payloads: Vec<Vec<u8>> = (0..150_u8).map(|i| vec![i; length(i)]).collect();
            let datagrams: Vec<_> = payloads.iter().map(|bytes| (to, &bytes[..])).collect();
            assert_eq!(sender.send(&datagrams), SendReport { sent: 150, ..Default::default() });
            let mut buffer = [0; 2000];
            for payload in &payloads {
                let (length, from) = receiver.recv(&mut buffer).unwrap().unwrap();
                assert_eq!(&buffer[..length], payload);
                assert_eq!(from, sender.local_addr().unwrap());
            }
            assert!(receiver.recv(&mut buffer).unwrap().is_none());
            receiver.enable_timestamps().unwrap();
            assert!(receiver.recv_at(&mut buffer).unwrap().is_none());
            assert_eq!(sender.send(&[(to, b"now")]).sent, 1);
            let (length, from, at) = receiver.recv_at(&mut buffer).unwrap().unwrap();
            assert_eq!((length, from), (3, sender.local_addr().unwrap()));
            assert!(at.elapsed().unwrap() < Duration::from_secs(1));
        }
    }

    #[test]
    fn an_error_affects_only_its_own_datagrams() {
        let receiver = UdpBatch::bind(peer(0)).unwrap();
        let mut sender = UdpBatch::bind(peer(0)).unwrap();
        let to = receiver.local_addr().unwrap();
        let (short, long) = ([7; 100], vec![0; 65_600]);
        let nowhere: SocketAddr = "[2001:db8::1]:9".parse().unwrap();
        let report = sender.send(&[(to, &short), (to, &long), (nowhere, &short), (to, &short)]);
        assert_eq!(report, SendReport { sent: 2, too_long: 1, other: 1, ..Default::default() });
        let mut buffer = [0; 200];
        assert_eq!(receiver.recv(&mut buffer).unwrap().unwrap().0, 100);
        assert_eq!(receiver.recv(&mut buffer).unwrap().unwrap().0, 100);
    }

    #[test]
    fn a_connected_socket_receives_the_datagrams_of_its_peer_alone() {
        let local = ["127.0.0.1:0", "[::1]:0"].map(|at| at.parse::<SocketAddr>().unwrap());
        for (host, peers) in [
            ("127.0.0.1:0", local[0]),
            ("0.0.0.0:0", local[0]),
            ("[::1]:0", local[1]),
            ("[::]:0", local[1]),
            ("[::]:0", local[0]),
        ] {
            let listener = UdpBatch::bind(host.parse().unwrap()).unwrap();
            let to = SocketAddr::new(peers.ip(), listener.local_addr().unwrap().port());
            let peers = [0; 3].map(|_| UdpSocket::bind(peers).unwrap());
            let send = |n: usize| peers[n].send_to(&[n as u8], to).unwrap();
            let mut buffer = [0; 9];
            let mut next = |of: &UdpBatch| {
                let received = of.recv(&mut buffer).unwrap();
                received.map(|(_, from)| (buffer[0], from))
            };
            let mut own = Vec::new();
            for n in 0..2 {
                send(n);
                let (_, from) = next(&listener).unwrap();
                send(n);
                own.push(listener.connected_to(from).unwrap());
                assert_eq!(next(&listener), Some((n as u8, from)), "it was queued before");
            }
            for n in 0..3 {
                send(n);
            }
            assert_eq!(next(&own[0]).map(|(n, _)| n), Some(0), "{host}");
            assert_eq!(next(&own[1]).map(|(n, _)| n), Some(1), "{host}");
            assert_eq!(next(&listener).map(|(n, _)| n), Some(2), "{host}");
            assert!([&own[0], &own[1], &listener].iter().all(|of| next(of).is_none()));
            assert!(UdpBatch::bind(listener.local_addr().unwrap()).is_err(), "{host} is in use");
            // Without the connected socket, the peer is served by the first one again.
            own.clear();
            send(0);
            assert_eq!(next(&listener).map(|(n, _)| n), Some(0), "{host}");
        }
    }

    #[test]
    fn a_blocked_socket_holds_its_port_and_receives_nothing() {
        let holder = UdpBatch::bind(peer(0)).unwrap();
        holder.block_receive().unwrap();
        let to = holder.local_addr().unwrap();
        assert!(UdpBatch::bind(to).is_err());
        let sender = UdpSocket::bind(peer(0)).unwrap();
        sender.connect(to).unwrap();
        for _ in 0..3 {
            assert_eq!(sender.send(b"x").unwrap(), 1, "and no ICMP error comes back");
        }
        assert!(holder.recv(&mut [0; 9]).unwrap().is_none());
    }
}
