//! Cryptographic primitives of Noise, with randomness as an argument.

use std::sync::Arc;

use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random};

/// Source of random bytes fit for keys: fills a buffer. A shell passes the system's source.
pub type Entropy = Arc<dyn Fn(&mut [u8]) + Send + Sync>;

/// Random bytes.
pub(crate) fn random<const N: usize>(entropy: &Entropy) -> [u8; N] {
    let mut bytes = [0; N];
    entropy(&mut bytes);
    bytes
}

/// Primitives of Noise from `snow`, with the caller's randomness.
pub(crate) struct Resolver(pub(crate) Entropy);

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Source(self.0.clone())))
    }
    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }
    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }
    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

struct Source(Entropy);

impl Random for Source {
    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), snow::Error> {
        (self.0)(dest);
        Ok(())
    }
}
