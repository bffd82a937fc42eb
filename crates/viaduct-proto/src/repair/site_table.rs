//! Peers by the addresses of their sites: the longest prefix that contains an address.
//!
//! The prefixes of one length are in a hash table, so that a look-up costs one probe for each
//! length in use, however many peers there are.
//!
//! ```text
//!   10.7.3.9 ──▶ /32: 10.7.3.9   ─ none
//!            ──▶ /24: 10.7.3.0   ─ peer 12, if the other address is of this site
//! ```

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::net::IpAddr;

use ipnet::IpNet;

use super::sites::{Sites, within};
use crate::wire::ip::Header;

/// Peers of one gateway, by address.
#[derive(Debug, Default)]
pub(super) struct SiteTable {
    v4: Prefixes,
    v6: Prefixes,
    /// Prefixes of this site. All peers of a config have the same ones, so that there is one list.
    local: Vec<Vec<IpNet>>,
}

/// Prefixes of one family: for each length, longest first, the entries by network. The bits of an
/// address begin at the highest one.
#[derive(Debug, Default)]
struct Prefixes(Vec<(u8, Networks)>);

type Networks = HashMap<u128, Entry, BuildHasherDefault<NetworkHasher>>;

/// Peer of a prefix.
#[derive(Clone, Copy, Debug)]
struct Entry {
    peer: u32,
    /// Index of the prefixes of this site that belong to the peer.
    local: u32,
}

impl SiteTable {
    /// Creates the table of peers with these sites. If two have the same prefix, the first one gets
    /// the packets.
    pub(super) fn new<'a>(peers: impl IntoIterator<Item = &'a Sites>) -> SiteTable {
        let mut table = SiteTable::default();
        for (peer, sites) in peers.into_iter().enumerate() {
            let local = table.local.iter().position(|known| *known == sites.local);
            let local = local.unwrap_or_else(|| {
                table.local.push(sites.local.clone());
                table.local.len() - 1
            });
            let entry = Entry { peer: peer as u32, local: local as u32 };
            for prefix in &sites.remote {
                let bits = bits(prefix.network());
                let of_family = if prefix.addr().is_ipv4() { &mut table.v4 } else { &mut table.v6 };
                of_family.insert(bits, prefix.prefix_len(), entry);
            }
        }
        table
    }

    /// Peer to whose site a packet goes from this one.
    pub(super) fn leaves(&self, header: &Header) -> Option<usize> {
        self.find(header.destination, header.source)
    }

    /// Peer from whose site a packet comes to this one.
    pub(super) fn arrives(&self, header: &Header) -> Option<usize> {
        self.find(header.source, header.destination)
    }

    fn find(&self, remote: IpAddr, local: IpAddr) -> Option<usize> {
        let of_family = if remote.is_ipv4() { &self.v4 } else { &self.v6 };
        let entry = of_family.find(bits(remote))?;
        within(&self.local[entry.local as usize], local).then_some(entry.peer as usize)
    }
}

impl Prefixes {
    fn insert(&mut self, network: u128, length: u8, entry: Entry) {
        let at = self.0.partition_point(|(other, _)| *other > length);
        if self.0.get(at).is_none_or(|(other, _)| *other != length) {
            self.0.insert(at, (length, Networks::default()));
        }
        self.0[at].1.entry(network).or_insert(entry);
    }

    fn find(&self, address: u128) -> Option<Entry> {
        let of =
            |(length, entries): &(u8, Networks)| entries.get(&(address & mask(*length))).copied();
        self.0.iter().find_map(of)
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Mask of a prefix of this length.
fn mask(length: u8) -> u128 {
    !u128::MAX.checked_shr(length.into()).unwrap_or(0)
}

/// Hash of a network. It needs no secret: the networks in the table are those of the config, so
/// that no packet can make them collide.
#[derive(Clone, Copy, Debug, Default)]
struct NetworkHasher(u64);

impl Hasher for NetworkHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u128(u128::from(*byte)));
    }

    fn write_u128(&mut self, network: u128) {
        let folded = network as u64 ^ ((network >> 64) as u64).rotate_left(29) ^ self.0;
        let mixed = u128::from(folded) * 0x9e37_79b9_7f4a_7c15_u128;
        self.0 = (mixed >> 64) as u64 ^ mixed as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Peer of a packet, by a look at all prefixes.
    fn searched(peers: &[Sites], remote: IpAddr, local: IpAddr) -> Option<usize> {
        let prefixes =
            peers.iter().enumerate().flat_map(|(n, of)| of.remote.iter().map(move |p| (n, p)));
        let fits = prefixes.filter(|(_, prefix)| prefix.contains(&remote));
        // `max_by_key` returns the last maximum, and the first one is wanted.
        let (peer, _) = fits
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
            .max_by_key(|(_, prefix)| prefix.prefix_len())?;
        within(&peers[peer].local, local).then_some(peer)
    }

    /// Addresses that differ in few bits, so that prefixes contain many of them.
    fn address() -> impl Strategy<Value = IpAddr> {
        prop_oneof![
            (0..4_u32, 0..4_u32).prop_map(|(high, low)| IpAddr::from(
                (0x0a00_0000 | high << 14 | low).to_be_bytes()
            )),
            (0..4_u128, 0..4_u128).prop_map(|(high, low)| {
                IpAddr::from((0xfd << 120 | high << 62 | low).to_be_bytes())
            }),
        ]
    }

    fn prefix() -> impl Strategy<Value = IpNet> {
        (address(), 0..=128_u8).prop_map(|(address, length)| {
            let most = if address.is_ipv4() { 32 } else { 128 };
            IpNet::new(address, length.min(most)).unwrap().trunc()
        })
    }

    fn sites() -> impl Strategy<Value = Sites> {
        let list = || prop::collection::vec(prefix(), 0..4);
        (list(), list()).prop_map(|(local, remote)| Sites { local, remote })
    }

    proptest! {
        #[test]
        fn the_table_finds_what_a_search_finds(
            peers in prop::collection::vec(sites(), 0..12),
            pairs in prop::collection::vec((address(), address()), 0..40),
        ) {
            let table = SiteTable::new(&peers);
            for (remote, local) in pairs {
                prop_assert_eq!(table.find(remote, local), searched(&peers, remote, local));
            }
        }
    }

    #[test]
    fn thousands_of_networks_hardly_collide() {
        let hash = |network: u128| {
            let mut hasher = NetworkHasher::default();
            hasher.write_u128(network);
            hasher.finish()
        };
        for shift in [96, 104, 64, 80] {
            let mut buckets = vec![0_u32; 8_192];
            // The table takes the low bits for the place, and the highest seven to compare.
            (0..4_096_u128).for_each(|n| buckets[hash(n << shift) as usize % 8_192] += 1);
            assert!(buckets.iter().all(|many| *many < 9), "{shift}: {:?}", buckets.iter().max());
            let tops: std::collections::HashSet<_> =
                (0..4_096_u128).map(|n| hash(n << shift) >> 57).collect();
            assert!(tops.len() > 100, "{shift}: {}", tops.len());
        }
    }
}
