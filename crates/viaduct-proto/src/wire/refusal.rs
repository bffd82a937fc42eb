//! Answers to a SYN that say no, as the host would have that was meant, or a router on the way.

use std::net::{IpAddr, SocketAddr};

use super::ip::internet_checksum;

const TCP: u8 = 6;
const HOPS: u8 = 64;
const RST_ACK: u8 = 0x14;
/// ICMP: destination unreachable, host.
const V4_UNREACHABLE: [u8; 2] = [3, 1];
/// ICMPv6: destination unreachable, address.
const V6_UNREACHABLE: [u8; 2] = [1, 3];
/// ICMP: destination unreachable, network.
const V4_NO_ROUTE: [u8; 2] = [3, 0];
/// ICMPv6: destination unreachable, no route.
const V6_NO_ROUTE: [u8; 2] = [1, 0];
/// ICMP: destination unreachable, administratively prohibited, which Linux takes for an unreachable host.
const V4_PROHIBITED: [u8; 2] = [3, 13];
/// ICMPv6: destination unreachable, administratively prohibited.
const V6_PROHIBITED: [u8; 2] = [1, 1];

/// A SYN that is answered: from whom, to whom, its sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Who connects.
    pub from: SocketAddr,
    /// Where to; of the same family.
    pub to: SocketAddr,
    /// The SYN's sequence number.
    pub number: u32,
}

impl Asked {
    /// The packet that a host sends where nobody listens (RFC 9293, 3.5.2).
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

    /// The packet of a host that knows no way (RFC 792, RFC 4443).
    pub fn unreachable(&self) -> Vec<u8> {
        self.message(V4_UNREACHABLE, V6_UNREACHABLE)
    }

    /// The packet of a router that has no route to the network.
    pub fn without_route(&self) -> Vec<u8> {
        self.message(V4_NO_ROUTE, V6_NO_ROUTE)
    }

    /// The packet of a router that may not pass it on.
    pub fn prohibited(&self) -> Vec<u8> {
        self.message(V4_PROHIBITED, V6_PROHIBITED)
    }

    fn message(&self, v4: [u8; 2], v6: [u8; 2]) -> Vec<u8> {
        let (from, to) = (self.to.ip(), self.from.ip());
        // As much of the SYN as tells whose it is.
        let mut syn = ports(self.from, self.to);
        syn.extend(self.number.to_be_bytes());
        syn.extend([0, 0, 0, 0, 5 << 4, 2, 0, 0, 0, 0, 0, 0]);
        let syn = packet(to, from, TCP, &syn);
        let ([kind, code], protocol) = if to.is_ipv4() { (v4, 1) } else { (v6, 58) };
        let mut message = vec![kind, code, 0, 0, 0, 0, 0, 0];
        message.extend(syn);
        let sum = match to.is_ipv4() {
            true => internet_checksum(&message),
            false => pseudo(from, to, protocol, &message),
        };
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        packet(from, to, protocol, &message)
    }
}

pub(super) fn ports(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    [from.port().to_be_bytes(), to.port().to_be_bytes()].concat()
}

/// The checksum of what follows the IP header.
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
            let asked =
                Asked { from: from.parse().unwrap(), to: to.parse().unwrap(), number: u32::MAX };
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
