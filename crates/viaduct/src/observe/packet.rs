//! Captured packets, reduced to the data that the analysis needs.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::IpAddr;
use std::time::Duration;

use viaduct_proto::wire::ip::{self, Header};
use viaduct_proto::wire::transport::{self, Segment, UDP};

/// Number of bytes at the start of a payload that identify the payload.
const PAYLOAD_PREFIX: usize = 64;
const TCP_CHECKSUM: std::ops::Range<usize> = 16..18;
const UDP_CHECKSUM: std::ops::Range<usize> = 6..8;

/// Addresses and ports of a packet, in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ends {
    pub source: (IpAddr, u16),
    pub destination: (IpAddr, u16),
}

impl Ends {
    /// Ends of the opposite direction.
    pub fn back(self) -> Ends {
        Ends { source: self.destination, destination: self.source }
    }

    /// Addresses of the source and the destination.
    pub fn hosts(self) -> (IpAddr, IpAddr) {
        (self.source.0, self.destination.0)
    }
}

/// Captured packet.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Time of capture since 1970.
    pub at: Duration,
    pub ends: Ends,
    pub ttl: u8,
    /// Hash that identifies the packet. For a TCP segment with data, the hash does not cover the
    /// data.
    pub key: u64,
    /// Sequence number and length of the data; `None` if the packet is not a TCP segment with data.
    pub data: Option<Data>,
    pub is_syn: bool,
    /// MSS in a SYN.
    pub mss: Option<u16>,
}

/// Position and length of TCP data.
#[derive(Clone, Copy, Debug)]
pub struct Data {
    pub sequence: u32,
    pub length: u32,
    /// True if the segment has TCP timestamps.
    pub has_timestamps: bool,
}

impl Data {
    /// Pieces into which the data is split on a link whose segments have `size` bytes of data, at
    /// least one.
    pub fn pieces(self, size: u32) -> impl Iterator<Item = Data> {
        (0..self.length.div_ceil(size)).map(move |n| Data {
            sequence: self.sequence.wrapping_add(n * size),
            length: size.min(self.length - n * size),
            ..self
        })
    }
}

impl Packet {
    /// Parses `bytes`, the captured start of an IP packet; `None` if they are too few, or not an IP
    /// packet. A TCP segment that a host passes to its interface for segmentation may have the
    /// length 0 in its header: `length` is then used instead.
    pub fn parse(at: Duration, bytes: &[u8], length: usize) -> Option<Packet> {
        // Packets that were truncated by the capture, or have a length of 0, are padded: the parser
        // requires complete packets, but only headers are examined.
        let mut whole = bytes.to_vec();
        let declared = declared_length(bytes)?;
        let total = if declared == 0 { length } else { declared };
        // A damaged packet may state any length.
        let total = total.min(usize::from(u16::MAX));
        set_length(&mut whole, total);
        whole.resize(total, 0);
        let header = Header::parse(&whole).ok()?;
        let fields = ip::mutable_fields(&whole)?;
        let whole = &whole[..header.total_len];
        // Padding of the link layer follows short packets.
        let bytes = &bytes[..bytes.len().min(header.total_len)];
        let payload = bytes.get(header.header_len..)?;
        let ports = transport::ports(whole).unwrap_or_default();
        let ends =
            Ends { source: (header.source, ports[0]), destination: (header.destination, ports[1]) };
        let segment = Segment::parse(whole);
        let mut hasher = DefaultHasher::new();
        (ends, header.protocol).hash(&mut hasher);
        match &segment {
            Some(of) if of.data > 0 => timestamp(payload).hash(&mut hasher),
            Some(_) => hash_without(payload, TCP_CHECKSUM, header_of_tcp(payload), &mut hasher),
            None => {
                // The hash includes IPv4's identification and fragment offset, because fragments,
                // and packets of other protocols, have no TCP sequence number.
                bytes.get(4..8).filter(|_| bytes[0] >> 4 == 4).hash(&mut hasher);
                let skipped = if header.protocol == UDP { UDP_CHECKSUM } else { 0..0 };
                hash_without(payload, skipped, PAYLOAD_PREFIX, &mut hasher);
                header.total_len.hash(&mut hasher);
            }
        }
        let is_syn = segment.is_some_and(|of| of.is_syn());
        let data = segment.filter(|of| of.data > 0).map(|of| Data {
            // A SYN occupies one sequence number, before its data (TCP Fast Open).
            sequence: of.sequence.wrapping_add(u32::from(is_syn)),
            length: of.data,
            has_timestamps: timestamp(payload).is_some(),
        });
        Some(Packet {
            at,
            ends,
            ttl: fields.ttl,
            key: hasher.finish(),
            data,
            is_syn,
            mss: mss(payload).filter(|_| is_syn),
        })
    }

    /// Hashes that identify the packets into which this packet is split on a link whose segments
    /// have `size` bytes of data, at least one.
    pub fn keys(&self, size: u32) -> impl Iterator<Item = u64> {
        let key = self.key;
        let whole = self.data.is_none().then_some(key);
        let pieces = self.data.into_iter().flat_map(move |data| data.pieces(size));
        whole.into_iter().chain(pieces.map(move |piece| {
            let mut hasher = DefaultHasher::new();
            (key, piece.sequence).hash(&mut hasher);
            hasher.finish()
        }))
    }
}

fn declared_length(bytes: &[u8]) -> Option<usize> {
    match bytes.first()? >> 4 {
        4 => Some(usize::from(u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?]))),
        6 => match u16::from_be_bytes([*bytes.get(4)?, *bytes.get(5)?]) {
            0 => Some(0),
            payload => Some(40 + usize::from(payload)),
        },
        _ => None,
    }
}

fn set_length(bytes: &mut [u8], total: usize) {
    let (at, length) = if bytes[0] >> 4 == 4 { (2, total) } else { (4, total.saturating_sub(40)) };
    if let Some(field) = bytes.get_mut(at..at + 2) {
        field.copy_from_slice(&(length as u16).to_be_bytes());
    }
}

fn hash_without(
    bytes: &[u8],
    skipped: std::ops::Range<usize>,
    most: usize,
    hasher: &mut DefaultHasher,
) {
    let bytes = &bytes[..bytes.len().min(most)];
    let first = &bytes[..skipped.start.min(bytes.len())];
    let second = bytes.get(skipped.end..).unwrap_or_default();
    (first, second).hash(hasher);
}

fn header_of_tcp(segment: &[u8]) -> usize {
    segment.get(12).map_or(0, |offset| usize::from(offset >> 4) * 4)
}

/// Options of a segment: kind and value.
fn options(segment: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    let mut rest = segment.get(20..header_of_tcp(segment)).unwrap_or_default();
    std::iter::from_fn(move || {
        loop {
            match *rest.first()? {
                0 => return None,
                1 => rest = &rest[1..],
                kind => {
                    let length = usize::from(*rest.get(1)?).max(2);
                    let (option, behind) = rest.split_at_checked(length)?;
                    rest = behind;
                    return Some((kind, &option[2..]));
                }
            }
        }
    })
}

/// TCP timestamp of the sender, which distinguishes a segment from its retransmission.
fn timestamp(segment: &[u8]) -> Option<u32> {
    let (_, body) = options(segment).find(|(kind, _)| *kind == 8)?;
    Some(u32::from_be_bytes(*body.first_chunk()?))
}

fn mss(segment: &[u8]) -> Option<u16> {
    let (_, body) = options(segment).find(|(kind, _)| *kind == 2)?;
    Some(u16::from_be_bytes(*body.first_chunk()?))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const SYN: u8 = 2;
    const ACK: u8 = 0x10;

    /// Segment from host 1 to host 2, or back, with `data` bytes starting at `sequence`, and with
    /// timestamps.
    pub(in crate::observe) fn segment(
        millis: u64,
        back: bool,
        sequence: u32,
        data: usize,
        ttl: u8,
    ) -> Packet {
        let mut options: [u8; 12] = [1, 1, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0];
        options[4..8].copy_from_slice(&(millis as u32).to_be_bytes());
        tcp(millis, back, sequence, (ACK, &options), data, ttl)
    }

    /// Segment from host 1 to host 2 with `data` bytes starting at `sequence`, without options.
    pub(in crate::observe) fn plain(millis: u64, sequence: u32, data: usize, ttl: u8) -> Packet {
        tcp(millis, false, sequence, (ACK, &[]), data, ttl)
    }

    /// SYN from host 1 to host 2 with an MSS of 1,460.
    pub(in crate::observe) fn syn(millis: u64, sequence: u32, ttl: u8) -> Packet {
        tcp(millis, false, sequence, (SYN, &[2, 4, 0x05, 0xb4]), 0, ttl)
    }

    fn tcp(
        millis: u64,
        back: bool,
        sequence: u32,
        (flags, options): (u8, &[u8]),
        data: usize,
        ttl: u8,
    ) -> Packet {
        let header = 40 + options.len();
        let mut bytes = vec![0; header + data];
        (bytes[0], bytes[8], bytes[9]) = (0x45, ttl, 6);
        set_length(&mut bytes, header + data);
        let (from, to) =
            if back { ([10, 2, 0, 1], [10, 1, 0, 1]) } else { ([10, 1, 0, 1], [10, 2, 0, 1]) };
        bytes[12..16].copy_from_slice(&from);
        bytes[16..20].copy_from_slice(&to);
        bytes[20..24].copy_from_slice(&if back { [0, 80, 0, 9] } else { [0, 9, 0, 80] });
        bytes[24..28].copy_from_slice(&sequence.to_be_bytes());
        (bytes[32], bytes[33]) = ((5 + options.len() as u8 / 4) << 4, flags);
        bytes[40..header].copy_from_slice(options);
        let at = Duration::from_millis(millis);
        Packet::parse(at, &bytes[..bytes.len().min(96)], bytes.len()).unwrap()
    }

    #[test]
    fn a_large_segment_has_the_keys_of_the_segments_into_which_it_is_split() {
        let whole = segment(5, false, 1_000, 3_000, 64);
        let pieces = [0, 1, 2].map(|n| segment(5, false, 1_000 + 1_000 * n, 1_000, 62));
        let of: Vec<u64> = pieces.iter().flat_map(|piece| piece.keys(1_000)).collect();
        assert_eq!(whole.keys(1_000).collect::<Vec<_>>(), of);
        let again = segment(9, false, 1_000, 1_000, 64);
        assert_ne!(again.keys(1_000).next(), Some(of[0]), "a retransmission has another timestamp");
    }

    #[test]
    fn data_in_a_syn_follows_it() {
        let packet = tcp(0, false, u32::MAX, (SYN, &[]), 100, 64);
        assert_eq!(packet.data.unwrap().sequence, 0);
    }

    #[test]
    fn checksums_and_hop_limits_do_not_identify_a_packet() {
        let ack = |ttl| segment(7, true, 50, 0, ttl).key;
        assert_eq!(ack(64), ack(60));
        assert_ne!(ack(64), segment(8, true, 50, 0, 64).key);
    }

    #[test]
    fn padding_of_the_link_does_not_identify_a_packet() {
        let mut bytes = [0; 46];
        (bytes[0], bytes[3], bytes[9]) = (0x45, 30, UDP);
        let key = |bytes: &[u8]| Packet::parse(Duration::ZERO, bytes, bytes.len()).unwrap().key;
        assert_eq!(key(&bytes[..30]), key(&bytes));
    }

    #[test]
    fn a_false_length_is_limited() {
        let mut bytes = [0; 60];
        (bytes[0], bytes[9], bytes[32]) = (0x45, 6, 0x50);
        let packet = Packet::parse(Duration::ZERO, &bytes, usize::MAX).unwrap();
        assert_eq!(packet.data.unwrap().length, 65_535 - 40);
    }
}
