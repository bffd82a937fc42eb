//! Lookup of this host's own addresses in its routes.
//!
//! A successful bind to an address does not prove that the address is local: with
//! `net.ipv4.ip_nonlocal_bind`, which hosts set to take over each other's addresses, any address
//! can be bound.

use std::io;
use std::net::IpAddr;

use netlink_packet_route::route::RouteType;

use crate::route::rtnetlink::RouteSocket;

/// Lookup in the kernel's routes.
#[derive(Debug)]
pub struct LocalAddresses(RouteSocket);

impl LocalAddresses {
    /// Opens a netlink socket in the calling thread's network namespace. Errors: no descriptor is
    /// left.
    pub fn new() -> io::Result<LocalAddresses> {
        RouteSocket::open().map(LocalAddresses)
    }

    /// Returns whether packets to `ip` are delivered to this host: `ip` is an address of an
    /// interface, or within a route of type `local`. Errors: the netlink request fails. A missing
    /// route to `ip` is not an error.
    pub fn contains(&self, ip: IpAddr) -> io::Result<bool> {
        let route = self.0.route_to(ip)?;
        Ok(route.is_some_and(|route| route.header.kind == RouteType::Local))
    }

    /// Returns the addresses of all interfaces. Errors: the netlink request fails.
    pub fn all(&self) -> io::Result<Vec<IpAddr>> {
        self.0.addresses()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_addresses_are_local_and_documentation_addresses_are_not() {
        let here = LocalAddresses::new().unwrap();
        for (ip, ours) in
            [("127.0.0.5", true), ("192.0.2.1", false), ("::1", true), ("2001:db8::1", false)]
        {
            assert_eq!(here.contains(ip.parse().unwrap()).unwrap(), ours, "{ip}");
        }
        assert!(here.all().unwrap().contains(&"127.0.0.1".parse().unwrap()));
    }
}
