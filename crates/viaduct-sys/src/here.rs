//! Which addresses are this host's own, by its routes.
//!
//! That a socket can be bound to an address says less: with `net.ipv4.ip_nonlocal_bind`, as hosts have it that take
//! over each other's addresses, it can be bound to any.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use crate::netlink::{self, Message};

/// Bytes of `struct rtmsg`, and where a route's kind stands in it.
pub(crate) const ROUTE_HEAD: usize = 12;
pub(crate) const ROUTE_KIND: usize = 7;

/// Asks the kernel for routes.
#[derive(Debug)]
pub struct Here(OwnedFd);

impl Here {
    /// Of the calling thread's network namespace.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Here> {
        netlink::hear(libc::NETLINK_ROUTE, 0).map(Here)
    }

    /// Whether what goes to `ip` goes to this host: an address of an interface, or one that a route of the kind
    /// `local` leads here.
    ///
    /// # Errors
    /// The kernel cannot be asked. That nothing leads to `ip` is none.
    pub fn has(&self, ip: IpAddr) -> io::Result<bool> {
        let route = netlink::ask(&self.0, route_to(ip), libc::RTM_NEWROUTE)?;
        Ok(route.is_some_and(|route| route.get(ROUTE_KIND) == Some(&libc::RTN_LOCAL)))
    }
}

/// Asks by which route packets to `ip` go.
pub(crate) fn route_to(ip: IpAddr) -> Message {
    let (family, octets) = family(ip);
    // `struct rtmsg`, and the route to all bits of the address.
    let mut head = [0; ROUTE_HEAD];
    head[..2].copy_from_slice(&[family, 8 * octets.len() as u8]);
    Message::of_routing(libc::RTM_GETROUTE, 0, &head).with(libc::RTA_DST, &octets)
}

/// An address as netlink has it.
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
        let here = Here::new().unwrap();
        for (ip, ours) in
            [("127.0.0.5", true), ("192.0.2.1", false), ("::1", true), ("2001:db8::1", false)]
        {
            assert_eq!(here.has(ip.parse().unwrap()).unwrap(), ours, "{ip}");
        }
    }
}
