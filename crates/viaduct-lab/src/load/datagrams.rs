//! Trickles messages in complete UDP packets, for clients that do not use the kernel's UDP.

use std::net::{IpAddr, SocketAddr};

use viaduct_proto::trickles::packet::{Role, udp};
use viaduct_proto::wire::ip::{Header, internet_checksum};

const UDP: u8 = 17;
const IP_HEAD: usize = 20;
const UDP_HEAD: usize = 8;

/// Replaces the content of `packet` with a request in UDP over IPv4, without UDP's checksum,
/// which is optional there.
pub(super) fn emit(
    (from, to): (SocketAddr, SocketAddr),
    count: u8,
    message: &[u8],
    packet: &mut Vec<u8>,
) {
    let length = UDP_HEAD + udp::HEAD + message.len();
    packet.clear();
    let [high, low] = ((IP_HEAD + length) as u16).to_be_bytes();
    packet.extend([0x45, 0, high, low, 0, 0, 0x40, 0, 64, UDP, 0, 0]);
    for ip in [from.ip(), to.ip()] {
        let IpAddr::V4(ip) = ip else { unreachable!("the lab's clients have IPv4") };
        packet.extend(ip.octets());
    }
    let sum = internet_checksum(packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    for word in [from.port(), to.port(), length as u16, 0] {
        packet.extend(word.to_be_bytes());
    }
    packet.extend(udp::head(Role::Request, count));
    packet.extend_from_slice(message);
}

/// Parses an answer: returns its source, its destination and the message.
pub(super) fn parse(packet: &[u8]) -> Option<(SocketAddr, SocketAddr, &[u8])> {
    let header = Header::parse(packet).ok().filter(|header| header.protocol == UDP)?;
    let (head, payload) =
        packet.get(header.header_len..header.total_len)?.split_first_chunk::<UDP_HEAD>()?;
    let port = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let (role, _, message) = udp::parse(payload).ok()?;
    let ends = [(header.source, port(0)), (header.destination, port(2))].map(SocketAddr::from);
    (role == Role::Answer).then_some((ends[0], ends[1], message))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn answers_are_parsed_and_requests_are_not() {
        let at = |host, port| SocketAddr::from((Ipv4Addr::new(10, 0, 0, host), port));
        let mut packet = Vec::new();
        emit((at(1, 4_000), at(2, 80)), 7, b"message", &mut packet);
        assert_eq!(internet_checksum(&packet[..IP_HEAD]), 0);
        assert_eq!(packet.len(), IP_HEAD + UDP_HEAD + udp::HEAD + 7);
        assert_eq!(parse(&packet), None);
        packet[IP_HEAD + UDP_HEAD + 2] = Role::Answer.byte();
        assert_eq!(parse(&packet), Some((at(1, 4_000), at(2, 80), &b"message"[..])));
        assert!((0..packet.len()).all(|cut| parse(&packet[..cut]).is_none()));
    }
}
