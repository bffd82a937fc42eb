//! Packets of TCP's format that are cut late: as many as go together pass the kernel as one, up to the device, which cuts it
//! (TSO), or up to the kernel's own cutting before that.
//!
//! A raw socket sends no packet that is longer than the interface takes; a packet socket does, where it is told at which
//! length to cut. It stands behind routes and rules: the caller says by which [`Hop`].
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use crate::hop::Hop;
use crate::os;
use rustix::net::sockopt;

/// Bytes of an Ethernet header; the loopback interface has one, too.
const ETHERNET: usize = 14;
/// `struct virtio_net_hdr`, bytes.
const CUTTING: usize = 10;
/// Of `linux/virtio_net.h`: the checksum is to be completed; TCP over IPv4, and over IPv6.
const NEEDS_CHECKSUM: u8 = 1;
const TCP_V4: u8 = 1;
const TCP_V6: u8 = 4;
/// Of `linux/if_packet.h`; libc has it not for all.
const PACKET_VNET_HDR: libc::c_int = 15;

/// A packet that is to be cut: its headers, checksum that of the pseudo header, and what stands behind.
#[derive(Clone, Copy, Debug)]
pub struct Whole<'a> {
    /// IP's and TCP's headers.
    pub head: &'a [u8],
    /// Pieces, one behind the other, of `segment` bytes each; 64 at most.
    pub pieces: &'a [&'a [u8]],
    /// Where TCP's header begins, and where in it the checksum stands.
    pub checksum: (usize, usize),
    /// Bytes between two cuts, headers aside.
    pub segment: usize,
}

/// The socket.
#[derive(Debug)]
pub struct Segments(OwnedFd);

impl Segments {
    /// In the calling thread's network namespace. Nothing is received. `buffer`: bytes that may wait to leave, or as many
    /// as the kernel allows.
    ///
    /// # Errors
    /// CAP_NET_RAW is missing.
    pub fn open(buffer: usize) -> io::Result<Segments> {
        let socket = os::socket(libc::AF_PACKET, libc::SOCK_RAW, 0)?;
        os::setsockopt(socket.as_fd(), libc::SOL_PACKET, PACKET_VNET_HDR, &1)?;
        sockopt::set_socket_send_buffer_size_force(&socket, buffer)
            .or_else(|_| sockopt::set_socket_send_buffer_size(&socket, buffer))?;
        Ok(Segments(socket))
    }

    /// Sends it; never waits.
    ///
    /// # Errors
    /// The interface is gone, or does not take it; a queue is full.
    pub fn send(&self, hop: &Hop, whole: &Whole<'_>) -> io::Result<()> {
        let is_ipv4 = whole.head.first().is_some_and(|byte| byte >> 4 == 4);
        let protocol = (if is_ipv4 { libc::ETH_P_IP } else { libc::ETH_P_IPV6 }) as u16;
        let front = front(hop, whole, protocol, if is_ipv4 { TCP_V4 } else { TCP_V6 });
        let parts = [&front[..], whole.head].into_iter().chain(whole.pieces.iter().copied());
        let mut slices: Vec<libc::iovec> = parts
            // The kernel only reads it: the cast away from const is the C interface's.
            .map(|part| libc::iovec {
                iov_base: part.as_ptr().cast_mut().cast(),
                iov_len: part.len(),
            })
            .collect();
        // SAFETY: all zeros is a `sockaddr_ll`.
        let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_protocol = protocol.to_be();
        to.sll_ifindex = hop.interface.cast_signed();
        // SAFETY: all zeros is a `msghdr` that points nowhere.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_name, message.msg_namelen) = ((&raw mut to).cast(), size_of_val(&to) as u32);
        (message.msg_iov, message.msg_iovlen) = (slices.as_mut_ptr(), slices.len() as _);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the header points to an address and to slices of bytes, all of which live until the call returns.
        let sent = unsafe { libc::sendmsg(self.0.as_raw_fd(), &raw const message, flags) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// What stands before IP's header: how to cut, and the link's own.
fn front(hop: &Hop, whole: &Whole<'_>, protocol: u16, kind: u8) -> [u8; CUTTING + ETHERNET] {
    let (starts, stands) = whole.checksum;
    let words = [ETHERNET + whole.head.len(), whole.segment, ETHERNET + starts, stands];
    let mut front = [0; CUTTING + ETHERNET];
    front[..2].copy_from_slice(&[NEEDS_CHECKSUM, kind]);
    for (at, word) in front[2..CUTTING].chunks_mut(2).zip(words) {
        at.copy_from_slice(&(word as u16).to_ne_bytes());
    }
    front[CUTTING..CUTTING + 6].copy_from_slice(&hop.next);
    front[CUTTING + 6..CUTTING + 12].copy_from_slice(&hop.own);
    front[CUTTING + 12..].copy_from_slice(&protocol.to_be_bytes());
    front
}
