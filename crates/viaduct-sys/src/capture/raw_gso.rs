//! TCP segmentation offload for packets that we build: a run of segments passes through the kernel
//! as one packet, which is segmented by the device (TSO), or by the kernel just before the device.
//!
//! A raw socket cannot send packets that exceed the interface's MTU. A packet socket can, if each
//! packet comes with its segment size. Its packets bypass routes and firewall rules, so the caller
//! specifies the [`NextHop`].
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use crate::os;
use crate::route::next_hop::NextHop;

/// Bytes of an Ethernet header, which the loopback interface uses as well.
const ETHERNET: usize = 14;
/// Bytes of `struct virtio_net_hdr`.
const VNET_HEADER: usize = 10;
// Constants of `linux/virtio_net.h`: flag of an incomplete checksum, TCP over IPv4, TCP over IPv6.
const NEEDS_CHECKSUM: u8 = 1;
const TCP_V4: u8 = 1;
const TCP_V6: u8 = 4;
/// Constant of `linux/if_packet.h`, which libc lacks on some targets.
const PACKET_VNET_HDR: libc::c_int = 15;

/// A packet to be segmented: its headers, with the checksum of the pseudo header, and its payload.
#[derive(Clone, Copy, Debug)]
pub struct SuperPacket<'a> {
    /// IP and TCP headers.
    pub head: &'a [u8],
    /// Consecutive pieces of the payload, at most 64, of `segment` bytes each.
    pub pieces: &'a [&'a [u8]],
    /// Offset of the TCP header in `head`, and offset of the checksum in the TCP header.
    pub checksum: (usize, usize),
    /// Bytes of payload per segment.
    pub segment: usize,
}

/// Packet socket for super-packets.
#[derive(Debug)]
pub struct GsoSocket(OwnedFd);

impl GsoSocket {
    /// Opens a socket, which receives nothing, in the calling thread's network namespace. Sets the
    /// size of its send buffer to `buffer` bytes, or to the kernel's maximum. Errors: CAP_NET_RAW
    /// is missing.
    pub fn open(buffer: usize) -> io::Result<GsoSocket> {
        let socket = os::socket(libc::AF_PACKET, libc::SOCK_RAW, 0)?;
        os::setsockopt(socket.as_fd(), libc::SOL_PACKET, PACKET_VNET_HDR, &1)?;
        os::set_send_buffer(&socket, buffer)?;
        Ok(GsoSocket(socket))
    }

    /// Sends a packet. Does not block. Errors: the interface no longer exists or refuses the
    /// packet, or a queue is full.
    pub fn send(&self, hop: &NextHop, whole: &SuperPacket<'_>) -> io::Result<()> {
        let is_ipv4 = whole.head.first().is_some_and(|byte| byte >> 4 == 4);
        let protocol = (if is_ipv4 { libc::ETH_P_IP } else { libc::ETH_P_IPV6 }) as u16;
        let headers = headers(hop, whole, protocol, if is_ipv4 { TCP_V4 } else { TCP_V6 });
        let parts = [&headers[..], whole.head].into_iter().chain(whole.pieces.iter().copied());
        let mut slices: Vec<libc::iovec> = parts
            // The kernel only reads the bytes: the cast away from const is due to the C
            // interface.
            .map(|part| libc::iovec {
                iov_base: part.as_ptr().cast_mut().cast(),
                iov_len: part.len(),
            })
            .collect();
        // SAFETY: all zeros are a valid `sockaddr_ll`.
        let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_protocol = protocol.to_be();
        to.sll_ifindex = hop.interface.cast_signed();
        // SAFETY: all zeros are a `msghdr` with null pointers.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_name, message.msg_namelen) = ((&raw mut to).cast(), size_of_val(&to) as u32);
        (message.msg_iov, message.msg_iovlen) = (slices.as_mut_ptr(), slices.len() as _);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the header points to an address and to slices of bytes, all of which live
        // until the call returns.
        let sent = unsafe { libc::sendmsg(self.0.as_raw_fd(), &raw const message, flags) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Builds the headers before the IP header: virtio's, for the segmentation, and the link layer's.
fn headers(
    hop: &NextHop,
    whole: &SuperPacket<'_>,
    protocol: u16,
    kind: u8,
) -> [u8; VNET_HEADER + ETHERNET] {
    let (start, field) = whole.checksum;
    let words = [ETHERNET + whole.head.len(), whole.segment, ETHERNET + start, field];
    let mut headers = [0; VNET_HEADER + ETHERNET];
    headers[..2].copy_from_slice(&[NEEDS_CHECKSUM, kind]);
    for (at, word) in headers[2..VNET_HEADER].chunks_mut(2).zip(words) {
        at.copy_from_slice(&(word as u16).to_ne_bytes());
    }
    headers[VNET_HEADER..VNET_HEADER + 6].copy_from_slice(&hop.next);
    headers[VNET_HEADER + 6..VNET_HEADER + 12].copy_from_slice(&hop.own);
    headers[VNET_HEADER + 12..].copy_from_slice(&protocol.to_be_bytes());
    headers
}
