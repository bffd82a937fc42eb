//! The MTU towards a prefix, lowered so that hosts learn it by ICMP and leave room for repair.
//!
//! ```text
//!   before   default via 192.0.2.1 dev wan
//!   after    default via 192.0.2.1 dev wan
//!            10.2.0.0/16 via 192.0.2.1 dev wan proto 118 mtu lock 1400      <- ours
//! ```
//!
//! The narrowest route of the main table to all of the prefix is read and added again for the
//! prefix, with an MTU. If the prefix has a route of its own, that route is replaced and
//! remembered; so are routes to parts of the prefix through the same interface. Other tables
//! (policy routing) are not considered. Our routes carry the protocol number 118, which no
//! routing daemon uses, to tell them from all others.
//!
//! The MTU is locked: in forwarding, the kernel heeds an unlocked one for IPv4, but not for
//! IPv6.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use crate::process::tool::{self, ToolError};

/// The routing protocol number of our routes.
pub const PROTOCOL: &str = "118";

/// State flags that `ip` prints for a route and does not accept as input.
const STATES: [&str; 8] =
    ["linkdown", "dead", "offload", "trap", "rt_offload", "rt_trap", "offload_failed", "cache"];

/// Routes that have to change for one prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteMtu {
    entries: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    /// `-4` or `-6`.
    family: String,
    /// Our route, as arguments of `ip route replace`.
    ours: Vec<String>,
    /// Route that it replaces, if any.
    before: Option<Vec<String>>,
}

/// Errors of lowering the MTU towards a prefix.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    /// `ip` failed.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// Packets to the prefix do not take this interface.
    #[error("{prefix} is not reached through {dev:?} but by the route \"{route}\"")]
    Elsewhere {
        /// The prefix.
        prefix: String,
        /// The interface that was expected.
        dev: String,
        /// The route that the kernel would take.
        route: String,
    },
    /// There is no route to the prefix.
    #[error("there is no route to {prefix}: {reason}")]
    Unreachable {
        /// The prefix.
        prefix: String,
        /// Message of `ip`.
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
    /// Finds the routes to change so that packets to `prefix` (address and length) through
    /// `dev` are at most `mtu` bytes (576, for IPv6 1280, to 65535). Changes nothing. Routes
    /// that have such an MTU already are not changed.
    ///
    /// A prefix of length 0 means the default route only, not the routes to parts of it.
    ///
    /// # Errors
    /// No route, a route through another interface, or an MTU out of range.
    pub fn plan(prefix: (IpAddr, u8), dev: &str, mtu: u32) -> Result<RouteMtu, RouteError> {
        let target = Target::new(prefix);
        let least = if prefix.0.is_ipv4() { 576 } else { 1280 };
        if !(least..=65535).contains(&mtu) {
            return Err(RouteError::Mtu { prefix: target.text, mtu, least });
        }
        let route = target.route_taken()?;
        if route.dev() != Some(dev) {
            let (dev, route) = (dev.to_owned(), route.words.join(" "));
            return Err(RouteError::Elsewhere { prefix: target.text, dev, route });
        }
        let mut routes = vec![route];
        for part in target.parts()? {
            if part.dev() == Some(dev) && !routes.contains(&part) {
                routes.push(part);
            }
        }
        let higher = routes.iter().filter(|route| route.mtu().is_none_or(|now| now > mtu));
        Ok(RouteMtu { entries: higher.map(|route| target.entry(route, mtu)).collect() })
    }

    /// Returns whether no route has to change.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Installs our routes.
    ///
    /// # Errors
    /// `ip` refuses.
    pub fn apply(&self) -> Result<(), ToolError> {
        self.entries.iter().try_for_each(|entry| replace(&entry.family, &entry.ours))
    }

    /// Removes our routes and restores those that they replaced. May be repeated. Where ours is
    /// gone already (the interface went down, an administrator changed it), nothing is
    /// restored.
    ///
    /// # Errors
    /// `ip` refuses.
    pub fn undo(&self) -> Result<(), ToolError> {
        self.entries.iter().rev().try_for_each(Entry::undo)
    }
}

impl Entry {
    fn undo(&self) -> Result<(), ToolError> {
        let selector = [self.ours[0].as_str(), "proto", PROTOCOL];
        let show = [&[&self.family, "route", "show", "exact"], &selector[..]].concat();
        if tool::run("ip", &show, "")?.trim().is_empty() {
            return Ok(());
        }
        match &self.before {
            Some(before) => replace(&self.family, before),
            None => {
                let delete = [&[&self.family, "route", "del"], &selector[..]].concat();
                tool::run("ip", &delete, "").map(drop)
            }
        }
    }
}

fn replace(family: &str, route: &[String]) -> Result<(), ToolError> {
    let mut args = vec![family, "route", "replace"];
    args.extend(route.iter().map(String::as_str));
    tool::run("ip", &args, "").map(drop)
}

/// Prefix to find routes for.
struct Target {
    prefix: (IpAddr, u8),
    text: String,
    family: &'static str,
}

impl Target {
    fn new((address, length): (IpAddr, u8)) -> Target {
        let address = network(address, length);
        let family = if address.is_ipv4() { "-4" } else { "-6" };
        Target { prefix: (address, length), text: format!("{address}/{length}"), family }
    }

    /// Returns the narrowest route to all of the prefix; of several the one with the lowest
    /// metric.
    fn route_taken(&self) -> Result<Route, RouteError> {
        let unreachable = |reason: &str| RouteError::Unreachable {
            prefix: self.text.clone(),
            reason: reason.to_owned(),
        };
        let routes = self.show("match")?;
        let length = |route: &Route| route.destination().map(|(_, length)| length);
        let narrowest = routes.iter().filter_map(length).max();
        let mut fit = routes.into_iter().filter(|route| length(route) == narrowest);
        let route = fit.next().ok_or_else(|| unreachable("the main table has none"))?;
        match route.forwards() {
            true => Ok(route),
            false => Err(unreachable(&route.words.join(" "))),
        }
    }

    /// Returns the routes to parts of the prefix and to the prefix itself.
    fn parts(&self) -> Result<Vec<Route>, ToolError> {
        if self.prefix.1 == 0 {
            return Ok(Vec::new());
        }
        let mut routes = self.show("root")?;
        routes.retain(Route::forwards);
        Ok(routes)
    }

    /// Returns routes of the main table in the kernel's order: by metric where prefixes are
    /// equal.
    fn show(&self, relation: &str) -> Result<Vec<Route>, ToolError> {
        let args = [self.family, "-o", "route", "show", relation, &self.text];
        let routes = tool::run("ip", &args, "")?;
        Ok(routes.lines().map(|line| Route::parse(line, self.prefix.0.is_ipv6())).collect())
    }

    /// Builds the entry of `route` with the MTU, for the whole prefix if the route is wider
    /// than that.
    fn entry(&self, route: &Route, mtu: u32) -> Entry {
        let inside = route.destination().is_some_and(|(address, length)| {
            length >= self.prefix.1 && network(address, self.prefix.1) == self.prefix.0
        });
        let target = if inside { route.words[0].clone() } else { self.text.clone() };
        let head = [&target, "proto", PROTOCOL, "mtu", "lock", &mtu.to_string()].map(str::to_owned);
        let ours = head.into_iter().chain(route.attributes()).collect();
        let before = inside.then(|| route.words.clone());
        Entry { family: self.family.to_owned(), ours, before }
    }
}

/// A route in the words of `ip`'s output and input.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Route {
    words: Vec<String>,
    v6: bool,
}

impl Route {
    fn parse(line: &str, v6: bool) -> Route {
        let words = line.split_whitespace().filter(|word| *word != "\\" && !STATES.contains(word));
        // `ip` prints "expires 1798sec" and accepts the bare number.
        let bare = |word: &str| word.strip_suffix("sec").unwrap_or(word).to_owned();
        Route { words: words.map(bare).collect(), v6 }
    }

    fn value(&self, key: &str) -> Option<&str> {
        value(&self.words, key)
    }

    fn dev(&self) -> Option<&str> {
        self.value("dev")
    }

    fn mtu(&self) -> Option<u32> {
        let at = self.words.iter().position(|word| word == "mtu")?;
        self.words[at + 1..].iter().find(|word| *word != "lock")?.parse().ok()
    }

    /// Returns whether the route forwards packets. A word before its prefix means that it does
    /// not: blackhole, unreachable, local and so on.
    fn forwards(&self) -> bool {
        self.words.first().is_some_and(|word| self.parse_prefix(word).is_some())
    }

    fn destination(&self) -> Option<(IpAddr, u8)> {
        self.words.iter().take(2).find_map(|word| self.parse_prefix(word))
    }

    fn parse_prefix(&self, word: &str) -> Option<(IpAddr, u8)> {
        let (any, most) = match self.v6 {
            true => (IpAddr::from(Ipv6Addr::UNSPECIFIED), 128),
            false => (IpAddr::from(Ipv4Addr::UNSPECIFIED), 32),
        };
        if word == "default" {
            return Some((any, 0));
        }
        let (address, length) = word.split_once('/').map_or((word, None), |(a, n)| (a, Some(n)));
        Some((address.parse().ok()?, length.map_or(Some(most), |n| n.parse().ok())?))
    }

    /// Returns the attributes except prefix, protocol, MTU and expiry.
    fn attributes(&self) -> Vec<String> {
        let mut words = self.words.iter().skip(1).peekable();
        let mut kept = Vec::new();
        while let Some(word) = words.next() {
            match word.as_str() {
                "proto" | "expires" => drop(words.next()),
                "mtu" => {
                    words.next_if(|word| *word == "lock");
                    words.next();
                }
                _ => kept.push(word.clone()),
            }
        }
        kept
    }
}

fn network(address: IpAddr, length: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let host = u32::MAX.checked_shr(length.into()).unwrap_or(0);
            Ipv4Addr::from_bits(v4.to_bits() & !host).into()
        }
        IpAddr::V6(v6) => {
            let host = u128::MAX.checked_shr(length.into()).unwrap_or(0);
            Ipv6Addr::from_bits(v6.to_bits() & !host).into()
        }
    }
}

fn value<'a>(words: &'a [String], key: &str) -> Option<&'a str> {
    let at = words.iter().position(|word| word == key)?;
    words.get(at + 1).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours(prefix: &str, length: u8, line: &str) -> (String, bool) {
        let target = Target::new((prefix.parse().unwrap(), length));
        let entry = target.entry(&Route::parse(line, prefix.contains(':')), 1400);
        (entry.ours.join(" "), entry.before.is_some())
    }

    #[test]
    fn a_wider_route_is_stated_again_for_the_prefix() {
        let line = "default via 192.0.2.1 dev wan proto dhcp src 192.0.2.7 metric 100 mtu 1500";
        let expected =
            "10.2.0.0/16 proto 118 mtu lock 1400 via 192.0.2.1 dev wan src 192.0.2.7 metric 100";
        assert_eq!(ours("10.2.3.4", 16, line), (expected.to_owned(), false));
        let line =
            "default \\\tnexthop via fe80::1 dev a weight 1 \\\tnexthop via fe80::2 dev b weight 2";
        let expected = "fd02::/48 proto 118 mtu lock 1400 nexthop via fe80::1 dev a weight 1 \
                        nexthop via fe80::2 dev b weight 2";
        assert_eq!(ours("fd02::", 48, line), (expected.to_owned(), false));
    }

    #[test]
    fn routes_inside_the_prefix_are_replaced() {
        let line = "10.2.9.1 via 192.0.2.1 dev wan linkdown mtu lock 1480 onlink";
        let expected = "10.2.9.1 proto 118 mtu lock 1400 via 192.0.2.1 dev wan onlink";
        assert_eq!(ours("10.2.0.0", 16, line), (expected.to_owned(), true));
        let line = "fd02::/48 via fe80::1 dev wan proto ra expires 1798sec pref medium";
        let expected = "fd02::/48 proto 118 mtu lock 1400 via fe80::1 dev wan pref medium";
        assert_eq!(ours("fd02::", 48, line), (expected.to_owned(), true));
        assert_eq!(Route::parse(line, true).value("expires"), Some("1798"));
    }

    #[test]
    fn impossible_mtus_are_refused() {
        let error = RouteMtu::plan(("fd02::".parse().unwrap(), 48), "wan", 1200).unwrap_err();
        assert_eq!(
            error.to_string(),
            "an MTU of 1200 towards fd02::/48: 1280 to 65535 is expected"
        );
    }
}
