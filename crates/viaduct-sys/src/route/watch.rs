//! Notification of routes that a routing daemon, a network manager or an administrator changes.

use std::io;
use std::net::IpAddr;

use netlink_packet_route::route::{RouteHeader, RouteMessage};

use crate::route::mtu::PROTOCOL;
use crate::route::prefix::share;
use crate::route::rtnetlink::{RouteEvents, changed_route};
use crate::route::table_route::destination;

/// `RTMGRP_IPV4_ROUTE` and `RTMGRP_IPV6_ROUTE`.
const GROUPS: u32 = 0x40 | 0x400;

/// Watch of the main table's routes that overlap with one of the given prefixes.
#[derive(Debug)]
pub struct RouteWatch {
    events: RouteEvents,
    prefixes: Vec<(IpAddr, u8)>,
}

impl RouteWatch {
    /// Listens in the calling thread's network namespace, from now on. Errors: no descriptor is
    /// left.
    pub fn new(prefixes: Vec<(IpAddr, u8)>) -> io::Result<RouteWatch> {
        Ok(RouteWatch { events: RouteEvents::of(GROUPS)?, prefixes })
    }

    /// Returns whether a watched route that is not ours ([`PROTOCOL`]) has changed since the
    /// last call.
    pub fn changed(&self) -> bool {
        self.events.any(|kind, body| is_theirs(&self.prefixes, kind, body))
    }
}

/// Returns whether a notification is about a route that overlaps with one of `prefixes` and is not
/// ours.
pub(crate) fn is_theirs(prefixes: &[(IpAddr, u8)], kind: u16, body: &[u8]) -> bool {
    changed_route(kind, body).is_some_and(|route| {
        route.header.table == RouteHeader::RT_TABLE_MAIN
            && u8::from(route.header.protocol) != PROTOCOL
            && prefixes.iter().any(|prefix| overlaps(&route, *prefix))
    })
}

/// Returns whether a route is to the prefix, to a part of it, or to a prefix that contains it.
fn overlaps(route: &RouteMessage, (ip, length): (IpAddr, u8)) -> bool {
    destination(route).is_some_and(|(to, own)| share(to, ip, own.min(length)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Netns;
    use crate::process::tool;

    #[test]
    fn only_routes_of_other_programs_that_overlap_with_the_prefixes_are_reported() {
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
