//! Peers by the addresses of their sites: the longest prefix that contains an address decides.
//!
//! ```text
//!   10.7.3.9 ──▶ prefix 10.7.3.0/24 ─ peer 12, if the other address is of this site
//! ```

use std::net::IpAddr;

use ipnet::IpNet;

use super::prefix_table::PrefixTable;
use super::sites::{Sites, within};
use crate::wire::ip::Header;

/// Peers of one gateway, by address.
#[derive(Debug, Default)]
pub(super) struct SiteTable {
    remote: PrefixTable<Entry>,
    /// Prefixes of this site: one list for each different set in the peers' configs, which is
    /// usually a single list.
    local: Vec<Vec<IpNet>>,
}

/// Peer of a prefix.
#[derive(Clone, Copy, Debug)]
struct Entry {
    peer: u32,
    /// Index in [`SiteTable::local`] of the prefixes of this site in the peer's config.
    local: u32,
}

impl SiteTable {
    /// Creates the table of peers with these sites. If two peers have the same prefix, its packets
    /// go to the first of them.
    pub(super) fn new<'a>(peers: impl IntoIterator<Item = &'a Sites>) -> SiteTable {
        let mut table = SiteTable::default();
        for (peer, sites) in peers.into_iter().enumerate() {
            let local = table.local.iter().position(|known| *known == sites.local);
            let local = local.unwrap_or_else(|| {
                table.local.push(sites.local.clone());
                table.local.len() - 1
            });
            let entry = Entry { peer: peer as u32, local: local as u32 };
            sites.remote.iter().for_each(|prefix| table.remote.insert(prefix, entry));
        }
        table
    }

    /// Peer to whose site a packet from this site goes.
    pub(super) fn leaves(&self, header: &Header) -> Option<usize> {
        self.find(header.destination, header.source)
    }

    /// Peer from whose site a packet to this site comes.
    pub(super) fn arrives(&self, header: &Header) -> Option<usize> {
        self.find(header.source, header.destination)
    }

    fn find(&self, remote: IpAddr, local: IpAddr) -> Option<usize> {
        let entry = self.remote.find(remote)?;
        within(&self.local[entry.local as usize], local).then_some(entry.peer as usize)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Peer of a packet, found by a search of all prefixes.
    fn searched(peers: &[Sites], remote: IpAddr, local: IpAddr) -> Option<usize> {
        let prefixes =
            peers.iter().enumerate().flat_map(|(n, of)| of.remote.iter().map(move |p| (n, p)));
        let fits = prefixes.filter(|(_, prefix)| prefix.contains(&remote));
        // `max_by_key` returns the last maximum, but the first is needed.
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
}
