//! Addresses of this machine, for a gateway that listens on the unspecified address. Forwarded
//! packets may have the gateway's port, too; only their addresses show that they belong to hosts.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use viaduct_proto::time::{Duration, Instant};
use viaduct_sys::route::local_addresses::LocalAddresses;

/// Maximum age of the list.
const MAX_AGE: Duration = Duration::from_secs(1);

/// Maximum number of addresses that are looked up within [`MAX_AGE`]. An address that no interface
/// has may still be this machine's, because of a route of type `local`.
const MAX_LOOKUPS: usize = 64;

/// Addresses of all interfaces, at most a second old.
#[derive(Debug, Default)]
pub(super) struct OwnAddresses {
    lookup: Option<LocalAddresses>,
    list: HashSet<IpAddr>,
    /// Other addresses, and whether they are this machine's.
    others: HashMap<IpAddr, bool>,
    read_at: Option<Instant>,
}

impl OwnAddresses {
    /// Returns whether the gateway receives packets to `ip` if it listens at `listen`. If the
    /// addresses of the interfaces cannot be read, those read last are used. If none were ever
    /// read, the result is true.
    pub(super) fn receive(&mut self, now: Instant, listen: SocketAddr, ip: IpAddr) -> bool {
        if !listen.ip().is_unspecified() {
            return listen.ip() == ip;
        }
        if self.read_at.is_none_or(|at| now.since(at) >= MAX_AGE) {
            self.read_at = Some(now);
            if self.lookup.is_none() {
                self.lookup = LocalAddresses::new().ok();
            }
            if let Some(Ok(all)) = self.lookup.as_ref().map(LocalAddresses::all) {
                self.list = all.into_iter().collect();
            }
            self.others.clear();
        }
        if self.list.is_empty() || self.list.contains(&ip) {
            return true;
        }
        if self.others.len() >= MAX_LOOKUPS {
            return self.others.get(&ip).is_some_and(|is_local| *is_local);
        }
        let lookup = self.lookup.as_ref();
        let is_local = || lookup.is_some_and(|of| of.contains(ip).unwrap_or(false));
        *self.others.entry(ip).or_insert_with(is_local)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_to_hosts_behind_the_gateway_are_not_received() {
        let mut own = OwnAddresses::default();
        let mut receive = |listen: &str, ip: &str| {
            own.receive(Instant::ZERO, listen.parse().unwrap(), ip.parse().unwrap())
        };
        assert!(receive("0.0.0.0:7400", "127.9.0.1"), "by a route");
        assert!(receive("0.0.0.0:7400", "127.0.0.1") && receive("[::]:7400", "127.0.0.1"));
        assert!(!receive("0.0.0.0:7400", "192.0.2.1") && !receive("[::]:7400", "2001:db8::1"));
        assert!(receive("192.0.2.1:7400", "192.0.2.1") && !receive("192.0.2.1:7400", "127.0.0.1"));
    }
}
