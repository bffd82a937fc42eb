//! A captured packet, borrowed from the ring.

use std::num::NonZeroU16;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use libc::{PACKET_OUTGOING, TP_STATUS_CSUMNOTREADY};

use super::map::Packet;
use super::offload::{self, Offload};

/// Direction of a packet on the interface, as seen from this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Sent or forwarded by this machine.
    Outgoing,
    /// Received by this machine, for any destination.
    Incoming,
}

/// A packet in the ring, beginning at its network header. The ring has a copy of the packet, so
/// writes to a frame do not change the packet on the wire.
#[derive(Debug)]
pub struct Frame<'a> {
    bytes: &'a mut [u8],
    original_len: usize,
    direction: Direction,
    checksum_ready: bool,
    protocol: u16,
    stamp: Duration,
    offload: Offload,
    follows_gap: bool,
}

impl<'a> Frame<'a> {
    /// Returns whether packets were lost before this frame because the ring was full: between the
    /// previous frame and this one, or a little earlier. Some losses are visible only in the drop
    /// count.
    pub fn follows_gap(&self) -> bool {
        self.follows_gap
    }

    pub(super) fn after(self, follows_gap: bool) -> Frame<'a> {
        Frame { follows_gap, ..self }
    }

    /// Wraps a packet of a socket whose packets begin at the network header.
    pub(super) fn new(packet: Packet<'a>) -> Frame<'a> {
        Frame::with_link_header(packet, 0, Offload::default())
    }

    /// Wraps a packet that begins at the link header, preceded by the kernel's offload header.
    pub(super) fn with_offload(packet: Packet<'a>) -> Frame<'a> {
        let header = packet.header();
        let (link, network) = (usize::from(header.tp_mac), usize::from(header.tp_net));
        let before = network.saturating_sub(link);
        let told = link.checked_sub(offload::LEN).and_then(|at| packet.bytes_at(at));
        let mut offload = told.map_or_else(Offload::default, Offload::parse);
        // The offset counts from the link header. A checksum range that begins in the link header
        // is ignored.
        offload.checksum =
            offload.checksum.and_then(|(start, at)| Some((start.checked_sub(before)?, at)));
        Frame::with_link_header(packet, before, offload)
    }

    /// Wraps a packet that follows a link header of `link` bytes.
    fn with_link_header(packet: Packet<'a>, link: usize, offload: Offload) -> Frame<'a> {
        let header = packet.header();
        let address = packet.address();
        let kept = (header.tp_snaplen as usize).saturating_sub(link);
        let bytes = packet.into_bytes(header.tp_net.into(), kept);
        let on_wire = (header.tp_len as usize).saturating_sub(link);
        let original_len = ip_length(bytes).map_or(on_wire, |length| length.min(on_wire));
        let captured = bytes.len().min(original_len);
        let outgoing = address.sll_pkttype == PACKET_OUTGOING;
        Frame {
            bytes: &mut bytes[..captured],
            original_len,
            direction: if outgoing { Direction::Outgoing } else { Direction::Incoming },
            checksum_ready: header.tp_status & TP_STATUS_CSUMNOTREADY == 0,
            protocol: u16::from_be(address.sll_protocol),
            stamp: Duration::new(header.tp_sec.into(), header.tp_nsec),
            offload,
            follows_gap: false,
        }
    }

    /// Returns the direction of the packet.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// Returns the number of bytes of the packet on the interface. A truncated frame has fewer
    /// bytes. For an IP packet this is the length in its header, which excludes the padding of
    /// short Ethernet frames.
    pub fn original_len(&self) -> usize {
        self.original_len
    }

    /// Returns whether the packet did not fit into a block of the ring, so that its end is missing.
    pub fn truncated(&self) -> bool {
        self.bytes.len() < self.original_len
    }

    /// Returns false if the transport checksum is still to be filled in by a device. The bytes of
    /// the frame then differ from those on the wire. If checksum offload is switched off
    /// ([`crate::capture::offload`]), all checksums are filled in.
    pub fn checksum_ready(&self) -> bool {
        self.checksum_ready
    }

    /// Returns the segment size, in bytes of data, if a device will segment the frame; `None` if
    /// the frame is one packet, or offloads are not reported.
    pub fn segment(&self) -> Option<NonZeroU16> {
        self.offload.segment
    }

    /// Returns, for a missing checksum, the offset of the first byte that it covers, and the offset
    /// of the checksum field from that byte. The field holds the sum of the pseudo header. `None`
    /// if no checksum is missing, or offloads are not reported.
    pub fn checksum(&self) -> Option<(usize, usize)> {
        self.offload.checksum
    }

    /// Returns the wall-clock time when the packet crossed the interface, as the time since 1970.
    pub fn stamp(&self) -> Duration {
        self.stamp
    }

    /// Returns the Ethertype: 0x0800 for IPv4, 0x86dd for IPv6.
    pub fn protocol(&self) -> u16 {
        self.protocol
    }
}

impl Deref for Frame<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

impl DerefMut for Frame<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.bytes
    }
}

/// Returns the length in an IP packet's header; `None` for a jumbogram, or if the packet is not IP.
fn ip_length(bytes: &[u8]) -> Option<usize> {
    let word =
        |at: usize| Some(usize::from(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?])));
    match bytes.first()? >> 4 {
        4 => word(2).filter(|&total| total >= 20),
        6 => word(4).filter(|&payload| payload > 0).map(|payload| payload + 40),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::ip_length;

    #[test]
    fn the_length_is_read_from_the_ip_header() {
        assert_eq!(ip_length(&[0x45, 0, 0, 40, 0, 0]), Some(40));
        assert_eq!(ip_length(&[0x60, 0, 0, 0, 0, 20]), Some(60));
        assert_eq!(ip_length(&[0x45, 0, 0, 0, 0, 0]), None, "a super-packet above 64 KiB");
        assert_eq!(ip_length(&[0x00, 1, 8, 0]), None, "not IP");
        assert_eq!(ip_length(&[0x45, 0, 0]), None, "cut short");
    }
}
