//! Values of prefixes, found by address: an address has the value of the longest prefix that
//! contains it.
//!
//! The prefixes of one length are in a hash table, so that a look-up costs one probe for each
//! length in use, however many prefixes there are.
//!
//! ```text
//!   10.7.3.9 ──▶ /32: 10.7.3.9   ─ none
//!            ──▶ /24: 10.7.3.0   ─ value
//! ```

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::net::IpAddr;

use ipnet::IpNet;

/// Values of prefixes.
#[derive(Debug)]
pub(super) struct PrefixTable<T> {
    v4: Lengths<T>,
    v6: Lengths<T>,
}

/// Prefixes of one family: for each length, longest first, the values by network. An IPv4 address
/// is in the highest 32 bits of its key.
#[derive(Debug)]
struct Lengths<T>(Vec<(u8, Networks<T>)>);

type Networks<T> = HashMap<u128, T, BuildHasherDefault<NetworkHasher>>;

impl<T> Default for PrefixTable<T> {
    fn default() -> Self {
        PrefixTable { v4: Lengths(Vec::new()), v6: Lengths(Vec::new()) }
    }
}

impl<T: Copy> PrefixTable<T> {
    /// Adds a prefix with a value. A prefix that already has a value keeps it.
    pub(super) fn insert(&mut self, prefix: &IpNet, value: T) {
        let of_family = if prefix.addr().is_ipv4() { &mut self.v4 } else { &mut self.v6 };
        of_family.insert(bits(prefix.network()), prefix.prefix_len(), value);
    }

    /// Value of the longest prefix that contains the address.
    pub(super) fn find(&self, address: IpAddr) -> Option<T> {
        let of_family = if address.is_ipv4() { &self.v4 } else { &self.v6 };
        of_family.find(bits(address))
    }
}

impl<T: Copy> Lengths<T> {
    fn insert(&mut self, network: u128, length: u8, value: T) {
        let at = self.0.partition_point(|(other, _)| *other > length);
        if self.0.get(at).is_none_or(|(other, _)| *other != length) {
            self.0.insert(at, (length, Networks::default()));
        }
        self.0[at].1.entry(network).or_insert(value);
    }

    fn find(&self, address: u128) -> Option<T> {
        let of =
            |(length, values): &(u8, Networks<T>)| values.get(&(address & mask(*length))).copied();
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

/// Hash of a network. The hash needs no secret: the networks in the table come from the config, so
/// packets cannot cause collisions.
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
    use super::*;

    #[test]
    fn thousands_of_networks_hardly_collide() {
        let hash = |network: u128| {
            let mut hasher = NetworkHasher::default();
            hasher.write_u128(network);
            hasher.finish()
        };
        for shift in [96, 104, 64, 80] {
            let mut buckets = vec![0_u32; 8_192];
            // `HashMap` selects a bucket by the low bits of a hash, and compares the highest seven
            // bits.
            (0..4_096_u128).for_each(|n| buckets[hash(n << shift) as usize % 8_192] += 1);
            assert!(buckets.iter().all(|many| *many < 9), "{shift}: {:?}", buckets.iter().max());
            let tops: std::collections::HashSet<_> =
                (0..4_096_u128).map(|n| hash(n << shift) >> 57).collect();
            assert!(tops.len() > 100, "{shift}: {}", tops.len());
        }
    }
}
