//! A tap that sees the SYNs that arrive, before the kernel's TCP answers them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use libc::{AF_PACKET, SOCK_DGRAM};

use crate::filter::{self, SynFilter};
use crate::os;

/// Bytes of SYNs that wait to be read, at most: some thousands.
const BACKLOG: libc::c_int = 4 << 20;
/// Bytes of a SYN that are read: an MTU, Fast Open data included.
pub const SNAP: usize = 2048;

/// Of `linux/if_packet.h`; libc has it not.
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

/// The tap. Packets begin at their IP header.
#[derive(Debug)]
pub struct SynTap {
    socket: OwnedFd,
}

impl SynTap {
    /// A tap on all interfaces of the calling thread's network namespace, for SYNs that the filter
    /// wants.
    ///
    /// # Errors
    /// Root or CAP_NET_RAW is missing; or there is no such filter.
    pub fn open(filter: SynFilter<'_>) -> io::Result<SynTap> {
        // Without a protocol nothing arrives until the filter is in place.
        let socket = os::socket(AF_PACKET, SOCK_DGRAM, 0)?;
        filter::attach(socket.as_fd(), &filter.build().map_err(io::Error::other)?)?;
        os::set_receive_buffer(socket.as_fd(), BACKLOG)?;
        // Else the kernel would copy each packet that leaves, only to have the filter refuse it.
        os::setsockopt(socket.as_fd(), libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &1)?;
        os::bind_packet(socket.as_fd(), 0)?;
        Ok(SynTap { socket })
    }

    /// The same tap in another process: `socket` was opened by [`SynTap::open`] there.
    pub fn inherited(socket: OwnedFd) -> SynTap {
        SynTap { socket }
    }

    /// Reads the next SYN into `packet`, [`SNAP`] bytes; `None` if none waits.
    ///
    /// # Errors
    /// The interface that it came by went down, say; the tap goes on.
    pub fn recv<'a>(&self, packet: &'a mut [u8; SNAP]) -> io::Result<Option<&'a [u8]>> {
        match rustix::net::recv(&self.socket, &mut packet[..], rustix::net::RecvFlags::empty()) {
            Ok((len, _)) => Ok(Some(&packet[..len])),
            Err(rustix::io::Errno::AGAIN) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for SynTap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
