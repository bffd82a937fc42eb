//! Messages to send, in one buffer.

use std::ffi::c_int;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd};

use super::{BATCH, BatchSender, Datagram};
use crate::os;
use crate::socket::udp::SendReport;

/// Max datagrams in one message. A full queue drops a message with all its datagrams: a higher
/// limit would cause bursts of losses that take long to repair, and would save little.
const MAX_SEGMENTS: usize = 16;

/// Messages for the next send call.
#[derive(Debug, Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    /// Destinations whose path MTU a message exceeded; see [`Outbox::too_long`].
    too_long: Vec<IpAddr>,
    sender: BatchSender,
}

#[derive(Debug)]
struct Entry {
    range: Range<usize>,
    to: SocketAddr,
    from: Option<IpAddr>,
}

impl Outbox {
    /// Creates an outbox for a UDP socket. Consecutive datagrams of the same length, peer and local
    /// address are passed as one message, which the kernel segments as late as possible
    /// (UDP_SEGMENT).
    pub fn of_datagrams() -> Outbox {
        Outbox { sender: BatchSender::with_segments(MAX_SEGMENTS), ..Outbox::default() }
    }

    /// Adds a message to `to`. `from` is the source address of a datagram; a raw packet has its
    /// source in its header.
    pub fn push(&mut self, bytes: &[u8], to: SocketAddr, from: Option<IpAddr>) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.entries.push(Entry { range: start..self.bytes.len(), to, from });
    }

    /// Returns whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns whether the outbox has as many messages as one system call can send.
    pub fn is_full(&self) -> bool {
        self.entries.len() >= BATCH
    }

    /// Iterates over the messages, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], SocketAddr)> {
        self.entries.iter().map(|entry| (&self.bytes[entry.range.clone()], entry.to))
    }

    /// Removes the messages whose index, in the order of [`Outbox::iter`], satisfies `gone`.
    pub fn forget(&mut self, gone: impl Fn(usize) -> bool) {
        let mut place = 0..;
        self.entries.retain(|_| !place.next().is_some_and(&gone));
        if self.entries.is_empty() {
            self.bytes.clear();
        }
    }

    /// Sends all messages that the kernel accepts now, and empties the outbox. Does not block.
    /// Messages that failed are counted in the report.
    pub fn flush(&mut self, socket: BorrowedFd<'_>) -> SendReport {
        let Outbox { bytes, entries, too_long, sender } = self;
        too_long.clear();
        let datagram = |entry: &Entry| {
            let bytes = &bytes[entry.range.clone()];
            Datagram { bytes, to: entry.to, from: entry.from }
        };
        let datagrams: Vec<_> = entries.iter().map(datagram).collect();
        let report = sender.send(socket, &datagrams, |datagram, error| {
            if error == Some(libc::EMSGSIZE) {
                too_long.push(datagram.to.ip());
            }
        });
        entries.clear();
        bytes.clear();
        report
    }

    /// Returns the destinations whose path MTU a message of the last [`Outbox::flush`] exceeded;
    /// see [`path_mtu`].
    pub fn too_long(&self) -> &[IpAddr] {
        &self.too_long
    }
}

/// Returns the path MTU to `ip` that the kernel knows: the device's MTU, or a lower MTU that a
/// router has reported to the kernel's own sockets. Errors: there is no route to `ip`.
pub fn path_mtu(ip: IpAddr) -> io::Result<usize> {
    let any: IpAddr =
        if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect((ip, 9))?;
    let (level, option) = match ip {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
    };
    let mtu: c_int = os::getsockopt(socket.as_fd(), level, option)?;
    Ok(usize::try_from(mtu).unwrap_or(0))
}
