//! UDP datagram in an IP packet that may be truncated.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::refusal::{icmp, packet, ports, pseudo};

const UDP: u8 = 17;
const UDP_LEN: usize = 8;
const V4_MIN: usize = 20;
const V6_LEN: usize = 40;
/// IPv6 extension headers that may precede UDP, each with its length in units of 8 bytes:
/// hop-by-hop options, routing, destination options.
const EXTENSIONS: [u8; 3] = [0, 43, 60];
const FRAGMENT: u8 = 44;
/// Maximum payload bytes quoted by an ICMP error, to fit 576 bytes (RFC 1812, 4.3.2.3).
pub const MAX_QUOTED: usize = 512;

/// Addresses of a datagram, and length of its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Source address.
    pub source: SocketAddr,
    /// Destination address.
    pub destination: SocketAddr,
    /// Length of the payload, in bytes.
    pub bytes: usize,
}

impl Datagram {
    /// Parses the headers at the front of `packet`, which may be truncated after them; `None` if
    /// `packet` is neither a UDP datagram nor the first fragment of one.
    pub fn parse(packet: &[u8]) -> Option<Datagram> {
        Datagram::split(packet).map(|(datagram, _)| datagram)
    }

    /// Parses the headers, and returns as much of the payload as is available.
    pub fn split(packet: &[u8]) -> Option<(Datagram, &[u8])> {
        let (source, destination, udp) = match packet.first()? >> 4 {
            4 => v4(packet)?,
            6 => v6(packet)?,
            _ => return None,
        };
        let ([a, b, c, d, e, f, ..], carried) = udp.split_first_chunk::<UDP_LEN>()?;
        let port = |a, b| u16::from_be_bytes([a, b]);
        let bytes = usize::from(port(*e, *f)).checked_sub(UDP_LEN)?;
        let (source, destination) = ((source, port(*a, *b)), (destination, port(*c, *d)));
        let datagram = Datagram { source: source.into(), destination: destination.into(), bytes };
        Some((datagram, carried.get(..bytes).unwrap_or(carried)))
    }
}

/// Packet of a datagram between addresses of one family; `None` if the payload is too long.
pub fn emit(source: SocketAddr, destination: SocketAddr, payload: &[u8]) -> Option<Vec<u8>> {
    let length = u16::try_from(UDP_LEN + payload.len()).ok()?;
    let head = if source.is_ipv4() { V4_MIN as u16 } else { 0 };
    length.checked_add(head)?;
    let mut udp = ports(source, destination);
    udp.extend(length.to_be_bytes());
    udp.extend([0, 0]);
    udp.extend(payload);
    // A checksum of zero would mean that the datagram has no checksum.
    let sum = match pseudo(source.ip(), destination.ip(), UDP, &udp) {
        0 => u16::MAX,
        sum => sum,
    };
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    Some(packet(source.ip(), destination.ip(), UDP, &udp))
}

/// Returns the ICMP or ICMPv6 message that reports a datagram from `source` as undelivered,
/// with the given type and code and at most [`MAX_QUOTED`] bytes of its payload.
pub fn undelivered(
    source: SocketAddr,
    destination: SocketAddr,
    why: [u8; 2],
    carried: &[u8],
) -> Vec<u8> {
    let carried = &carried[..carried.len().min(MAX_QUOTED)];
    // The quoted headers identify the flow.
    let mut udp = ports(source, destination);
    udp.extend(((UDP_LEN + carried.len()) as u16).to_be_bytes());
    udp.extend([0, 0]);
    udp.extend(carried);
    let (from, to) = (destination.ip(), source.ip());
    icmp(from, to, why, &packet(to, from, UDP, &udp))
}

fn v4(packet: &[u8]) -> Option<(IpAddr, IpAddr, &[u8])> {
    let head = packet.first_chunk::<V4_MIN>()?;
    let offset = u16::from_be_bytes([head[6], head[7]]) & 0x1fff;
    let address = |at: usize| IpAddr::V4(Ipv4Addr::from([0, 1, 2, 3].map(|n| head[at + n])));
    let udp = packet.get(usize::from(head[0] & 15) * 4..)?;
    (head[9] == UDP && offset == 0).then_some((address(12), address(16), udp))
}

fn v6(packet: &[u8]) -> Option<(IpAddr, IpAddr, &[u8])> {
    let (head, mut rest) = packet.split_first_chunk::<V6_LEN>()?;
    let address = |at: usize| {
        let octets: [u8; 16] = std::array::from_fn(|n| head[at + n]);
        IpAddr::V6(Ipv6Addr::from(octets))
    };
    let mut next = head[6];
    loop {
        let units = match next {
            UDP => return Some((address(8), address(24), rest)),
            FRAGMENT if u16::from_be_bytes([*rest.get(2)?, *rest.get(3)?]) >> 3 == 0 => 0,
            _ if EXTENSIONS.contains(&next) => usize::from(*rest.get(1)?),
            _ => return None,
        };
        next = *rest.first()?;
        rest = rest.get(8 * (units + 1)..)?;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::ip::internet_checksum;
    use crate::wire::refusal::{ICMP, ICMPV6};

    #[test]
    fn datagrams_are_parsed_as_emitted() {
        for (from, to) in [("192.0.2.1:53", "127.0.0.1:9"), ("[2001:db8::1]:53", "[::1]:9")] {
            let [source, destination] = [from, to].map(|at| at.parse::<SocketAddr>().unwrap());
            let packet = emit(source, destination, b"answer").unwrap();
            let parsed = Datagram { source, destination, bytes: 6 };
            assert_eq!(Datagram::split(&packet), Some((parsed, &b"answer"[..])));
            let cut = &packet[..packet.len() - 4];
            assert_eq!(Datagram::split(cut), Some((parsed, &b"an"[..])));
            let udp = &packet[packet.len() - 14..];
            assert_eq!(pseudo(source.ip(), destination.ip(), UDP, udp), 0);
            assert_eq!(emit(source, destination, &[0; 65_535]), None);
        }
        assert!(
            emit("192.0.2.1:1".parse().unwrap(), "192.0.2.2:1".parse().unwrap(), &[0; 65_507])
                .is_some()
        );
    }

    #[test]
    fn the_sender_is_notified_that_a_datagram_was_not_delivered() {
        let [source, destination] =
            ["127.0.0.1:9", "192.0.2.1:53"].map(|at| at.parse::<SocketAddr>().unwrap());
        let packet = undelivered(source, destination, [3, 3], b"asked");
        assert_eq!(packet[12..20], [192, 0, 2, 1, 127, 0, 0, 1]);
        assert_eq!((packet[9], &packet[20..22]), (ICMP, &[3, 3][..]));
        assert_eq!(internet_checksum(&packet[20..]), 0);
        let parsed = Datagram { source, destination, bytes: 5 };
        assert_eq!(Datagram::split(&packet[28..]), Some((parsed, &b"asked"[..])));
        assert!(undelivered(source, destination, [3, 3], &[0; 9_999]).len() <= 576);
        let [source, destination] =
            ["[::1]:9", "[2001:db8::1]:53"].map(|at| at.parse::<SocketAddr>().unwrap());
        let packet = undelivered(source, destination, [1, 4], &[]);
        assert_eq!((packet[6], &packet[40..42]), (ICMPV6, &[1, 4][..]));
        assert_eq!(pseudo(destination.ip(), source.ip(), ICMPV6, &packet[40..]), 0);
        let parsed = Datagram { source, destination, bytes: 0 };
        assert_eq!(Datagram::parse(&packet[48..]), Some(parsed));
    }

    fn v4_packet() -> Vec<u8> {
        let mut packet = vec![0; 20];
        (packet[0], packet[9]) = (0x45, UDP);
        packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        packet.extend([0x13, 0x88, 0, 53, 0, 13, 0, 0]);
        packet
    }

    fn v6_packet(before: &[u8], first: u8) -> Vec<u8> {
        let mut packet = vec![0; 40];
        (packet[0], packet[6], packet[23], packet[39]) = (0x60, first, 1, 2);
        packet.extend(before);
        packet.extend([0x13, 0x88, 0, 53, 0, 13, 0, 0]);
        packet
    }

    #[test]
    fn headers_give_addresses_and_length() {
        let told = |source: &str, destination: &str| {
            let [source, destination] = [source, destination].map(|at| at.parse().unwrap());
            Some(Datagram { source, destination, bytes: 5 })
        };
        assert_eq!(Datagram::parse(&v4_packet()), told("10.0.0.1:5000", "10.0.0.2:53"));
        let v6 = told("[::1]:5000", "[::2]:53");
        assert_eq!(Datagram::parse(&v6_packet(&[], UDP)), v6);
        let options = [60, 0, 1, 4, 0, 0, 0, 0, UDP, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(Datagram::parse(&v6_packet(&options, 0)), v6);
        let fragment = [UDP, 0, 0, 1, 0, 0, 0, 7];
        assert_eq!(Datagram::parse(&v6_packet(&fragment, FRAGMENT)), v6, "the first of several");
    }

    #[test]
    fn packets_without_ports_are_rejected() {
        let mut tcp = v4_packet();
        tcp[9] = 6;
        let mut later = v4_packet();
        later[7] = 9;
        let fragment = [UDP, 0, 0, 9, 0, 0, 0, 7];
        for packet in [&tcp, &later, &v6_packet(&fragment, FRAGMENT), &v4_packet()[..27].to_vec()] {
            assert_eq!(Datagram::parse(packet), None);
        }
    }

    proptest! {
        #[test]
        fn reading_never_panics(
            mut bytes: Vec<u8>,
            version in prop::sample::select(vec![0x45, 0x60]),
        ) {
            if let Some(first) = bytes.first_mut() {
                *first = version;
            }
            let _ = Datagram::parse(&bytes);
        }
    }
}
