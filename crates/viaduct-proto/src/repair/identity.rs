//! Packet identity: a keyed 64-bit hash over all bytes that routers leave unchanged.
//!
//! The paper names a packet by addresses, IP id, length and a checksum of its payload (4.6); a
//! collision then garbles a recovery. Here the name is a keyed hash of the complete normalised
//! packet, which also verifies a recovery: a packet that does not hash to the announced name is
//! never injected. The hash key is derived only from the keys of the two sites: it outlives
//! sessions and restarts, and third parties cannot produce collisions.
//!
//! ```text
//!   packet   ├──── 1024 bytes ────┼── the rest ──┤
//!                 ▼ NH                ▼ NH
//!            16 bytes            16 bytes  ──▶ HighwayHash ─▶ name
//! ```
//!
//! NH, the sum of products that is the first step of VMAC and UMAC (RFC 4418), is the fastest way
//! to reduce 1024 bytes to 16: one multiplication for every 16 bytes. Any two different blocks,
//! chosen without knowledge of the key, collide with probability 2^-64. Names are sent encrypted,
//! so third parties learn nothing about the key from them.

use highway::{HighwayHash, HighwayHasher, Key};

use super::align::Tag;

/// Name of a packet between two sites.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity(pub u64);

impl Identity {
    /// Short form of the name, for use where the order of packets resolves ambiguities.
    pub fn tag(self) -> Tag {
        self.0 as Tag
    }
}

/// Block length of NH, in bytes.
const BLOCK: usize = 1024;
/// Number of bytes in one product, and in NH's result for a block.
const PAIR: usize = 16;

/// Numbers added to the pairs of words before their multiplication.
type Pads = [[u64; 2]; BLOCK / PAIR];

/// Key under which two sites name packets.
#[derive(Clone)]
pub struct IdentityKey {
    pads: Pads,
    last: Key,
}

impl IdentityKey {
    /// Derives the key from 32 secret bytes.
    pub fn new(secret: &[u8; 32]) -> Self {
        let mut words = [0; 4];
        for (word, bytes) in words.iter_mut().zip(secret.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let derive = |n: u64| HighwayHasher::new(Key(words)).hash64(&n.to_le_bytes());
        let mut numbers = 0..;
        let mut next = || derive(numbers.next().unwrap_or(u64::MAX));
        IdentityKey {
            pads: std::array::from_fn(|_| [next(), next()]),
            last: Key([next(), next(), next(), next()]),
        }
    }

    /// Name of a normalised packet (see [`crate::wire::ip::normalise`]).
    pub fn name(&self, normalised: &[u8]) -> Identity {
        let mut hasher = HighwayHasher::new(self.last);
        for blocks in normalised.chunks(2 * BLOCK) {
            // Two blocks at a time: HighwayHash is fastest with 32 bytes.
            let (first, second) = blocks.split_at(blocks.len().min(BLOCK));
            let mut sums = [0; 2 * PAIR];
            sums[..PAIR].copy_from_slice(&nh(&self.pads, first).to_le_bytes());
            sums[PAIR..].copy_from_slice(&nh(&self.pads, second).to_le_bytes());
            hasher.append(&sums);
        }
        Identity(hasher.finalize64())
    }
}

impl std::fmt::Debug for IdentityKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("IdentityKey(..)")
    }
}

/// NH of a block of at most [`BLOCK`] bytes, padded with zeros, plus the length of the block.
fn nh(pads: &Pads, block: &[u8]) -> u128 {
    let (pairs, rest) = block.as_chunks::<PAIR>();
    let mut last = [0; PAIR];
    last[..rest.len()].copy_from_slice(rest);
    let whole = pairs.iter().zip(pads).map(|(pair, pad)| product(pair, pad));
    let whole = whole.fold(block.len() as u128, u128::wrapping_add);
    match pads.get(pairs.len()) {
        Some(pad) if !rest.is_empty() => whole.wrapping_add(product(&last, pad)),
        _ => whole,
    }
}

fn product(pair: &[u8; PAIR], pad: &[u64; 2]) -> u128 {
    let both = u128::from_le_bytes(*pair);
    let (low, high) = (both as u64, (both >> 64) as u64);
    u128::from(low.wrapping_add(pad[0])) * u128::from(high.wrapping_add(pad[1]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key() -> IdentityKey {
        IdentityKey::new(&[7; 32])
    }

    #[test]
    fn every_bit_and_the_length_and_the_key_matter() {
        for len in [20, 60, 1023, 1024, 1025, 1500, 2048, 2049] {
            let packet = vec![0x45u8; len];
            let name = key().name(&packet);
            assert_eq!(name, key().name(&packet));
            assert_ne!(name, key().name(&packet[..len - 1]));
            assert_ne!(name, IdentityKey::new(&[8; 32]).name(&packet));
            for bit in 0..len * 8 {
                let mut other = packet.clone();
                other[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(name, key().name(&other), "bit {bit} of {len} bytes");
            }
        }
    }

    #[test]
    fn zeros_are_not_padding() {
        let zeros = [0; 3000];
        let mut names: Vec<_> = (0..zeros.len()).map(|len| key().name(&zeros[..len])).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), zeros.len());
    }

    #[test]
    fn the_order_of_blocks_matters() {
        let (ones, twos) = ([1; BLOCK], [2; BLOCK]);
        let name = |blocks: [&[u8]; 3]| key().name(&blocks.concat());
        let all = [name([&ones, &ones, &twos]), name([&ones, &twos, &ones])];
        assert!(all[0] != all[1] && !all.contains(&name([&twos, &ones, &ones])));
    }

    proptest! {
        /// Compares `nh` with its definition, word by word.
        #[test]
        fn nh_is_the_sum_of_the_products(block in prop::collection::vec(any::<u8>(), 0..=BLOCK)) {
            let pads = key().pads;
            let word = |n: usize| (0..8).rev().fold(0, |word, i| {
                word << 8 | u64::from(block.get(8 * n + i).copied().unwrap_or(0))
            });
            let used = block.len().div_ceil(PAIR);
            let sum = (0..used).fold(block.len() as u128, |sum, n| {
                let left = word(2 * n).wrapping_add(pads[n][0]);
                let right = word(2 * n + 1).wrapping_add(pads[n][1]);
                sum.wrapping_add(u128::from(left) * u128::from(right))
            });
            prop_assert_eq!(nh(&pads, &block), sum);
        }
    }
}
