//! Parsers of the kernel's messages, for the fuzz targets and the tests below.

use std::net::IpAddr;

use crate::nft::nfqueue;
use crate::route::{netlink, watch};

/// Parses `bytes` as netlink messages. Returns the sum, over all messages, of the length of the
/// longest value among the attributes 0 to 3.
pub fn netlink(bytes: &[u8]) -> usize {
    let all = netlink::messages(bytes).map(|(_, message)| {
        let attributes = message.get(netlink::NETFILTER_HEAD..).unwrap_or_default();
        let values = (0..4).filter_map(|kind| netlink::find(attributes, kind));
        values.map(<[u8]>::len).max().unwrap_or(0)
    });
    all.sum()
}

/// Returns the packet in a message of a netfilter queue.
pub fn nfqueue(bytes: &[u8]) -> Option<&[u8]> {
    nfqueue::parse(bytes).map(|held| held.packet)
}

/// Parses `bytes` as route messages. Returns whether one is about a route of the main table that
/// another program has set, and that overlaps with one of two prefixes.
pub fn route(bytes: &[u8]) -> bool {
    let prefixes: [(IpAddr, u8); 2] =
        [([10, 2, 0, 0].into(), 16), ([0xfd00, 2, 0, 0, 0, 0, 0, 0].into(), 48)];
    netlink::messages(bytes).any(|(kind, body)| watch::is_theirs(&prefixes, kind, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pseudorandom bytes, the same in every run.
    fn noise(seed: u64) -> impl Iterator<Item = u8> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        std::iter::repeat_with(move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
    }

    /// `RTM_NEWROUTE`.
    const NEW_ROUTE: u16 = 24;
    /// Size of `struct rtmsg`.
    const ROUTE_HEAD: usize = 12;

    /// Builds a message of `kind`: a zeroed family header, then an attribute of one of twelve
    /// types, whose length field claims `claimed_len` and whose value has `length` random bytes.
    fn message(kind: u16, claimed_len: u16, length: usize, seed: u64) -> Vec<u8> {
        let head = if kind == NEW_ROUTE { ROUTE_HEAD } else { netlink::NETFILTER_HEAD };
        let mut bytes = vec![0; 16 + head];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes.extend(claimed_len.to_ne_bytes());
        bytes.extend(((seed / 3 % 12) as u16).to_ne_bytes());
        bytes.extend(noise(seed).take(length));
        let len = bytes.len() as u32;
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
        bytes
    }

    #[test]
    fn parsed_fields_are_within_the_bytes() {
        let mut found = 0;
        for seed in 0..20_000 {
            let kind = [NEW_ROUTE, 3 << 8, 2, 0][seed as usize % 4];
            let cut = (seed as usize / 7) % 40;
            let mut bytes = message(kind, (seed % 80) as u16, 60 - cut, seed);
            if seed.is_multiple_of(3) {
                let at = seed as usize % bytes.len();
                bytes[at] = noise(seed).next().unwrap_or(0);
            }
            if seed.is_multiple_of(5) {
                bytes.truncate(bytes.len() - cut);
            }
            found += usize::from(netlink(&bytes) > 0);
            assert!(netlink(&bytes) <= bytes.len());
            assert!(nfqueue(&bytes).is_none_or(|packet| packet.len() <= bytes.len()));
            route(&bytes);
        }
        assert!(found > 500, "only {found} messages have one of the attributes");
    }
}
