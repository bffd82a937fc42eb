//! Lowers the MTU towards a prefix. Hosts learn the lower MTU by ICMP, and then send packets that
//! are so short that a repair of them fits into one datagram.
//!
//! ```text
//!   before   default via 192.0.2.1 dev wan
//!   after    default via 192.0.2.1 dev wan
//!            10.2.0.0/16 via 192.0.2.1 dev wan proto 118 mtu lock 1400      <- ours
//! ```
//!
//! The most specific route of the main table that covers the whole prefix is copied to a route for
//! the prefix, with an MTU. If the prefix has a route of its own, that route is replaced, and
//! restored at the end; so are routes to parts of the prefix through the same interface. Other
//! tables (policy routing) are not considered. Our routes are distinguished from all others by the
//! protocol number 118, which no routing daemon uses.
//!
//! The MTU is locked, because the kernel applies an unlocked MTU of a route to forwarded packets
//! only for IPv4, not for IPv6.

use std::io;
use std::net::IpAddr;

use netlink_packet_route::AddressFamily;
use serde::{Deserialize, Serialize};

use crate::route::interface;
use crate::route::prefix::{network, share};
use crate::route::rtnetlink::{RouteSocket, family};
use crate::route::table_route::TableRoute;

/// The routing protocol number of our routes.
pub const PROTOCOL: u8 = 118;

/// Routes that have to change for one prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteMtu {
    entries: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    ours: TableRoute,
    /// Route that `ours` replaces, if any.
    before: Option<TableRoute>,
}

/// Errors of lowering the MTU towards a prefix.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    /// The kernel refused.
    #[error("cannot {action}: {reason}")]
    Kernel {
        /// The step that failed, with the route.
        action: String,
        /// The kernel's error.
        reason: io::Error,
    },
    /// Packets to the prefix do not take this interface.
    #[error("{prefix} is not reached through {dev:?} but by the route \"{route}\"")]
    Elsewhere {
        /// The prefix.
        prefix: String,
        /// The interface that was expected.
        dev: String,
        /// The route that the kernel would take.
        route: String,
        /// Interface of `route`; empty if it has none.
        taken: String,
    },
    /// There is no route to the prefix.
    #[error("there is no route to {prefix}: {reason}")]
    Unreachable {
        /// The prefix.
        prefix: String,
        /// The route that drops or refuses packets, or a text if there is no route.
        reason: String,
    },
    /// The MTU is out of range.
    #[error("an MTU of {mtu} towards {prefix}: {least} to 65535 is expected")]
    Mtu {
        /// The prefix.
        prefix: String,
        /// Requested MTU.
        mtu: u32,
        /// Minimum for the family.
        least: u32,
    },
}

impl RouteMtu {
    /// Finds the routes to change so that packets to `prefix` (address and length) through `dev`
    /// have at most `mtu` bytes. The MTU may be 576 (IPv6: 1280) to 65535. Changes nothing. Routes
    /// whose MTU is low enough already are left out. A prefix of length 0 means only the default
    /// route, not the routes to all other prefixes. Errors: there is no route, the route is through
    /// another interface, or the MTU is out of range.
    pub fn plan(prefix: (IpAddr, u8), dev: &str, mtu: u32) -> Result<RouteMtu, RouteError> {
        let target = Target { address: network(prefix.0, prefix.1), length: prefix.1 };
        let least = if prefix.0.is_ipv4() { 576 } else { 1280 };
        if !(least..=65535).contains(&mtu) {
            return Err(RouteError::Mtu { prefix: target.text(), mtu, least });
        }
        let table = main_table(&open()?, family(prefix.0))?;
        let taken = target.route_taken(&table)?;
        let wan = interface::index(dev).ok();
        if wan.is_none() || taken.interface() != wan {
            return Err(RouteError::Elsewhere {
                prefix: target.text(),
                dev: dev.to_owned(),
                route: taken.to_string(),
                taken: taken.interface().and_then(interface::name).unwrap_or_default(),
            });
        }
        let mut routes = vec![taken];
        for part in table.iter().filter(|route| target.has_part(route)) {
            if part.interface() == wan && !routes.contains(&part) {
                routes.push(part);
            }
        }
        let higher = routes.into_iter().filter(|route| route.mtu().is_none_or(|now| now > mtu));
        Ok(RouteMtu { entries: higher.map(|route| target.entry(route, mtu)).collect() })
    }

    /// Returns whether no route has to change.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Installs our routes. Errors: the kernel refuses a change.
    pub fn apply(&self) -> Result<(), RouteError> {
        let socket = open()?;
        self.entries.iter().try_for_each(|entry| replace(&socket, &entry.ours))
    }

    /// Removes our routes and restores the routes that they replaced. May be called repeatedly. If
    /// one of our routes no longer exists (the interface went down, or an administrator has changed
    /// the route), the route that it replaced is not restored. Errors: the kernel refuses a change.
    pub fn undo(&self) -> Result<(), RouteError> {
        let socket = open()?;
        self.entries.iter().rev().try_for_each(|entry| entry.undo(&socket))
    }
}

impl Entry {
    fn undo(&self, socket: &RouteSocket) -> Result<(), RouteError> {
        let ours = |route: &TableRoute| {
            route.protocol() == PROTOCOL && route.destination() == self.ours.destination()
        };
        if !main_table(socket, self.ours.family())?.iter().any(ours) {
            return Ok(());
        }
        match &self.before {
            Some(before) => replace(socket, before),
            None => self
                .ours
                .delete(socket)
                .map_err(failed(|| format!("delete the route {}", self.ours))),
        }
    }
}

/// Prefix to find routes for.
struct Target {
    address: IpAddr,
    length: u8,
}

impl Target {
    fn text(&self) -> String {
        format!("{}/{}", self.address, self.length)
    }

    /// Returns the most specific route that covers the whole prefix; if there are several, the
    /// first one, which has the lowest metric.
    fn route_taken<'a>(&self, table: &'a [TableRoute]) -> Result<&'a TableRoute, RouteError> {
        let unreachable = |reason| RouteError::Unreachable { prefix: self.text(), reason };
        let holds = |route: &&TableRoute| {
            let (address, length) = route.destination();
            length <= self.length && share(self.address, address, length)
        };
        let wide: Vec<&TableRoute> = table.iter().filter(holds).collect();
        let narrowest = wide.iter().map(|route| route.destination().1).max();
        let mut fit = wide.into_iter().filter(|route| Some(route.destination().1) == narrowest);
        let none = || unreachable("the main table has none".to_owned());
        let route = fit.next().ok_or_else(none)?;
        if route.forwards() { Ok(route) } else { Err(unreachable(route.to_string())) }
    }

    /// Returns whether a route forwards packets to the prefix itself or to a part of it.
    fn has_part(&self, route: &TableRoute) -> bool {
        self.length > 0 && route.forwards() && self.contains(route)
    }

    fn contains(&self, route: &TableRoute) -> bool {
        let (address, length) = route.destination();
        length >= self.length && share(self.address, address, self.length)
    }

    /// Builds the entry for `route`, with the MTU. Our route is to the whole prefix if `route`
    /// is wider.
    fn entry(&self, route: &TableRoute, mtu: u32) -> Entry {
        let is_inside = self.contains(route);
        let to = if is_inside { route.destination() } else { (self.address, self.length) };
        let ours = route.with_mtu(to, mtu, PROTOCOL);
        Entry { ours, before: is_inside.then(|| route.clone()) }
    }
}

fn open() -> Result<RouteSocket, RouteError> {
    RouteSocket::open().map_err(failed(|| "open a socket for routes".to_owned()))
}

fn main_table(socket: &RouteSocket, family: AddressFamily) -> Result<Vec<TableRoute>, RouteError> {
    TableRoute::main_table(socket, family).map_err(failed(|| "read the routes".to_owned()))
}

fn replace(socket: &RouteSocket, route: &TableRoute) -> Result<(), RouteError> {
    route.replace(socket).map_err(failed(|| format!("set the route {route}")))
}

fn failed(action: impl FnOnce() -> String) -> impl FnOnce(io::Error) -> RouteError {
    move |reason| RouteError::Kernel { action: action(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_mtus_are_refused() {
        let error = RouteMtu::plan(("fd02::".parse().unwrap(), 48), "wan", 1200).unwrap_err();
        assert_eq!(
            error.to_string(),
            "an MTU of 1200 towards fd02::/48: 1280 to 65535 is expected"
        );
    }
}
