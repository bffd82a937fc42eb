//! Cache of servers with a known property. New connections to a server known to support only TCP
//! use TCP immediately, which saves a round trip; a server known to answer over Trickles may be
//! sent a program's first bytes in the first packet.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use viaduct_proto::time::Instant;

const MAX_SERVERS: usize = 1024;

/// The cache.
#[derive(Debug)]
pub(super) struct ServerCache {
    known: HashMap<SocketAddr, Instant>,
    /// Lifetime of an entry, because a server may change.
    holds: Duration,
}

impl ServerCache {
    /// Returns an empty cache whose entries last for `holds`.
    pub(super) fn new(holds: Duration) -> ServerCache {
        ServerCache { known: HashMap::new(), holds }
    }

    /// Adds the server at `to`. If the cache is full of entries that have not expired, drops them
    /// all first.
    pub(super) fn learn(&mut self, to: SocketAddr, now: Instant) {
        if self.known.len() >= MAX_SERVERS {
            self.known.retain(|_, until| now < *until);
        }
        if self.known.len() >= MAX_SERVERS {
            self.known.clear();
        }
        self.known.insert(to, now + self.holds);
    }

    /// Removes the server at `to`.
    pub(super) fn forget(&mut self, to: SocketAddr) {
        self.known.remove(&to);
    }

    /// Returns whether the cache has an entry for the server at `to` that has not expired.
    pub(super) fn holds(&self, to: SocketAddr, now: Instant) -> bool {
        self.known.get(&to).is_some_and(|until| now < *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_expire_and_their_number_is_bounded() {
        const HOLDS: Duration = Duration::from_secs(60);
        let mut plain = ServerCache::new(HOLDS);
        let at = |port: u16| SocketAddr::from(([192, 0, 2, 1], port));
        let late = Instant::ZERO + HOLDS;
        plain.learn(at(80), Instant::ZERO);
        assert!(plain.holds(at(80), Instant::ZERO) && !plain.holds(at(81), Instant::ZERO));
        assert!(!plain.holds(at(80), late));
        plain.forget(at(80));
        assert!(!plain.holds(at(80), Instant::ZERO));
        (0..3 * MAX_SERVERS as u16).for_each(|port| plain.learn(at(port), late));
        assert!(
            plain.known.len() <= MAX_SERVERS && plain.holds(at(3 * MAX_SERVERS as u16 - 1), late)
        );
    }
}
