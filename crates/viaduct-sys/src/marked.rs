//! A tap that sees arriving packets in TCP's format that bear a mark, which the kernel's TCP is kept
//! from ([`crate::keep_out`]).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use libc::{AF_PACKET, SOCK_DGRAM};

use crate::filter::{self, MarkedFilter};
use crate::{mmsg, os};

/// Bytes of packets that wait to be read, at most: a tenth of a second at 300,000 a second.
const BACKLOG: libc::c_int = 64 << 20;
/// Of `linux/if_packet.h`; libc has it not for all.
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

/// The tap. Packets begin at their IP header; read them by [`mmsg::Inbox`], which hands them over
/// without waiting for more, as a ring's blocks would (a millisecond or two: too much for a transport).
#[derive(Debug)]
pub struct MarkedTap {
    socket: OwnedFd,
}

impl MarkedTap {
    /// A tap on all interfaces of the calling thread's network namespace, for what the filter wants.
    ///
    /// # Errors
    /// Root or CAP_NET_RAW is missing; or there is no such filter.
    pub fn open(filter: MarkedFilter<'_>) -> io::Result<MarkedTap> {
        // Without a protocol nothing arrives until the filter is in place.
        let socket = os::socket(AF_PACKET, SOCK_DGRAM, 0)?;
        filter::attach(socket.as_fd(), &filter.build().map_err(io::Error::other)?)?;
        os::set_receive_buffer(socket.as_fd(), BACKLOG)?;
        mmsg::tell_checksum(socket.as_fd())?;
        // Else the kernel would copy each packet that leaves, only to have the filter refuse it.
        os::setsockopt(socket.as_fd(), libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &1)?;
        os::bind_packet(socket.as_fd(), 0)?;
        Ok(MarkedTap { socket })
    }

    /// Sees other ports from now on.
    ///
    /// # Errors
    /// There is no such filter.
    pub fn set_filter(&self, filter: MarkedFilter<'_>) -> io::Result<()> {
        filter::attach(self.socket.as_fd(), &filter.build().map_err(io::Error::other)?)
    }
}

impl AsFd for MarkedTap {
    /// Readable when a packet waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
