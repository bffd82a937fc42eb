//! Which packet is meant: a keyed 64-bit hash over all that routers leave alone.
//!
//! The paper names a packet by addresses, IP id, length and a checksum of its payload (4.6), and a
//! collision garbles a recovery. Here the name is a keyed hash of the whole normalised packet, so
//! it doubles as the proof that a recovery came out right: what does not hash to the name that it
//! was announced under is never injected. The key follows from the two sites' keys alone, so that
//! it outlives sessions and restarts, and nobody else can make collisions.

use highway::{HighwayHash, HighwayHasher, Key};

/// A packet's name between two sites.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity(pub u64);

/// The key under which two sites name packets.
#[derive(Clone)]
pub struct IdentityKey(Key);

impl IdentityKey {
    /// From 32 secret bytes.
    pub fn new(secret: &[u8; 32]) -> Self {
        let mut words = [0; 4];
        for (word, bytes) in words.iter_mut().zip(secret.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        IdentityKey(Key(words))
    }

    /// The name of a normalised packet (see [`crate::wire::ip::normalise`]).
    pub fn name(&self, normalised: &[u8]) -> Identity {
        Identity(HighwayHasher::new(self.0).hash64(normalised))
    }
}

impl std::fmt::Debug for IdentityKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("IdentityKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_and_the_length_and_the_key_matter() {
        let key = IdentityKey::new(&[7; 32]);
        let packet = [0x45u8; 60];
        let name = key.name(&packet);
        assert_eq!(name, key.name(&packet));
        assert_ne!(name, key.name(&packet[..59]));
        assert_ne!(name, IdentityKey::new(&[8; 32]).name(&packet));
        for bit in 0..60 * 8 {
            let mut other = packet;
            other[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(name, key.name(&other), "bit {bit}");
        }
    }
}
