//! Path MTU by address, as reported by routers.
//!
//! The cache has a fixed size, because the server keeps no state of connections. A hash selects the
//! slot of an address; several addresses may share a slot. An evicted entry is learnt again at the
//! cost of one packet.

use std::net::IpAddr;

use crate::time::{Duration, Instant};

/// Maximum number of addresses in the cache.
const PLACES: usize = 1024;
/// Lifetime of an entry (RFC 1191, 6.3).
const ENTRY_TTL: Duration = Duration::from_secs(600);

/// Path MTU cache.
#[derive(Debug)]
pub struct PathMtu {
    /// MTU of an address without an entry, in bytes.
    usual: usize,
    places: Vec<Option<Entry>>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    ip: IpAddr,
    mtu: usize,
    until: Instant,
}

impl PathMtu {
    /// Creates an empty cache; `usual` is the interface's MTU in bytes.
    pub fn new(usual: usize) -> PathMtu {
        PathMtu { usual, places: vec![None; PLACES] }
    }

    /// Records the path MTU to `ip` if it is below the current value. Returns whether it is.
    pub fn learn(&mut self, now: Instant, ip: IpAddr, mtu: usize) -> bool {
        let less = mtu < self.get(now, ip);
        if less {
            self.places[place(ip)] = Some(Entry { ip, mtu, until: now + ENTRY_TTL });
        }
        less
    }

    /// Maximum packet length to `ip` in bytes.
    pub fn get(&self, now: Instant, ip: IpAddr) -> usize {
        let known = self.places[place(ip)].filter(|entry| entry.ip == ip && now < entry.until);
        known.map_or(self.usual, |entry| entry.mtu)
    }
}

fn place(ip: IpAddr) -> usize {
    let bits = match ip {
        IpAddr::V4(ip) => u64::from(ip.to_bits()),
        IpAddr::V6(ip) => (ip.to_bits() >> 64) as u64 ^ ip.to_bits() as u64,
    };
    (bits.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % PLACES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_expire_after_ten_minutes_and_only_lower_the_mtu() {
        let ip: IpAddr = "10.0.0.1".parse().unwrap();
        let (mut path, start) = (PathMtu::new(1500), Instant::ZERO);
        assert_eq!(path.get(start, ip), 1500);
        assert!(!path.learn(start, ip, 9000));
        assert_eq!(path.get(start, ip), 1500);
        assert!(path.learn(start, ip, 1400) && !path.learn(start, ip, 1400));
        assert!(!path.learn(start, ip, 1450), "another router has reported less");
        assert_eq!(path.get(start + Duration::from_secs(599), ip), 1400);
        assert_eq!(path.get(start, "10.0.0.2".parse().unwrap()), 1500);
        assert_eq!(path.get(start + Duration::from_secs(600), ip), 1500);
    }

    #[test]
    fn a_flood_of_addresses_takes_no_more_memory() {
        let mut path = PathMtu::new(1500);
        for n in 0..100_000_u32 {
            path.learn(Instant::ZERO, IpAddr::from(n.to_be_bytes()), 1300);
        }
        assert_eq!(path.places.len(), PLACES);
    }
}
