//! Work on a packet that is left to a device: the kernel's `struct virtio_net_hdr`, before the link
//! header.

use std::io;
use std::num::NonZeroU16;
use std::os::fd::BorrowedFd;

use crate::os;

/// Bytes of the structure.
pub(super) const LEN: usize = 10;
/// Constants of `linux/virtio_net.h`.
const NEEDS_CHECKSUM: u8 = 1;
const NO_SEGMENTS: u8 = 0;
/// Constant of `linux/if_packet.h`, which libc lacks on some targets.
const PACKET_VNET_HDR: libc::c_int = 15;

/// Work on a packet that is left to a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Offload {
    /// Segment size in bytes of data, if a device will segment the packet.
    pub(super) segment: Option<NonZeroU16>,
    /// Missing checksum: offset, from the link header, of the first byte that it covers, and offset
    /// of the checksum field from that byte.
    pub(super) checksum: Option<(usize, usize)>,
}

/// Enables the header on each packet. Must be called before the ring is set up.
pub(super) fn ask_for(socket: BorrowedFd<'_>) -> io::Result<()> {
    os::setsockopt(socket, libc::SOL_PACKET, PACKET_VNET_HDR, &1)
}

impl Offload {
    /// Parses the structure, which is in host byte order.
    pub(super) fn parse(bytes: [u8; LEN]) -> Offload {
        let [flags, kind, _, _, size_0, size_1, start_0, start_1, at_0, at_1] = bytes;
        let number = |pair: [u8; 2]| usize::from(u16::from_ne_bytes(pair));
        let segment = NonZeroU16::new(u16::from_ne_bytes([size_0, size_1]));
        let checksum = (number([start_0, start_1]), number([at_0, at_1]));
        Offload {
            segment: segment.filter(|_| kind != NO_SEGMENTS),
            checksum: (flags & NEEDS_CHECKSUM != 0).then_some(checksum),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segment_size_and_missing_checksum_are_parsed() {
        let [size, start, at] = [1_448u16, 34, 16].map(u16::to_ne_bytes);
        let bytes = [[1, 1], [54, 0], size, start, at].concat().try_into().unwrap();
        let segment = NonZeroU16::new(1_448);
        assert_eq!(Offload::parse(bytes), Offload { segment, checksum: Some((34, 16)) });
        assert_eq!(Offload::parse([0; LEN]), Offload::default());
    }
}
