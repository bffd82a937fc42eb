//! Destinations that this host has routes to, with the source addresses of datagrams to them. A
//! capture namespace gets matching routes, so that its sockets see the same error for a missing
//! route as they would outside.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_route::AddressFamily;
use netlink_packet_route::route::{RouteFlags, RouteHeader, RouteMessage, RouteType};

use super::routes;
use super::uplink::INNER;
use crate::route::prefix::{full_length, share};
use crate::route::rtnetlink::{self, RouteEvents, RouteSocket};
use crate::route::table_route::destination;

/// Max prefixes. Further prefixes are not copied, and use the default route.
const MAX_PREFIXES: usize = 256;
/// Addresses to test for a default route: documentation addresses, to which some hosts have no
/// route, and the addresses of a DNS root server.
const FAR: [IpAddr; 5] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1)),
    IpAddr::V4(Ipv4Addr::new(198, 41, 0, 4)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0x503, 0xba3e, 0, 0, 0, 2, 0x30)),
];
/// `RTMGRP_IPV4_IFADDR`, `RTMGRP_IPV4_ROUTE`, and their counterparts for IPv6.
const GROUPS: u32 = 0x10 | 0x40 | 0x100 | 0x400;

/// A reachable prefix and the source address of datagrams to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceRoute {
    /// The prefix.
    pub to: (IpAddr, u8),
    /// The address.
    pub own: IpAddr,
}

/// Reachable prefixes with their source addresses, except loopback.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceRoutes(pub Vec<SourceRoute>);

impl SourceRoutes {
    /// Reads the prefixes of this thread's network namespace. `everywhere` is set if a relay is
    /// used: all IPv4 addresses then count as reachable, whatever the routes are, and all IPv6
    /// addresses if this host has an IPv6 address.
    pub fn read(everywhere: bool) -> SourceRoutes {
        let mut near: Vec<SourceRoute> = Vec::new();
        let (own, routes) = match RouteSocket::open() {
            Ok(socket) => (addresses(&socket), prefixes(&socket)),
            Err(_) => Default::default(),
        };
        for to in own.into_iter().map(whole).chain(routes).take(MAX_PREFIXES) {
            let known = near.iter().any(|near| near.to == to);
            if let (false, Some(own)) = (known, source(inside(to))) {
                near.push(SourceRoute { to, own });
            }
        }
        let by_default = |v4: bool| {
            let far = FAR.into_iter().filter(|far| far.is_ipv4() == v4);
            far.filter(|far| !near.iter().any(|near| holds(near.to, *far))).find_map(source)
        };
        let mut v4 = by_default(true);
        if everywhere && v4.is_none() {
            let own = near.iter().map(|near| near.own).find(IpAddr::is_ipv4);
            v4 = own.or(Some(Ipv4Addr::LOCALHOST.into()));
        }
        let mut v6 = by_default(false);
        if everywhere && v6.is_none() {
            v6 = near.iter().map(|near| near.own).find(IpAddr::is_ipv6);
        }
        let v4 = v4.map(|own| SourceRoute { to: (Ipv4Addr::UNSPECIFIED.into(), 0), own });
        let v6 = v6.map(|own| SourceRoute { to: (Ipv6Addr::UNSPECIFIED.into(), 0), own });
        SourceRoutes(v4.into_iter().chain(v6).chain(near).collect())
    }

    /// Returns the local address that a socket bound to `at` uses towards `peer`.
    pub fn towards(&self, at: IpAddr, peer: IpAddr) -> IpAddr {
        let loopback = || match peer {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
        if !at.is_unspecified() {
            return at;
        }
        if peer.is_loopback() {
            return loopback();
        }
        let fitting = self.0.iter().filter(|near| holds(near.to, peer));
        let best = fitting.max_by_key(|near| near.to.1);
        // Without a known route to the peer, any source address of its family is used.
        let any = || self.0.iter().find(|near| near.own.is_ipv4() == peer.is_ipv4());
        best.or_else(any).map_or_else(loopback, |near| near.own)
    }

    /// Returns whether `ip` is the source address of one of the prefixes.
    pub fn has(&self, ip: IpAddr) -> bool {
        self.0.iter().any(|near| near.own == ip)
    }

    /// Formats the prefixes, for [`SourceRoutes::parse`].
    pub fn text(&self) -> String {
        let word = |near: &SourceRoute| format!("{}/{}={}", near.to.0, near.to.1, near.own);
        self.0.iter().map(word).collect::<Vec<_>>().join(" ")
    }

    /// Parses the format of [`SourceRoutes::text`]; `None` if `text` has another format.
    pub fn parse(text: &str) -> Option<SourceRoutes> {
        let near = |word: &str| {
            let (to, own) = word.split_once('=')?;
            let (ip, length) = to.split_once('/')?;
            Some(SourceRoute {
                to: (ip.parse().ok()?, length.parse().ok()?),
                own: own.parse().ok()?,
            })
        };
        text.split_whitespace().map(near).collect::<Option<_>>().map(SourceRoutes)
    }

    /// Updates the routes of this process's capture namespace from those of `before` to those of
    /// `self`. Errors: the kernel refuses a route. The other routes are installed; the first error
    /// is returned.
    pub fn apply(&self, before: &SourceRoutes) -> io::Result<()> {
        for near in before.0.iter().filter(|near| !self.0.contains(near)) {
            // The route may have been removed with its address.
            let _ = routes::delete_route(INNER, near.to);
        }
        let mut first = Ok(());
        for near in self.0.iter().filter(|near| !before.0.contains(near)) {
            // The address may have been added already.
            let _ = routes::add_address(INNER, near.own);
            first = first.and(routes::add_route(INNER, near.to, Some(near.own)));
        }
        first
    }
}

/// Watch of this host's routes and addresses.
#[derive(Debug)]
pub struct SourceRoutesWatch(RouteEvents);

impl SourceRoutesWatch {
    /// Listens in the calling thread's network namespace, from now on. Errors: no descriptor is
    /// left.
    pub fn new() -> io::Result<SourceRoutesWatch> {
        RouteEvents::of(GROUPS).map(SourceRoutesWatch)
    }

    /// Returns whether a route or an address has changed since the last call.
    pub fn changed(&self) -> bool {
        self.0.any(|_, _| true)
    }
}

impl AsFd for SourceRoutesWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns the source address of datagrams to `to`; `None` if there is no route.
fn source(to: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match to {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    // Connecting a UDP socket sends nothing.
    socket.connect((to, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|own| !own.is_loopback())
}

/// Returns a host address in a prefix.
fn inside((ip, length): (IpAddr, u8)) -> IpAddr {
    match ip {
        IpAddr::V4(ip) if length < 31 => Ipv4Addr::from_bits(ip.to_bits() | 1).into(),
        IpAddr::V6(ip) if length < 127 => Ipv6Addr::from_bits(ip.to_bits() | 1).into(),
        ip => ip,
    }
}

fn holds((prefix, length): (IpAddr, u8), ip: IpAddr) -> bool {
    share(prefix, ip, length)
}

/// Returns the host prefix of an address.
fn whole(ip: IpAddr) -> (IpAddr, u8) {
    (ip, full_length(ip))
}

/// Returns the prefixes that have routes: for IPv4 in the main table, for IPv6 in any table.
/// Link-local and multicast routes of IPv6 are left out, as they are of no use in a capture
/// namespace.
fn prefixes(socket: &RouteSocket) -> Vec<(IpAddr, u8)> {
    let prefix = |route: &RouteMessage| {
        let (to, length) = destination(route)?;
        let leads = match to {
            IpAddr::V4(_) => rtnetlink::table(route) == u32::from(RouteHeader::RT_TABLE_MAIN),
            IpAddr::V6(to) => {
                !to.is_unicast_link_local() && !to.is_multicast() && !to.is_loopback()
            }
        };
        let kinds = [RouteType::Unicast, RouteType::Local, RouteType::Anycast];
        let is_used =
            kinds.contains(&route.header.kind) && !route.header.flags.contains(RouteFlags::Cloned);
        (leads && is_used && length > 0).then_some((to, length))
    };
    let families = [AddressFamily::Inet, AddressFamily::Inet6];
    let routes = families.map(|family| socket.routes(family).unwrap_or_default());
    routes.iter().flatten().filter_map(prefix).collect()
}

/// Returns this host's addresses, except loopback and link-local ones.
fn addresses(socket: &RouteSocket) -> Vec<IpAddr> {
    let mut found = socket.addresses().unwrap_or_default();
    let of_link = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    found.retain(|ip| !ip.is_loopback() && !of_link(ip));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Netns;
    use crate::process::tool;

    #[test]
    fn formatted_prefixes_parse_to_the_same_value_and_give_source_addresses() {
        let own = SourceRoutes::parse(
            "0.0.0.0/0=10.0.0.2 2001:db8::/32=2001:db8::7 10.1.0.0/16=10.1.0.9",
        );
        let own = own.unwrap();
        assert_eq!(SourceRoutes::parse(&own.text()), Some(own.clone()));
        assert_eq!(SourceRoutes::parse("10.0.0.0=10.0.0.1"), None);
        let towards = |at: &str, peer: &str| {
            own.towards(at.parse().unwrap(), peer.parse().unwrap()).to_string()
        };
        assert_eq!(towards("0.0.0.0", "192.0.2.1"), "10.0.0.2");
        assert_eq!(towards("0.0.0.0", "10.1.2.3"), "10.1.0.9");
        assert_eq!(towards("0.0.0.0", "127.0.0.5"), "127.0.0.1");
        assert_eq!(towards("10.9.9.9", "10.1.2.3"), "10.9.9.9");
        assert_eq!(towards("::", "2001:db8::1"), "2001:db8::7");
        assert_eq!(towards("::", "2001:db9::1"), "2001:db8::7");
        let loopback =
            SourceRoutes::default().towards("::".parse().unwrap(), "2001:db9::1".parse().unwrap());
        assert_eq!(loopback.to_string(), "::1");
    }

    #[test]
    fn routes_and_addresses_are_listed_and_watched() {
        let asked = || {
            let ip = |line: &str| {
                tool::run("ip", &line.split(' ').collect::<Vec<_>>(), "").unwrap();
            };
            ip("link set lo up");
            let watch = SourceRoutesWatch::new().unwrap();
            let mut seen = vec![(watch.changed(), SourceRoutes::read(false).text())];
            ip("link add d0 type veth peer name d1");
            ip("link set d0 up");
            ip("link set d1 up");
            for line in [
                "addr add 10.9.0.2/32 dev lo",
                "addr add 198.51.100.7/24 dev d0",
                "-6 addr add fd00:7::7/64 dev d0 nodad",
                "route add default via 198.51.100.9",
            ] {
                ip(line);
                seen.push((watch.changed(), SourceRoutes::read(false).text()));
            }
            seen.push((watch.changed(), SourceRoutes::read(true).text()));
            seen
        };
        let seen = Netns::new().unwrap().enter(asked).unwrap();
        let host = "10.9.0.2/32=10.9.0.2";
        let four = format!("{host} 198.51.100.7/32=198.51.100.7");
        let net = "198.51.100.0/24=198.51.100.7";
        let six = "fd00:7::7/128=fd00:7::7";
        let expected = [
            (false, String::new()),
            (true, host.to_owned()),
            (true, format!("{four} {net}")),
            (true, format!("{four} {six} {net} fd00:7::/64=fd00:7::7")),
            (true, format!("0.0.0.0/0=198.51.100.7 {four} {six} {net} fd00:7::/64=fd00:7::7")),
        ];
        assert_eq!(seen[..5], expected);
        // Through a relay, every address is reachable.
        let everywhere = expected[4].1.replace(&four, &format!("::/0=fd00:7::7 {four}"));
        assert_eq!(seen[5], (false, everywhere));
    }
}
