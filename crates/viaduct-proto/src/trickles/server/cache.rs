//! What a server has computed of its connections and may compute again at any time: a cache (5.1).
//!
//! ```text
//!   connection ─▶ place ─▶ Known: address, piece ─▶ the address's hash, the first words of the nonces
//!                            └ of another connection, address, secret or piece: computed, and put there
//! ```
//!
//! Each connection has one place, which it may share with others: the last one has it. So memory is
//! fixed, nothing is searched, and what is dropped costs time and no more. What protects a server,
//! codes and proofs, is checked all the same.

use std::net::SocketAddr;

use crate::trickles::continuation::Continuation;
use crate::trickles::keys::KeyRing;
use crate::trickles::nonce::Block;

/// What was computed of one connection.
#[derive(Clone, Copy, Debug)]
struct Known {
    connection: u64,
    from: SocketAddr,
    base: u64,
    /// Numbers of the secrets of the continuation and of the nonces.
    secrets: [u8; 2],
    derived: Derived,
}

/// What follows from a connection's address, piece and secrets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Derived {
    /// The keyed hash of its address.
    pub(super) address: u64,
    /// The nonces' words at the base of its piece.
    pub(super) base: Block,
}

/// A bounded cache of connections; none if it has no places. See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Cache {
    places: Vec<Option<Known>>,
    pub(super) hits: u64,
    pub(super) misses: u64,
}

impl Cache {
    /// One that keeps `connections` (rounded up to a power of two), or none.
    pub(super) fn new(connections: usize) -> Self {
        let places = if connections == 0 { 0 } else { connections.next_power_of_two() };
        Cache { places: vec![None; places], ..Cache::default() }
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.places.fill(None);
    }

    /// What follows from an authentic continuation that was made with `secret` and comes from `from`;
    /// None if a secret is not in the ring.
    pub(super) fn derive(
        &mut self,
        ring: &KeyRing,
        secret: u8,
        from: SocketAddr,
        of: &Continuation,
    ) -> Option<Derived> {
        let (connection, base, secrets) = (of.connection, of.piece.base, [secret, of.nonces]);
        let place = (connection as usize) & self.places.len().wrapping_sub(1);
        if let Some(Some(known)) = self.places.get(place)
            && (known.connection, known.base) == (connection, base)
            && (known.secrets, known.from) == (secrets, from)
        {
            self.hits += 1;
            return Some(known.derived);
        }
        let address = ring.get(secret)?.address(from);
        let base_block = ring.get(of.nonces)?.nonces(connection).block_of(base);
        let derived = Derived { address, base: base_block };
        if let Some(free) = self.places.get_mut(place) {
            self.misses += 1;
            *free = Some(Known { connection, from, base, secrets, derived });
        }
        Some(derived)
    }
}
