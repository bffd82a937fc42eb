//! A router's word that a packet was too long for the rest of the way (RFC 1191, RFC 8201).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::wire::ip::{Header, internet_checksum};

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// IPv4: destination unreachable, fragmentation needed. IPv6: packet too big.
const V4: [u8; 2] = [3, 4];
const V6: [u8; 2] = [2, 0];
const TCP: u8 = 6;
const UDP: u8 = 17;
/// The least MTU that is believed: a router that says less is out of date, or lies. Linux has the same
/// floor for IPv4; IPv6 promises its own.
pub const LEAST_V4: usize = 552;
/// Likewise.
pub const LEAST_V6: usize = 1280;

/// What it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooBig {
    /// Who had sent the packet.
    pub source: SocketAddr,
    /// Where it was to go.
    pub destination: SocketAddr,
    /// Bytes of the longest packet that goes on; never below the floor.
    pub mtu: usize,
}

/// Reads a packet that begins with its IP header; `None` if it is something else. It quotes no more
/// than addresses, ports and a number, so anybody who guesses these can say so: a floor is all that
/// stands against it.
pub fn parse(packet: &[u8]) -> Option<TooBig> {
    let header = Header::parse(packet).ok()?;
    let message = packet.get(header.header_len..header.total_len)?;
    let (kind, quoted) = (message.first_chunk::<2>()?, message.get(8..)?);
    let number = |at: usize| u16::from_be_bytes([message[at], message[at + 1]]);
    match (header.protocol, header.source.is_ipv4()) {
        (ICMP, true) if *kind == V4 && internet_checksum(message) == 0 => {
            let (source, destination) = quoted_v4(quoted)?;
            Some(TooBig { source, destination, mtu: usize::from(number(6)).max(LEAST_V4) })
        }
        (ICMPV6, false) if *kind == V6 => {
            let mtu = usize::from(number(4)) << 16 | usize::from(number(6));
            let (source, destination) = quoted_v6(quoted)?;
            Some(TooBig { source, destination, mtu: mtu.max(LEAST_V6) })
        }
        _ => None,
    }
}

fn quoted_v4(packet: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let head = packet.first_chunk::<20>()?;
    let ports = packet.get(usize::from(head[0] & 15) * 4..)?.first_chunk::<4>()?;
    let ip = |at: usize| IpAddr::V4(Ipv4Addr::from([0, 1, 2, 3].map(|n| head[at + n])));
    (head[0] >> 4 == 4 && matches!(head[9], TCP | UDP)).then(|| ends(ip(12), ip(16), ports))
}

fn quoted_v6(packet: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let (head, rest) = packet.split_first_chunk::<40>()?;
    let ports = rest.first_chunk::<4>()?;
    let ip =
        |at: usize| IpAddr::V6(Ipv6Addr::from(std::array::from_fn::<u8, 16, _>(|n| head[at + n])));
    (head[0] >> 4 == 6 && matches!(head[6], TCP | UDP)).then(|| ends(ip(8), ip(24), ports))
}

fn ends(source: IpAddr, destination: IpAddr, ports: &[u8; 4]) -> (SocketAddr, SocketAddr) {
    let port = |at: usize| u16::from_be_bytes([ports[at], ports[at + 1]]);
    (SocketAddr::new(source, port(0)), SocketAddr::new(destination, port(2)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ICMP error about a packet of 10.0.0.2:80 to 10.0.0.1:40000.
    fn v4(mtu: u16) -> Vec<u8> {
        let mut quoted =
            vec![0x45, 0, 5, 220, 0, 0, 0x40, 0, 64, TCP, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1];
        quoted.extend([0, 80, 0x9c, 0x40, 0, 0, 0, 1]);
        let mut icmp = vec![3, 4, 0, 0, 0, 0];
        icmp.extend(mtu.to_be_bytes());
        icmp.extend(quoted);
        let sum = internet_checksum(&icmp);
        icmp[2..4].copy_from_slice(&sum.to_be_bytes());
        let length = (20 + icmp.len()) as u8;
        let mut packet = vec![0x45, 0, 0, length, 0, 0, 0, 0, 64, ICMP, 0, 0];
        packet.extend([10, 0, 0, 9, 10, 0, 0, 2]);
        packet.extend(icmp);
        packet
    }

    #[test]
    fn it_says_whose_packet_and_how_long_it_may_be() {
        let said = parse(&v4(1400)).unwrap();
        assert_eq!((said.source.to_string(), said.mtu), ("10.0.0.2:80".to_owned(), 1400));
        assert_eq!(said.destination.to_string(), "10.0.0.1:40000");
        assert_eq!(parse(&v4(68)).unwrap().mtu, LEAST_V4, "nobody is made to send crumbs");
        let mut wrong = v4(1400);
        wrong[27] ^= 1;
        assert_eq!(parse(&wrong), None, "its checksum");
        let whole = v4(1400);
        assert!((0..whole.len()).all(|cut| parse(&whole[..cut]).is_none()));
    }

    #[test]
    fn also_of_ipv6() {
        let mut packet = vec![0x60, 0, 0, 0, 0, 56, ICMPV6, 64];
        packet.extend([0xfd; 32]);
        packet.extend([2, 0, 0, 0, 0, 0, 5, 20]);
        packet.extend([0x60, 0, 0, 0, 0, 20, TCP, 64]);
        packet.extend([[1; 16], [2; 16]].concat());
        packet.extend([0, 80, 0x9c, 0x40, 0, 0, 0, 1]);
        let said = parse(&packet).unwrap();
        assert_eq!((said.source.port(), said.destination.port(), said.mtu), (80, 40_000, 1300));
    }
}
