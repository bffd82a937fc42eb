//! A captured packet, borrowed from the ring.

use std::num::NonZeroU16;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use libc::{PACKET_OUTGOING, TP_STATUS_CSUMNOTREADY};

use super::map::Packet;
use super::offload::{self, Offload};

/// Direction of a packet on the interface, seen from this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Sent by this machine: its own, or one that it forwards.
    Outgoing,
    /// Received by this machine, for any destination.
    Incoming,
}

/// A packet in the ring, from the first byte of its network header to the last of it.
///
/// The frame is a copy: writes to it do not change the packet, which has long been on its way.
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
    /// Returns whether packets were missed between the previous frame and this one, or perhaps
    /// a little earlier, because the ring was full. After some gaps only the drop count tells.
    pub fn follows_gap(&self) -> bool {
        self.follows_gap
    }

    /// Sets whether the packet follows a gap.
    pub(super) fn after(self, follows_gap: bool) -> Frame<'a> {
        Frame { follows_gap, ..self }
    }

    /// Wraps a packet of a socket whose packets begin at the network header.
    pub(super) fn new(packet: Packet<'a>) -> Frame<'a> {
        Frame::behind(packet, 0, Offload::default())
    }

    /// Wraps a packet of a socket whose packets begin at the link header, preceded by the
    /// kernel's offload header.
    pub(super) fn with_offload(packet: Packet<'a>) -> Frame<'a> {
        let header = packet.header();
        let (link, network) = (usize::from(header.tp_mac), usize::from(header.tp_net));
        let before = network.saturating_sub(link);
        let told = link.checked_sub(offload::LEN).and_then(|at| packet.bytes_at(at));
        let mut offload = told.map_or_else(Offload::default, Offload::parse);
        // The offset counts from the link header; a checksum within that is ignored.
        offload.checksum =
            offload.checksum.and_then(|(start, at)| Some((start.checked_sub(before)?, at)));
        Frame::behind(packet, before, offload)
    }

    /// Wraps a packet that follows a link header of `link` bytes.
    fn behind(packet: Packet<'a>, link: usize, offload: Offload) -> Frame<'a> {
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

    /// Direction of the packet.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// Bytes of the packet as it crossed the interface, of which the frame holds the first.
    ///
    /// An IP packet's own length counts, so the padding of short Ethernet frames is excluded.
    pub fn original_len(&self) -> usize {
        self.original_len
    }

    /// Returns whether the packet was longer than a block of the ring, so that its end is
    /// missing.
    pub fn truncated(&self) -> bool {
        self.bytes.len() < self.original_len
    }

    /// False if a device has still to fill in the transport checksum: the bytes here then
    /// differ from those on the wire. Switch checksum offload off to see the real ones.
    pub fn checksum_ready(&self) -> bool {
        self.checksum_ready
    }

    /// Bytes of data of each packet that the frame will be cut into; `None` if it is one
    /// packet, or offloads are not reported.
    pub fn segment(&self) -> Option<NonZeroU16> {
        self.offload.segment
    }

    /// Offset of the first byte under a missing checksum, and from there the offset of the
    /// checksum field, which holds the sum of the pseudo header. `None` if no checksum is
    /// missing, or offloads are not reported.
    pub fn checksum(&self) -> Option<(usize, usize)> {
        self.offload.checksum
    }

    /// Time when the packet crossed the interface, by the wall clock: since 1970.
    pub fn stamp(&self) -> Duration {
        self.stamp
    }

    /// Ethertype: 0x0800 for IPv4, 0x86dd for IPv6.
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

/// Length that an IP packet states; `None` if it states none (not IP, or a jumbogram).
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
    fn the_length_is_the_packets_own() {
        assert_eq!(ip_length(&[0x45, 0, 0, 40, 0, 0]), Some(40));
        assert_eq!(ip_length(&[0x60, 0, 0, 0, 0, 20]), Some(60));
        assert_eq!(ip_length(&[0x45, 0, 0, 0, 0, 0]), None, "a super-packet above 64 KiB");
        assert_eq!(ip_length(&[0x00, 1, 8, 0]), None, "not IP");
        assert_eq!(ip_length(&[0x45, 0, 0]), None, "cut short");
    }
}
