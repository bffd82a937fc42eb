//! Negative answers to a SYN, as sent by the addressed host or by a router on the path.

use std::net::{IpAddr, SocketAddr};

use super::ip::internet_checksum;

const TCP: u8 = 6;
pub(super) const ICMP: u8 = 1;
pub(super) const ICMPV6: u8 = 58;
const HOPS: u8 = 64;
const RST_ACK: u8 = 0x14;

/// SYN to be answered: source, destination and sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RejectedSyn {
    /// Source address of the SYN.
    pub from: SocketAddr,
    /// Destination address of the SYN, of the same family.
    pub to: SocketAddr,
    /// Sequence number of the SYN.
    pub number: u32,
}

impl RejectedSyn {
    /// RST of a host without a listener on that port (RFC 9293, 3.5.2).
    pub fn refused(&self) -> Vec<u8> {
        let mut segment = ports(self.to, self.from);
        segment.extend(0u32.to_be_bytes());
        segment.extend(self.number.wrapping_add(1).to_be_bytes());
        segment.extend([5 << 4, RST_ACK, 0, 0, 0, 0, 0, 0]);
        let (from, to) = (self.to.ip(), self.from.ip());
        let sum = pseudo(from, to, TCP, &segment);
        segment[16..18].copy_from_slice(&sum.to_be_bytes());
        packet(from, to, TCP, &segment)
    }

    /// ICMP host unreachable (RFC 792), or ICMPv6 address unreachable (RFC 4443).
    pub fn unreachable(&self) -> Vec<u8> {
        self.message([3, 1], [1, 3])
    }

    /// ICMP message of a router without a route to the network.
    pub fn without_route(&self) -> Vec<u8> {
        self.message([3, 0], [1, 0])
    }

    /// ICMP message of a router that is not allowed to forward the packet; Linux reports the IPv4
    /// message as an unreachable host.
    pub fn prohibited(&self) -> Vec<u8> {
        self.message([3, 13], [1, 1])
    }

    /// ICMP or ICMPv6 message with one of these types and codes.
    fn message(&self, v4: [u8; 2], v6: [u8; 2]) -> Vec<u8> {
        let (from, to) = (self.to.ip(), self.from.ip());
        // Quotes only the part of the SYN that identifies its connection.
        let mut syn = ports(self.from, self.to);
        syn.extend(self.number.to_be_bytes());
        syn.extend([0, 0, 0, 0, 5 << 4, 2, 0, 0, 0, 0, 0, 0]);
        icmp(from, to, if to.is_ipv4() { v4 } else { v6 }, &packet(to, from, TCP, &syn))
    }
}

/// ICMP or ICMPv6 message with the given type and code, about a packet.
pub(super) fn icmp(from: IpAddr, to: IpAddr, why: [u8; 2], about: &[u8]) -> Vec<u8> {
    let mut message = vec![why[0], why[1], 0, 0, 0, 0, 0, 0];
    message.extend(about);
    let (protocol, sum) = match to.is_ipv4() {
        true => (ICMP, internet_checksum(&message)),
        false => (ICMPV6, pseudo(from, to, ICMPV6, &message)),
    };
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    packet(from, to, protocol, &message)
}

pub(super) fn ports(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    [from.port().to_be_bytes(), to.port().to_be_bytes()].concat()
}

/// Checksum of the transport data, with the pseudo header.
pub(super) fn pseudo(from: IpAddr, to: IpAddr, protocol: u8, rest: &[u8]) -> u16 {
    let mut all = octets(from);
    all.extend(octets(to));
    all.extend((rest.len() as u32).to_be_bytes());
    all.extend([0, 0, 0, protocol]);
    all.extend(rest);
    internet_checksum(&all)
}

pub(super) fn packet(from: IpAddr, to: IpAddr, protocol: u8, rest: &[u8]) -> Vec<u8> {
    let length = rest.len() as u16;
    let mut packet = match to.is_ipv4() {
        true => {
            let [high, low] = (20 + length).to_be_bytes();
            vec![0x45, 0, high, low, 0, 0, 0x40, 0, HOPS, protocol, 0, 0]
        }
        false => {
            let [high, low] = length.to_be_bytes();
            vec![0x60, 0, 0, 0, high, low, protocol, HOPS]
        }
    };
    packet.extend(octets(from));
    packet.extend(octets(to));
    if to.is_ipv4() {
        let sum = internet_checksum(&packet);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    packet.extend(rest);
    packet
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_right_and_the_syn_is_acknowledged() {
        for (from, to) in [("127.0.0.1:40000", "127.0.0.1:7"), ("[::1]:40000", "[::1]:7")] {
            let asked = RejectedSyn {
                from: from.parse().unwrap(),
                to: to.parse().unwrap(),
                number: u32::MAX,
            };
            let header = if asked.to.is_ipv4() { 20 } else { 40 };
            let reset = asked.refused();
            let (ip, tcp) = reset.split_at(header);
            assert_eq!(tcp[8..12], [0; 4], "one beyond the SYN's number");
            assert_eq!(tcp[..4], [0, 7, 0x9c, 0x40]);
            assert_eq!(pseudo(asked.to.ip(), asked.from.ip(), TCP, tcp), 0);
            assert!(header == 40 || internet_checksum(ip) == 0);
            let unreachable = asked.unreachable();
            let (_, icmp) = unreachable.split_at(header);
            let inner = &icmp[8 + header..];
            assert_eq!((&inner[..4], &inner[4..8]), (&[0x9c, 0x40, 0, 7][..], &[0xff; 4][..]));
            match header {
                20 => assert_eq!(internet_checksum(icmp), 0),
                _ => assert_eq!(pseudo(asked.to.ip(), asked.from.ip(), 58, icmp), 0),
            }
        }
    }
}
