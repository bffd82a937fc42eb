//! A tap for incoming SYNs, which sees them before the kernel's TCP answers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use libc::{AF_PACKET, SOCK_DGRAM};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};

use crate::capture::filter::{self, SynFilter};
use crate::os;

/// Size of the receive buffer in bytes: some thousands of SYNs.
const BACKLOG: usize = 4 << 20;
/// Max bytes of a SYN that are read: an MTU, including Fast Open data.
pub const SNAP: usize = 2048;

/// Constant of `linux/if_packet.h`, which libc lacks.
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

/// The tap. Packets begin at their IP header.
#[derive(Debug)]
pub struct SynTap {
    socket: OwnedFd,
}

impl SynTap {
    /// Opens a tap on all interfaces of the calling thread's network namespace, with `filter`.
    /// Errors: root or CAP_NET_RAW is missing, or the filter cannot be built.
    pub fn open(filter: SynFilter<'_>) -> io::Result<SynTap> {
        // Protocol 0: no packet arrives before the filter is in place.
        let socket = os::socket(AF_PACKET, SOCK_DGRAM, 0)?;
        filter::attach(socket.as_fd(), &filter.build().map_err(io::Error::other)?)?;
        os::set_receive_buffer(socket.as_fd(), BACKLOG)?;
        // Otherwise the kernel would also run the filter on each outgoing packet.
        os::setsockopt(socket.as_fd(), libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &1)?;
        os::bind_packet(socket.as_fd(), 0)?;
        Ok(SynTap { socket })
    }

    /// Wraps the socket of a tap that another process has opened with [`SynTap::open`].
    pub fn inherited(socket: OwnedFd) -> SynTap {
        SynTap { socket }
    }

    /// Reads the next SYN into `packet`; `None` if none is queued. Errors: those of `recv(2)`, for
    /// example when an interface has gone down. The tap continues to work after an error.
    pub fn recv<'a>(&self, packet: &'a mut [u8; SNAP]) -> io::Result<Option<&'a [u8]>> {
        match rustix::net::recv(&self.socket, &mut packet[..], rustix::net::RecvFlags::empty()) {
            Ok((len, _)) => Ok(Some(&packet[..len])),
            Err(rustix::io::Errno::AGAIN) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Sender of SYNs to a process that has no tap of its own.
#[derive(Debug)]
pub struct SynSender(OwnedFd);

impl SynSender {
    /// Creates a sender, and the socket from which the other process reads as from a tap
    /// ([`SynTap::inherited`]).
    pub fn pair() -> io::Result<(SynSender, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (send, receive) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((SynSender(send), receive))
    }

    /// Sends a SYN, which begins at its IP header. If the other process does not read, the SYN is
    /// dropped, and its client is served only after the handshake. Errors: the other process has
    /// ended.
    pub fn send(&self, packet: &[u8]) -> io::Result<()> {
        match rustix::net::send(&self.0, packet, SendFlags::NOSIGNAL) {
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for SynTap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syns_that_are_sent_are_read_as_from_a_tap() {
        let (sender, socket) = SynSender::pair().unwrap();
        let tap = SynTap::inherited(socket);
        let mut packet = [0; SNAP];
        assert_eq!(tap.recv(&mut packet).unwrap(), None);
        sender.send(b"one").unwrap();
        sender.send(b"two").unwrap();
        assert_eq!(tap.recv(&mut packet).unwrap(), Some(&b"one"[..]));
        assert_eq!(tap.recv(&mut packet).unwrap(), Some(&b"two"[..]));
        // A process that does not read does not block the sender.
        (0..10_000).for_each(|_| sender.send(&[0; SNAP]).unwrap());
        drop(tap);
        assert!(sender.send(b"three").is_err());
    }
}
