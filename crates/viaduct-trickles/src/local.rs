//! Lookup of this host's local addresses, to ignore forwarded packets that a tap sees.

use std::io;
use std::net::IpAddr;

use viaduct_proto::time::Instant;
use viaduct_sys::route::local_addresses::LocalAddresses;

use crate::lookup_cache::LookupCache;

/// Lookup of local addresses in the kernel, with a short-lived cache.
#[derive(Debug)]
pub(crate) struct Local {
    here: LocalAddresses,
    cache: LookupCache<IpAddr, bool>,
}

impl Local {
    /// Creates a lookup in the calling thread's network namespace.
    pub(crate) fn new() -> io::Result<Local> {
        Ok(Local { here: LocalAddresses::new()?, cache: LookupCache::new() })
    }

    /// Returns whether `ip` is local, or routed to this host.
    pub(crate) fn is(&mut self, now: Instant, ip: IpAddr) -> bool {
        self.cache.get(now, ip, || self.here.contains(ip).unwrap_or(false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_local_and_documentation_addresses_are_not() {
        let mut local = Local::new().unwrap();
        for (ip, ours) in [("127.0.0.5", true), ("192.0.2.1", false), ("::1", true)] {
            let ip = ip.parse().unwrap();
            assert_eq!([local.is(Instant::ZERO, ip), local.is(Instant::ZERO, ip)], [ours; 2]);
        }
    }
}
