//! IPv4 and IPv6 headers, as far as a gateway needs them: length and addresses of a packet, and
//! the fields that routers may change.
//!
//! The repair of a packet must not depend on fields that routers change (time to live or hop
//! limit, DSCP and ECN, the IPv4 header checksum). [`normalise`] sets them to zero and returns
//! their values; [`restore`] is its inverse.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Fields of an IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Protocol number of the payload (IPv6: of the first next header).
    pub protocol: u8,
    /// Bytes before the payload (IPv6: only of the fixed header).
    pub header_len: usize,
    /// Bytes of the complete packet, header included.
    pub total_len: usize,
}

/// Mutable fields: the fields of a header that routers change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MutableFields {
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// DSCP and ECN: IPv4's type of service, IPv6's traffic class.
    pub tos: u8,
}

/// Reason why bytes are not an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The first nibble is neither 4 nor 6.
    #[error("IP version is {0}; it must be 4 or 6")]
    Version(u8),
    /// Fewer bytes than the header states, or than a header needs.
    #[error("packet of {have} bytes is truncated; its header requires {want}")]
    Short {
        /// Bytes present.
        have: usize,
        /// Bytes required.
        want: usize,
    },
    /// A header length below the minimum or beyond the packet, or an IPv6 jumbogram.
    #[error("lengths in the header contradict each other")]
    Lengths,
}

const V4_MIN: usize = 20;
const V6_LEN: usize = 40;
/// Hop limit of sent packets.
const HOPS: u8 = 64;
/// Flag of sent IPv4 packets.
const DONT_FRAGMENT: u8 = 0x40;

impl Header {
    /// Parses the header at the front of `bytes`, which may be longer than the packet (link-layer
    /// padding): [`Header::total_len`] gives the packet's length.
    pub fn parse(bytes: &[u8]) -> Result<Header, Error> {
        match bytes.first().map(|b| b >> 4) {
            Some(4) => parse_v4(bytes),
            Some(6) => parse_v6(bytes),
            Some(version) => Err(Error::Version(version)),
            None => Err(Error::Short { have: 0, want: V4_MIN }),
        }
    }
}

fn parse_v4(bytes: &[u8]) -> Result<Header, Error> {
    let Some(head) = bytes.first_chunk::<V4_MIN>() else {
        return Err(Error::Short { have: bytes.len(), want: V4_MIN });
    };
    let header_len = usize::from(head[0] & 15) * 4;
    let total_len = usize::from(u16::from_be_bytes([head[2], head[3]]));
    check_lengths(bytes.len(), header_len, V4_MIN, total_len)?;
    Ok(Header {
        source: Ipv4Addr::new(head[12], head[13], head[14], head[15]).into(),
        destination: Ipv4Addr::new(head[16], head[17], head[18], head[19]).into(),
        protocol: head[9],
        header_len,
        total_len,
    })
}

fn parse_v6(bytes: &[u8]) -> Result<Header, Error> {
    let Some(head) = bytes.first_chunk::<V6_LEN>() else {
        return Err(Error::Short { have: bytes.len(), want: V6_LEN });
    };
    let total_len = V6_LEN + usize::from(u16::from_be_bytes([head[4], head[5]]));
    check_lengths(bytes.len(), V6_LEN, V6_LEN, total_len)?;
    Ok(Header {
        source: address_v6(head, 8),
        destination: address_v6(head, 24),
        protocol: head[6],
        header_len: V6_LEN,
        total_len,
    })
}

fn address_v6(head: &[u8; V6_LEN], at: usize) -> IpAddr {
    let mut octets = [0; 16];
    octets.copy_from_slice(&head[at..at + 16]);
    Ipv6Addr::from(octets).into()
}

fn check_lengths(have: usize, header: usize, least: usize, total: usize) -> Result<(), Error> {
    if header < least || total < header {
        return Err(Error::Lengths);
    }
    if have < total {
        return Err(Error::Short { have, want: total });
    }
    Ok(())
}

/// Mutable fields of a packet, from its first bytes; `None` if it is not an IP packet.
pub fn mutable_fields(packet: &[u8]) -> Option<MutableFields> {
    match packet.first()? >> 4 {
        4 => Some(MutableFields { ttl: *packet.get(8)?, tos: packet[1] }),
        6 => Some(MutableFields { ttl: *packet.get(7)?, tos: packet[0] << 4 | packet[1] >> 4 }),
        _ => None,
    }
}

/// Zeroes the fields of a parsed packet that routers change, and returns their values. Panics:
/// never on bytes that [`Header::parse`] accepted.
pub fn normalise(packet: &mut [u8]) -> MutableFields {
    if packet[0] >> 4 == 4 {
        let fields = MutableFields { ttl: packet[8], tos: packet[1] };
        packet[1] = 0;
        packet[8] = 0;
        packet[10] = 0;
        packet[11] = 0;
        fields
    } else {
        let fields = MutableFields { ttl: packet[7], tos: packet[0] << 4 | packet[1] >> 4 };
        packet[0] &= 0xf0;
        packet[1] &= 0x0f;
        packet[7] = 0;
        fields
    }
}

/// Writes `fields` into a packet and computes its header checksum. Panics: never on bytes that
/// [`Header::parse`] accepted.
pub fn restore(packet: &mut [u8], fields: MutableFields) {
    if packet[0] >> 4 == 4 {
        packet[1] = fields.tos;
        packet[8] = fields.ttl;
        packet[10..12].fill(0);
        let header_len = usize::from(packet[0] & 15) * 4;
        let sum = internet_checksum(&packet[..header_len]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        packet[0] = packet[0] & 0xf0 | fields.tos >> 4;
        packet[1] = packet[1] & 0x0f | fields.tos << 4;
        packet[7] = fields.ttl;
    }
}

/// Appends the header of a packet of `total` bytes, with "don't fragment" set in IPv4. Both
/// addresses are of one family.
pub(crate) fn emit_header(
    from: IpAddr,
    to: IpAddr,
    protocol: u8,
    total: usize,
    packet: &mut Vec<u8>,
) {
    let start = packet.len();
    match (from, to) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let [high, low] = (total as u16).to_be_bytes();
            packet.extend([0x45, 0, high, low, 0, 0, DONT_FRAGMENT, 0, HOPS, protocol, 0, 0]);
            packet.extend(source.octets());
            packet.extend(destination.octets());
            let sum = internet_checksum(&packet[start..]);
            packet[start + 10..start + 12].copy_from_slice(&sum.to_be_bytes());
        }
        (source, destination) => {
            let [high, low] = ((total - V6_LEN) as u16).to_be_bytes();
            packet.extend([0x60, 0, 0, 0, high, low, protocol, HOPS]);
            for ip in [source, destination] {
                packet.extend(match ip {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                    IpAddr::V6(ip) => ip.octets(),
                });
            }
        }
    }
}

/// The Internet checksum (RFC 1071) of bytes in which the checksum field is zero.
pub fn internet_checksum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A real ICMP echo request, as tcpdump printed it.
    const PING: [u8; 28] = [
        0x45, 0x00, 0x00, 0x1c, 0x1c, 0x46, 0x40, 0x00, 0x40, 0x01, 0x0a, 0x99, 10, 0, 0, 1, 10, 0,
        0, 2, 8, 0, 0xf7, 0xff, 0, 0, 0, 0,
    ];

    fn valid_v4() -> Vec<u8> {
        let mut packet = PING.to_vec();
        let fields = normalise(&mut packet);
        restore(&mut packet, fields);
        packet
    }

    #[test]
    fn reads_a_ping_and_ignores_link_padding() {
        let mut bytes = PING.to_vec();
        bytes.extend([0; 18]);
        let header = Header::parse(&bytes).unwrap();
        assert_eq!(header.total_len, 28);
        assert_eq!(header.protocol, 1);
        assert_eq!(header.destination, IpAddr::from([10, 0, 0, 2]));
    }

    #[test]
    fn a_restored_header_sums_to_zero() {
        assert_eq!(internet_checksum(&valid_v4()[..20]), 0);
    }

    #[test]
    fn wrong_lengths_are_refused() {
        let mut bytes = PING;
        bytes[3] = 29;
        assert_eq!(Header::parse(&bytes), Err(Error::Short { have: 28, want: 29 }));
        bytes[3] = 19;
        assert_eq!(Header::parse(&bytes), Err(Error::Lengths));
        bytes[0] = 0x44;
        assert_eq!(Header::parse(&bytes), Err(Error::Lengths));
        assert_eq!(Header::parse(&[0x15; 40]), Err(Error::Version(1)));
    }

    proptest! {
        #[test]
        fn normalising_changes_only_returned_fields(tos: u8, ttl: u8, version in prop::bool::ANY) {
            let mut packet = if version { valid_v4() } else { v6_packet() };
            restore(&mut packet, MutableFields { ttl, tos });
            prop_assert_eq!(mutable_fields(&packet), Some(MutableFields { ttl, tos }));
            let before = packet.clone();
            let fields = normalise(&mut packet);
            prop_assert_eq!(fields, MutableFields { ttl, tos });
            restore(&mut packet, fields);
            prop_assert_eq!(packet, before);
        }

        #[test]
        fn parsing_never_panics_and_what_it_accepts_can_be_normalised(mut bytes: Vec<u8>) {
            if let Ok(header) = Header::parse(&bytes) {
                let fields = normalise(&mut bytes[..header.total_len]);
                restore(&mut bytes[..header.total_len], fields);
            }
        }
    }

    fn v6_packet() -> Vec<u8> {
        let mut packet = vec![0u8; 48];
        packet[0] = 0x60;
        packet[3] = 0x77;
        packet[5] = 8;
        packet[6] = 17;
        packet
    }
}
