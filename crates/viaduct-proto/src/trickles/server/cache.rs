//! Cache of values that are computed per connection, and can be dropped at any time (5.1).
//!
//! ```text
//!  connection ─▶ slot ─▶ Known: address, epoch ─▶ hash of the address, first words of the nonces
//!                          └ of another connection, address, secret or epoch: computed, stored
//! ```
//!
//! Each connection has one slot, which it may share with others; the last one occupies it. So
//! memory is fixed, lookups take constant time, and an eviction costs only computing time.
//! Codes and proofs are checked in any case.

use std::net::SocketAddr;

use crate::trickles::continuation::Continuation;
use crate::trickles::keys::KeyRing;
use crate::trickles::nonce::Block;

/// Entry of one connection.
#[derive(Clone, Copy, Debug)]
struct Known {
    connection: u64,
    from: SocketAddr,
    base: u64,
    /// Numbers of the secrets of the continuation, and of the nonces.
    secrets: [u8; 2],
    derived: Derived,
}

/// Values derived from a connection's address, epoch and secrets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Derived {
    /// Keyed hash of the address.
    pub(super) address: u64,
    /// The nonces' words at the base of the epoch.
    pub(super) base: Block,
}

/// Cache of bounded size; disabled if it has no slots. See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Cache {
    places: Vec<Option<Known>>,
    pub(super) hits: u64,
    pub(super) misses: u64,
}

impl Cache {
    /// Creates a cache of `connections` slots (rounded up to a power of two), or a disabled one
    /// for 0.
    pub(super) fn new(connections: usize) -> Self {
        let places = if connections == 0 { 0 } else { connections.next_power_of_two() };
        Cache { places: vec![None; places], ..Cache::default() }
    }

    /// Removes all entries.
    pub(super) fn clear(&mut self) {
        self.places.fill(None);
    }

    /// Values of an authentic continuation that was made with `secret` and comes from `from`;
    /// `None` if a secret is not in the ring.
    pub(super) fn derive(
        &mut self,
        ring: &KeyRing,
        secret: u8,
        from: SocketAddr,
        of: &Continuation,
    ) -> Option<Derived> {
        let (connection, base, secrets) = (of.connection, of.epoch.base, [secret, of.nonces]);
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
