//! Lookup of this host's own addresses, by its routes.
//!
//! A successful bind to an address says less: with `net.ipv4.ip_nonlocal_bind`, as on hosts
//! that take over each other's addresses, a socket can be bound to any.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use crate::route::netlink::{self, Message};

/// Bytes of `struct rtmsg`, and the offset of a route's type in it.
pub(crate) const ROUTE_HEAD: usize = 12;
pub(crate) const ROUTE_KIND: usize = 7;

/// Lookup in the kernel's routes.
#[derive(Debug)]
pub struct LocalAddresses(OwnedFd);

impl LocalAddresses {
    /// Opens lookups in the calling thread's network namespace.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<LocalAddresses> {
        netlink::open(libc::NETLINK_ROUTE, 0).map(LocalAddresses)
    }

    /// Returns whether packets to `ip` go to this host: it is an address of an interface, or
    /// within a route of type `local`.
    ///
    /// # Errors
    /// The kernel cannot be asked. A missing route to `ip` is not an error.
    pub fn contains(&self, ip: IpAddr) -> io::Result<bool> {
        let route = netlink::ask(&self.0, route_query(ip), libc::RTM_NEWROUTE)?;
        Ok(route.is_some_and(|route| route.get(ROUTE_KIND) == Some(&libc::RTN_LOCAL)))
    }
}

/// Builds the query for the route of packets to `ip`.
pub(crate) fn route_query(ip: IpAddr) -> Message {
    let (family, octets) = family(ip);
    // `struct rtmsg`, with a prefix of all bits of the address.
    let mut head = [0; ROUTE_HEAD];
    head[..2].copy_from_slice(&[family, 8 * octets.len() as u8]);
    Message::of_routing(libc::RTM_GETROUTE, 0, &head).with(libc::RTA_DST, &octets)
}

/// Returns an address in netlink's format: family and octets.
pub(crate) fn family(ip: IpAddr) -> (u8, Vec<u8>) {
    match ip {
        IpAddr::V4(ip) => (libc::AF_INET as u8, ip.octets().to_vec()),
        IpAddr::V6(ip) => (libc::AF_INET6 as u8, ip.octets().to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_here_and_documentation_is_not() {
        let here = LocalAddresses::new().unwrap();
        for (ip, ours) in
            [("127.0.0.5", true), ("192.0.2.1", false), ("::1", true), ("2001:db8::1", false)]
        {
            assert_eq!(here.contains(ip.parse().unwrap()).unwrap(), ours, "{ip}");
        }
    }
}
