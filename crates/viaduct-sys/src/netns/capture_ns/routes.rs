//! Changes of routes, rules, addresses and links in the calling thread's network namespace.

use std::io;
use std::net::{IpAddr, Ipv6Addr};

use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::AddressScope;
use netlink_packet_route::route::{
    RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleHeader, RuleMessage};

use crate::route::interface::index;
use crate::route::link_message::LinkMessage;
use crate::route::netlink::{NLM_F_APPEND, NLM_F_CREATE, NLM_F_REPLACE};
use crate::route::rtnetlink::{self, RouteSocket};

/// Makes every address of `any`'s family local on `interface`, for lookups in `table`.
pub(super) fn make_all_local(any: IpAddr, interface: &str, table: u8) -> io::Result<()> {
    let route = rtnetlink::local_route((any, 0), index(interface)?, table.into());
    RouteSocket::open()?.add(&route, NLM_F_CREATE)
}

/// Makes all addresses of an IPv6 prefix local on `interface`. Existing routes to the prefix stay.
pub(super) fn make_prefix_local(interface: &str, (to, length): (Ipv6Addr, u8)) -> io::Result<()> {
    let table = libc::RT_TABLE_LOCAL.into();
    let route = rtnetlink::local_route((to.into(), length), index(interface)?, table);
    RouteSocket::open()?.add(&route, NLM_F_CREATE | NLM_F_APPEND)
}

/// Routes a prefix through `interface`, with `own` as the default source address.
pub(super) fn add_route(interface: &str, to: (IpAddr, u8), own: Option<IpAddr>) -> io::Result<()> {
    let mut route = link_route(interface, to)?;
    route.attributes.extend(own.map(|own| RouteAttribute::PrefSource(own.into())));
    RouteSocket::open()?.add(&route, NLM_F_CREATE | NLM_F_REPLACE)
}

/// Removes the route to a prefix.
pub(super) fn delete_route(interface: &str, to: (IpAddr, u8)) -> io::Result<()> {
    RouteSocket::open()?.delete(&link_route(interface, to)?)
}

/// Builds the route of the main table to a prefix through `interface`.
fn link_route(interface: &str, to: (IpAddr, u8)) -> io::Result<RouteMessage> {
    let header = RouteHeader {
        table: RouteHeader::RT_TABLE_MAIN,
        protocol: RouteProtocol::Static,
        scope: RouteScope::Link,
        kind: RouteType::Unicast,
        ..RouteHeader::default()
    };
    let mut route = rtnetlink::route(header, to);
    route.attributes.push(RouteAttribute::Oif(index(interface)?));
    Ok(route)
}

/// Adds the address `own` to `interface`.
pub(super) fn add_address(interface: &str, own: IpAddr) -> io::Result<()> {
    let scope = if own.is_loopback() { AddressScope::Host } else { AddressScope::Universe };
    rtnetlink::add_address(index(interface)?, own, scope)
}

/// Selector of inbound packets, whose destinations are treated as local.
pub(super) enum Incoming<'a> {
    /// IPv4 packets from this interface.
    By(&'a str),
    /// IPv6 packets with this mark.
    Marked(u32),
}

/// Adds a rule that looks up inbound packets in `table`, and removes the rule for the local table.
/// With the latter, the kernel would deliver packets to the namespace's own addresses directly;
/// without it, those that programs send leave through the uplink, like all others.
pub(super) fn set_lookup_rules(comes: &Incoming<'_>, table: u8) -> io::Result<()> {
    let (family, of) = match comes {
        Incoming::By(name) => (AddressFamily::Inet, RuleAttribute::Iifname((*name).to_owned())),
        Incoming::Marked(mark) => (AddressFamily::Inet6, RuleAttribute::FwMark(*mark)),
    };
    let rule = |table, attributes| {
        let mut rule = RuleMessage::default();
        let action = RuleAction::ToTable;
        rule.header = RuleHeader { family, table, action, ..RuleHeader::default() };
        rule.attributes = attributes;
        rule
    };
    let new = rule(table, vec![of, RuleAttribute::Priority(1)]);
    let socket = RouteSocket::open()?;
    socket.add(&new, NLM_F_CREATE)?;
    let old = rule(libc::RT_TABLE_LOCAL, vec![RuleAttribute::Priority(0)]);
    socket.delete(&old)
}

/// Creates a veth pair.
pub(super) fn make_pair(one: LinkMessage, other: &LinkMessage) -> io::Result<()> {
    RouteSocket::open()?.add(&one.paired_with(other), NLM_F_CREATE)
}
