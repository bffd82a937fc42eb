//! Local packet cache (paper, 4.5): a host of this site that has dropped a packet requests it from
//! the gateway before it asks the sender.
//!
//! A query and its answer are one UDP datagram each; `docs/cache.md` describes both byte by
//! byte. A query names the flow and some bytes at a given offset of the wanted packet's IP
//! payload, such as the sequence number in its transport header. Only packets *to the asking
//! host* are sent again, so that the cache cannot be used to send packets to other hosts.

use std::net::IpAddr;

use crate::wire::ip::{Header, MutableFields, restore};

/// Maximum number of packets that one query may request.
const MAX_RESENT: usize = 64;
/// TTL of a packet that the cache sends again.
const TTL: u8 = 64;
const MAGIC: [u8; 4] = *b"VDC1";

/// Query of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// Address of the asking host: the destination of the packets.
    pub asker: IpAddr,
    /// IP protocol of the packets.
    pub protocol: u8,
    /// Destination port of the packets, on the asking host.
    pub port: u16,
    /// Offset of the wanted bytes, counted from the end of the IP header.
    pub offset: usize,
    /// Wanted bytes, one item for each packet.
    pub wanted: Vec<Vec<u8>>,
}

/// Result of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Packets that were sent again.
    pub resent: usize,
    /// Cached packets that were examined.
    pub looked: usize,
}

impl Found {
    /// Datagram with the answer to the asking host.
    pub fn answer(&self) -> [u8; 5] {
        let [m0, m1, m2, m3] = MAGIC;
        [m0, m1, m2, m3, u8::try_from(self.resent).unwrap_or(u8::MAX)]
    }
}

impl Query {
    /// Parses a query from `asker`; `None` if it is malformed.
    pub fn parse(asker: IpAddr, datagram: &[u8]) -> Option<Query> {
        let (head, list) = datagram.split_first_chunk::<10>()?;
        let [m0, m1, m2, m3, protocol, len, p0, p1, o0, o1] = *head;
        let len = usize::from(len);
        if [m0, m1, m2, m3] != MAGIC || len == 0 || list.is_empty() || list.len() % len != 0 {
            return None;
        }
        let wanted: Vec<_> = list.chunks(len).map(<[u8]>::to_vec).collect();
        (wanted.len() <= MAX_RESENT).then(|| Query {
            asker,
            protocol,
            port: u16::from_be_bytes([p0, p1]),
            offset: u16::from_be_bytes([o0, o1]).into(),
            wanted,
        })
    }

    /// Returns the wanted packets among `cached` (normalised, newest first), ready to send.
    pub fn find<'a>(&self, cached: impl Iterator<Item = &'a [u8]>) -> Vec<Vec<u8>> {
        let mut left: Vec<&[u8]> = self.wanted.iter().map(Vec::as_slice).collect();
        let mut found = Vec::new();
        for packet in cached {
            if left.is_empty() {
                break;
            }
            let Some(bytes) = self.candidate(packet) else { continue };
            if let Some(at) = left.iter().position(|wanted| bytes.starts_with(wanted)) {
                left.swap_remove(at);
                let mut again = packet.to_vec();
                restore(&mut again, MutableFields { ttl: TTL, tos: 0 });
                found.push(again);
            }
        }
        found
    }

    /// Returns the bytes at the query's offset if the packet belongs to the query's flow.
    fn candidate<'a>(&self, packet: &'a [u8]) -> Option<&'a [u8]> {
        let header = Header::parse(packet).ok()?;
        if header.destination != self.asker || header.protocol != self.protocol {
            return None;
        }
        let transport = packet.get(header.header_len..)?;
        let port = u16::from_be_bytes([*transport.get(2)?, *transport.get(3)?]);
        (port == self.port).then(|| transport.get(self.offset..)).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(port: u16, number: u32) -> Vec<u8> {
        let mut packet = vec![0; 40];
        packet[0] = 0x45;
        packet[3] = 40;
        packet[9] = 17;
        packet[12..20].copy_from_slice(&[10, 1, 0, 1, 10, 2, 0, 1]);
        packet[22..24].copy_from_slice(&port.to_be_bytes());
        packet[28..32].copy_from_slice(&number.to_be_bytes());
        packet
    }

    fn query(asker: [u8; 4], numbers: &[u32]) -> Query {
        let mut datagram = b"VDC1".to_vec();
        datagram.extend([17, 4, 0x13, 0x88, 0, 8]);
        datagram.extend(numbers.iter().flat_map(|n| n.to_be_bytes()));
        Query::parse(asker.into(), &datagram).unwrap()
    }

    #[test]
    fn each_wanted_packet_is_found_once() {
        let cached = [packet(5_000, 3), packet(5_000, 2), packet(5_000, 2), packet(5_001, 1)];
        let found = query([10, 2, 0, 1], &[1, 2, 3, 4]).find(cached.iter().map(Vec::as_slice));
        let numbers: Vec<_> = found.iter().map(|p| p[31]).collect();
        assert_eq!(numbers, [3, 2]);
        assert_eq!(found[0][8], TTL);
    }

    #[test]
    fn a_host_gets_only_packets_addressed_to_it() {
        let cached = [packet(5_000, 3)];
        assert!(query([10, 2, 0, 9], &[3]).find(cached.iter().map(Vec::as_slice)).is_empty());
    }

    #[test]
    fn malformed_queries_are_refused() {
        let asker = IpAddr::from([10, 2, 0, 1]);
        for bad in [
            &b"VDC1"[..],
            b"VDC1\x11\0\x13\x88\0\x08abcd",
            b"VDC1\x11\x04\x13\x88\0\x08abc",
            b"XXXX\x11\x04\x13\x88\0\x08abcd",
        ] {
            assert_eq!(Query::parse(asker, bad), None, "{bad:?}");
        }
    }
}
