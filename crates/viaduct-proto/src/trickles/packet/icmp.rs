//! ICMP errors about packets that were not delivered (RFC 792, RFC 4443): packet too big (RFC
//! 1191, RFC 8201), or destination unreachable.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::wire::checksum;
use crate::wire::ip::{Header, internet_checksum};

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// ICMP type "destination unreachable".
const V4_UNREACHABLE: u8 = 3;
/// Code "fragmentation needed" of this type.
const V4_TOO_BIG: u8 = 4;
/// ICMPv6 type "destination unreachable".
const V6_UNREACHABLE: u8 = 1;
/// ICMPv6 type "packet too big".
const V6_TOO_BIG: u8 = 2;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Minimum path MTU of IPv4 in bytes; a lower value in a report is raised to it. Lower values come
/// from outdated routers or forged reports. Linux has the same minimum.
pub const MIN_MTU_V4: usize = 552;
/// Minimum path MTU of IPv6 in bytes (RFC 8200); a lower value in a report is raised to it.
pub const MIN_MTU_V6: usize = 1280;

/// ICMP error about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Sender of the quoted packet.
    pub source: SocketAddr,
    /// Destination of the quoted packet.
    pub destination: SocketAddr,
    /// The four bytes after the quoted ports: in TCP the sequence number.
    pub number: u32,
    /// Reason why the quoted packet was not delivered.
    pub why: Why,
}

/// Reason why a packet was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The packet is too long. MTU of the next hop in bytes, never below the minimum.
    TooBig(usize),
    /// The host or its port is unreachable, or a firewall claims that it is.
    Unreachable,
}

/// Parses a packet that begins with its IP header; `None` if it is not an ICMP error of these
/// kinds. An error is identified only by the quoted addresses, ports and sequence number, so a
/// sender that guesses these can forge it. The minimum MTU limits the effect of a forged length,
/// and a client checks whether it has sent the sequence number.
pub fn parse(packet: &[u8]) -> Option<Report> {
    let header = Header::parse(packet).ok()?;
    let message = packet.get(header.header_len..header.total_len)?;
    let (&[kind, code], quoted) = (message.first_chunk::<2>()?, message.get(8..)?);
    let number = |at: usize| usize::from(u16::from_be_bytes([message[at], message[at + 1]]));
    let is_v4 = header.source.is_ipv4();
    let why = match (header.protocol, kind) {
        (ICMP, V4_UNREACHABLE) if is_v4 && code == V4_TOO_BIG => {
            Why::TooBig(number(6).max(MIN_MTU_V4))
        }
        (ICMPV6, V6_TOO_BIG) if !is_v4 => {
            Why::TooBig((number(4) << 16 | number(6)).max(MIN_MTU_V6))
        }
        (ICMP, V4_UNREACHABLE) if is_v4 => Why::Unreachable,
        (ICMPV6, V6_UNREACHABLE) if !is_v4 => Why::Unreachable,
        _ => return None,
    };
    let sum = match is_v4 {
        true => internet_checksum(message),
        false => checksum::transport(header.source, header.destination, ICMPV6, message),
    };
    if sum != 0 {
        return None;
    }
    let (source, destination, number) = if is_v4 { quoted_v4(quoted) } else { quoted_v6(quoted) }?;
    Some(Report { source, destination, number, why })
}

type Quoted = (SocketAddr, SocketAddr, u32);

fn quoted_v4(packet: &[u8]) -> Option<Quoted> {
    let head = packet.first_chunk::<20>()?;
    let rest = packet.get(usize::from(head[0] & 15) * 4..)?.first_chunk::<8>()?;
    let ip = |at: usize| IpAddr::V4(Ipv4Addr::from([0, 1, 2, 3].map(|n| head[at + n])));
    (head[0] >> 4 == 4 && matches!(head[9], TCP | UDP)).then(|| ends(ip(12), ip(16), rest))
}

fn quoted_v6(packet: &[u8]) -> Option<Quoted> {
    let (head, rest) = packet.split_first_chunk::<40>()?;
    let rest = rest.first_chunk::<8>()?;
    let ip =
        |at: usize| IpAddr::V6(Ipv6Addr::from(std::array::from_fn::<u8, 16, _>(|n| head[at + n])));
    (head[0] >> 4 == 6 && matches!(head[6], TCP | UDP)).then(|| ends(ip(8), ip(24), rest))
}

fn ends(source: IpAddr, destination: IpAddr, rest: &[u8; 8]) -> Quoted {
    let [a, b, c, d, number @ ..] = *rest;
    let ports = [[a, b], [c, d]].map(u16::from_be_bytes);
    let ends = (SocketAddr::new(source, ports[0]), SocketAddr::new(destination, ports[1]));
    (ends.0, ends.1, u32::from_be_bytes(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ICMP error of this code about a packet from 10.0.0.2:80 to 10.0.0.1:40000.
    fn v4(code: u8, mtu: u16) -> Vec<u8> {
        let mut quoted =
            vec![0x45, 0, 5, 220, 0, 0, 0x40, 0, 64, TCP, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1];
        quoted.extend([0, 80, 0x9c, 0x40, 0, 0, 0, 1]);
        let mut icmp = vec![3, code, 0, 0, 0, 0];
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
    fn the_error_names_the_packet_and_the_mtu() {
        let said = parse(&v4(4, 1400)).unwrap();
        assert_eq!((said.source.to_string(), said.number), ("10.0.0.2:80".to_owned(), 1));
        assert_eq!((said.destination.to_string(), said.why), at_client(Why::TooBig(1400)));
        let least = parse(&v4(4, 68)).unwrap().why;
        assert_eq!(least, Why::TooBig(MIN_MTU_V4), "the MTU has a lower bound");
        let mut wrong = v4(4, 1400);
        wrong[27] ^= 1;
        assert_eq!(parse(&wrong), None, "wrong checksum");
        let whole = v4(4, 1400);
        assert!((0..whole.len()).all(|cut| parse(&whole[..cut]).is_none()));
    }

    #[test]
    fn every_code_of_destination_unreachable_counts() {
        for code in [0, 1, 3, 9, 10, 13] {
            let said = parse(&v4(code, 0)).unwrap();
            assert_eq!((said.destination.to_string(), said.why), at_client(Why::Unreachable));
        }
    }

    fn at_client(why: Why) -> (String, Why) {
        ("10.0.0.1:40000".to_owned(), why)
    }

    #[test]
    fn ipv6_errors_are_parsed() {
        for (kind, why) in [(V6_TOO_BIG, Why::TooBig(1300)), (V6_UNREACHABLE, Why::Unreachable)] {
            let mut packet = vec![0x60, 0, 0, 0, 0, 56, ICMPV6, 64];
            packet.extend([0xfd; 32]);
            packet.extend([kind, 0, 0, 0, 0, 0, 5, 20]);
            packet.extend([0x60, 0, 0, 0, 0, 20, TCP, 64]);
            packet.extend([[1; 16], [2; 16]].concat());
            packet.extend([0, 80, 0x9c, 0x40, 0, 0, 0, 1]);
            assert_eq!(parse(&packet), None, "wrong checksum");
            let source = Ipv6Addr::from([0xfd; 16]).into();
            let sum = checksum::transport(source, source, ICMPV6, &packet[40..]);
            packet[42..44].copy_from_slice(&sum.to_be_bytes());
            let said = parse(&packet).unwrap();
            assert_eq!((said.source.port(), said.destination.port()), (80, 40_000));
            assert_eq!((said.number, said.why), (1, why));
        }
    }
}
