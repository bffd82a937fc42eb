//! Which addresses are this host's own, by its routes.
//!
//! That a socket can be bound to an address says less: with `net.ipv4.ip_nonlocal_bind`, as hosts have it that take
//! over each other's addresses, it can be bound to any.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use crate::netlink::{self, Message};

/// Where a route's kind stands in `struct rtmsg`.
const KIND: usize = 7;

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
        let (family, octets) = match ip {
            IpAddr::V4(ip) => (libc::AF_INET, ip.octets().to_vec()),
            IpAddr::V6(ip) => (libc::AF_INET6, ip.octets().to_vec()),
        };
        // `struct rtmsg`, and the route to all bits of the address.
        let mut head = [0; 12];
        head[..2].copy_from_slice(&[family as u8, 8 * octets.len() as u8]);
        let ask = Message::of_routing(libc::RTM_GETROUTE, 0, &head).with(libc::RTA_DST, &octets);
        netlink::send(&self.0, &ask.bytes())?;
        Ok(netlink::heard(&self.0, |kind, route| {
            kind == libc::RTM_NEWROUTE && route.get(KIND) == Some(&libc::RTN_LOCAL)
        }))
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
