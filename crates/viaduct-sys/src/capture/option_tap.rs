//! Tap for incoming packets with a given TCP option. [`crate::nft::rst_guard`] hides these packets
//! from the kernel's TCP.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use libc::{AF_PACKET, SOCK_DGRAM};

use crate::capture::filter::{self, OptionFilter};
use crate::os;
use crate::socket::mmsg;

/// Size of the receive buffer in bytes: a tenth of a second at 300,000 packets per second.
const BACKLOG: usize = 64 << 20;
/// Constant of `linux/if_packet.h`, which libc lacks on some targets.
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

/// The tap. Packets begin at their IP header, and are read by an [`mmsg::Inbox`], which returns
/// them immediately. The blocks of a ring would delay them by a millisecond or two, which is too
/// long for a transport.
#[derive(Debug)]
pub struct OptionTap {
    socket: OwnedFd,
}

impl OptionTap {
    /// Opens a tap on all interfaces of the calling thread's network namespace, with `filter`.
    /// Errors: root or CAP_NET_RAW is missing, or the filter cannot be built.
    pub fn open(filter: OptionFilter<'_>) -> io::Result<OptionTap> {
        // Protocol 0: no packet arrives before the filter is in place.
        let socket = os::socket(AF_PACKET, SOCK_DGRAM, 0)?;
        filter::attach(socket.as_fd(), &filter.build().map_err(io::Error::other)?)?;
        os::set_receive_buffer(socket.as_fd(), BACKLOG)?;
        mmsg::report_checksum(socket.as_fd())?;
        // Otherwise the kernel would also run the filter on each outgoing packet.
        os::setsockopt(socket.as_fd(), libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &1)?;
        os::bind_packet(socket.as_fd(), 0)?;
        Ok(OptionTap { socket })
    }

    /// Replaces the filter, for example when the ports have changed. Errors: the filter cannot be
    /// built.
    pub fn set_filter(&self, filter: OptionFilter<'_>) -> io::Result<()> {
        filter::attach(self.socket.as_fd(), &filter.build().map_err(io::Error::other)?)
    }
}

impl AsFd for OptionTap {
    /// Readable when a packet is queued.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
