//! Notice of changed routes: by a routing daemon, a network manager or an administrator.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use crate::route::mtu::PROTOCOL;
use crate::route::netlink;

/// `RTMGRP_IPV4_ROUTE` and `RTMGRP_IPV6_ROUTE`.
const GROUPS: u32 = 0x40 | 0x400;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTA_DST: u16 = 1;
const MAIN_TABLE: u8 = 254;
/// Bytes of a route's header.
const ROUTE_HEAD: usize = 12;

/// Watch of the main table's routes to some prefixes, to parts of them, or to prefixes that
/// contain them.
#[derive(Debug)]
pub struct RouteWatch {
    socket: OwnedFd,
    prefixes: Vec<(IpAddr, u8)>,
}

impl RouteWatch {
    /// Listens in the calling thread's network namespace, from now on.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new(prefixes: Vec<(IpAddr, u8)>) -> io::Result<RouteWatch> {
        Ok(RouteWatch { socket: netlink::open(libc::NETLINK_ROUTE, GROUPS)?, prefixes })
    }

    /// Returns whether such a route was added or deleted since the last call; ours (see
    /// [`PROTOCOL`]) do not count.
    pub fn changed(&self) -> bool {
        netlink::any_event(&self.socket, |kind, message| {
            matches!(kind, RTM_NEWROUTE | RTM_DELROUTE) && is_theirs(&self.prefixes, message)
        })
    }
}

/// Returns whether a message's route is to one of `prefixes`, and not ours.
pub(crate) fn is_theirs(prefixes: &[(IpAddr, u8)], message: &[u8]) -> bool {
    let Some((route, attributes)) = message.split_at_checked(ROUTE_HEAD) else { return false };
    let (family, length, table, protocol) = (route[0], route[1], route[4], route[5]);
    if table != MAIN_TABLE || protocol.to_string() == PROTOCOL {
        return false;
    }
    let v4 = i32::from(family) == libc::AF_INET;
    let to = netlink::find(attributes, RTA_DST);
    prefixes.iter().filter(|(ip, _)| ip.is_ipv4() == v4).any(|&(ip, own)| {
        let shared = usize::from(own.min(length));
        match (ip, to) {
            _ if shared == 0 => true,
            (IpAddr::V4(ip), Some(to)) => same_bits(&ip.octets(), to, shared),
            (IpAddr::V6(ip), Some(to)) => same_bits(&ip.octets(), to, shared),
            (_, None) => false,
        }
    })
}

/// Returns whether two addresses begin with the same `bits` bits.
fn same_bits(one: &[u8], other: &[u8], bits: usize) -> bool {
    let bit = |bytes: &[u8], n: usize| bytes.get(n / 8).map(|byte| byte >> (7 - n % 8) & 1);
    (0..bits).all(|n| bit(one, n).is_some() && bit(one, n) == bit(other, n))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Netns;
    use crate::process::tool;

    #[test]
    fn routes_to_the_prefixes_are_noticed_and_ours_and_others_are_not() {
        let changes = || {
            let ip = |line: &str| {
                tool::run("ip", &line.split(' ').collect::<Vec<_>>(), "").unwrap();
            };
            ip("link set lo up");
            ip("addr add 192.0.2.1/24 dev lo");
            let prefixes = ["10.2.0.0", "fd00:2::"].map(|ip| ip.parse().unwrap());
            let watch = RouteWatch::new(vec![(prefixes[0], 16), (prefixes[1], 48)]).unwrap();
            let noticed = |line: &str| {
                ip(line);
                watch.changed()
            };
            [
                noticed("route add 10.3.0.0/16 dev lo"),
                noticed("route add 10.2.0.0/16 dev lo proto 118"),
                noticed("route add 10.2.0.0/16 dev lo table 77"),
                noticed("route add 10.2.7.0/24 dev lo"),
                noticed("route add default dev lo"),
                noticed("-6 route add fd00:2::/32 dev lo"),
                noticed("route del 10.2.7.0/24 dev lo"),
                watch.changed(),
            ]
        };
        let seen = Netns::new().unwrap().enter(changes).unwrap();
        assert_eq!(seen, [false, false, false, true, true, true, true, false]);
    }
}
