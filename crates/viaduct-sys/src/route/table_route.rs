//! Routes of the main table as values that can be read from the kernel, kept in the journal, and
//! restored.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_core::{DecodeError, Emitable as _, Parseable as _};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric,
    RouteNextHopFlags, RouteScope, RouteType, RouteVia,
};
use serde::{Deserialize, Serialize};

use crate::route::interface;
use crate::route::netlink::{NLM_F_CREATE, NLM_F_REPLACE};
use crate::route::rtnetlink::{self, RouteSocket, first};

/// Ticks per second in the kernel's expiry times.
const USER_HZ: i32 = 100;
/// Bit of the MTU in the mask of locked metrics: `1 << RTAX_MTU`.
const LOCKED_MTU: u32 = 1 << 2;

/// A route of the main table, without the fields that the kernel reports but does not accept. Its
/// serialised form is the netlink message in hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) struct TableRoute(RouteMessage);

impl TableRoute {
    /// Reads the main table in the kernel's order: routes to the same prefix are sorted by metric.
    pub(crate) fn main_table(
        socket: &RouteSocket,
        family: AddressFamily,
    ) -> io::Result<Vec<TableRoute>> {
        let is_main = |route: &RouteMessage| {
            rtnetlink::table(route) == u32::from(RouteHeader::RT_TABLE_MAIN)
                && !route.header.flags.contains(RouteFlags::Cloned)
                && destination(route).is_some()
        };
        let routes = socket.routes(family)?.into_iter().filter(is_main);
        Ok(routes.map(TableRoute::of).collect())
    }

    /// Converts a route, as reported by the kernel, to a route that can be set: without status
    /// flags, and with the expiry as a lifetime.
    fn of(mut route: RouteMessage) -> TableRoute {
        let mut lifetime = None;
        route.header.flags &= RouteFlags::Onlink | RouteFlags::Pervasive;
        for attribute in &mut route.attributes {
            match attribute {
                RouteAttribute::CacheInfo(info) => lifetime = seconds(info.expires),
                RouteAttribute::MultiPath(hops) => {
                    for hop in hops {
                        hop.flags &= RouteNextHopFlags::Onlink | RouteNextHopFlags::Pervasive;
                    }
                }
                _ => {}
            }
        }
        route.attributes.retain(|attribute| !matches!(attribute, RouteAttribute::CacheInfo(_)));
        route.attributes.extend(lifetime.map(RouteAttribute::Expires));
        TableRoute(route)
    }

    pub(crate) fn family(&self) -> AddressFamily {
        self.0.header.address_family
    }

    pub(crate) fn destination(&self) -> (IpAddr, u8) {
        // A route from a journal may lack its address, if another program wrote the journal.
        destination(&self.0).unwrap_or((Ipv4Addr::UNSPECIFIED.into(), 0))
    }

    pub(crate) fn protocol(&self) -> u8 {
        self.0.header.protocol.into()
    }

    /// Returns whether the route forwards packets, rather than dropping or refusing them.
    pub(crate) fn forwards(&self) -> bool {
        self.0.header.kind == RouteType::Unicast
    }

    /// Returns the index of the output interface; for a multipath route, that of its first path.
    pub(crate) fn interface(&self) -> Option<u32> {
        self.0.attributes.iter().find_map(|attribute| match attribute {
            RouteAttribute::Oif(index) => Some(*index),
            RouteAttribute::MultiPath(hops) => hops.first().map(|hop| hop.interface_index),
            _ => None,
        })
    }

    /// Returns the address of the next hop, if the route has one.
    pub(crate) fn router(&self) -> Option<IpAddr> {
        self.0.attributes.iter().find_map(router)
    }

    /// Returns the MTU, if the route has one.
    pub(crate) fn mtu(&self) -> Option<u32> {
        first!(self.metrics(), RouteMetric::Mtu(mtu) => *mtu)
    }

    /// Returns a copy of this route for the prefix `to`, with `protocol`, a locked MTU and no
    /// expiry.
    pub(crate) fn with_mtu(&self, to: (IpAddr, u8), mtu: u32, protocol: u8) -> TableRoute {
        let mut metrics = self.metrics().to_vec();
        let locked = first!(metrics, RouteMetric::Lock(locked) => *locked);
        metrics.retain(|metric| !matches!(metric, RouteMetric::Lock(_) | RouteMetric::Mtu(_)));
        let locked = locked.unwrap_or(0) | LOCKED_MTU;
        metrics.extend([RouteMetric::Lock(locked), RouteMetric::Mtu(mtu)]);
        let header = RouteHeader { protocol: protocol.into(), ..self.0.header.clone() };
        let mut route = rtnetlink::route(header, to);
        let others = self.0.attributes.iter().filter(|attribute| {
            !matches!(
                attribute,
                RouteAttribute::Destination(_)
                    | RouteAttribute::Metrics(_)
                    | RouteAttribute::Expires(_)
            )
        });
        route.attributes.extend(others.cloned());
        route.attributes.push(RouteAttribute::Metrics(metrics));
        TableRoute(route)
    }

    /// Sets the route, which replaces any route with the same prefix and metric.
    pub(crate) fn replace(&self, socket: &RouteSocket) -> io::Result<()> {
        socket.add(&self.0, NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Deletes the main table's first route with this route's prefix and protocol.
    pub(crate) fn delete(&self, socket: &RouteSocket) -> io::Result<()> {
        let header = RouteHeader {
            table: RouteHeader::RT_TABLE_MAIN,
            protocol: self.0.header.protocol,
            scope: RouteScope::NoWhere,
            ..RouteHeader::default()
        };
        socket.delete(&rtnetlink::route(header, self.destination()))
    }

    fn metrics(&self) -> &[RouteMetric] {
        let metrics = first!(self.0.attributes, RouteAttribute::Metrics(all) => all.as_slice());
        metrics.unwrap_or_default()
    }
}

impl fmt::Display for TableRoute {
    /// Writes type, prefix, next hop and interface, as `ip route` does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.forwards() {
            let kind = format!("{:?}", self.0.header.kind);
            write!(f, "{} ", kind.to_lowercase())?;
        }
        match self.destination() {
            (_, 0) => f.write_str("default")?,
            (to, length) => write!(f, "{to}/{length}")?,
        }
        if let Some(router) = self.router() {
            write!(f, " via {router}")?;
        }
        match self.interface().and_then(interface::name) {
            Some(name) => write!(f, " dev {name}"),
            None => Ok(()),
        }
    }
}

impl From<TableRoute> for String {
    fn from(TableRoute(route): TableRoute) -> String {
        let mut bytes = vec![0; route.buffer_len()];
        route.emit(&mut bytes);
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl TryFrom<String> for TableRoute {
    type Error = DecodeError;

    fn try_from(digits: String) -> Result<TableRoute, DecodeError> {
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let bytes: Option<Vec<u8>> = digits.as_bytes().chunks(2).map(byte).collect();
        let bytes = bytes.ok_or("not hexadecimal digits")?;
        RouteMessage::parse(bytes.as_slice()).map(TableRoute)
    }
}

/// Returns the prefix of a route; `None` if it is not an IP route, or lacks its address.
pub(crate) fn destination(route: &RouteMessage) -> Option<(IpAddr, u8)> {
    let length = route.header.destination_prefix_length;
    let any: IpAddr = match route.header.address_family {
        AddressFamily::Inet => Ipv4Addr::UNSPECIFIED.into(),
        AddressFamily::Inet6 => Ipv6Addr::UNSPECIFIED.into(),
        _ => return None,
    };
    let address: Option<IpAddr> = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Destination(RouteAddress::Inet(to)) => Some((*to).into()),
        RouteAttribute::Destination(RouteAddress::Inet6(to)) => Some((*to).into()),
        _ => None,
    });
    Some((address.or((length == 0).then_some(any))?, length))
}

pub(crate) fn router(attribute: &RouteAttribute) -> Option<IpAddr> {
    match attribute {
        RouteAttribute::Gateway(RouteAddress::Inet(ip))
        | RouteAttribute::Via(RouteVia::Inet(ip)) => Some((*ip).into()),
        RouteAttribute::Gateway(RouteAddress::Inet6(ip))
        | RouteAttribute::Via(RouteVia::Inet6(ip)) => Some((*ip).into()),
        _ => None,
    }
}

/// Converts a reported expiry to seconds, at least one; `None` for a route that does not expire.
fn seconds(ticks: u32) -> Option<u32> {
    match ticks.cast_signed() {
        ..=0 => None,
        ticks => u32::try_from(ticks / USER_HZ).ok().map(|seconds| seconds.max(1)),
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::route::{RouteNextHop, RouteProtocol};

    use super::*;

    fn route(to: (&str, u8), attributes: Vec<RouteAttribute>) -> TableRoute {
        let header = RouteHeader {
            table: RouteHeader::RT_TABLE_MAIN,
            protocol: RouteProtocol::Dhcp,
            kind: RouteType::Unicast,
            flags: RouteFlags::Onlink | RouteFlags::Linkdown,
            ..RouteHeader::default()
        };
        let mut message = rtnetlink::route(header, (to.0.parse().unwrap(), to.1));
        message.attributes.extend(attributes);
        TableRoute::of(message)
    }

    #[test]
    fn our_route_differs_only_in_prefix_protocol_mtu_and_expiry() {
        let router: Ipv4Addr = [192, 0, 2, 1].into();
        let kept = [
            RouteAttribute::Gateway(router.into()),
            RouteAttribute::Oif(1),
            RouteAttribute::Priority(100),
        ];
        let metrics = vec![RouteMetric::Lock(1 << 8), RouteMetric::Mtu(1500), RouteMetric::Rtt(9)];
        let mut attributes = kept.to_vec();
        attributes.extend([RouteAttribute::Metrics(metrics), RouteAttribute::Expires(1798)]);
        let before = route(("0.0.0.0", 0), attributes);
        assert_eq!((before.mtu(), before.interface()), (Some(1500), Some(1)));
        assert_eq!(before.to_string(), "default via 192.0.2.1 dev lo");

        let ours = before.with_mtu(([10, 2, 0, 0].into(), 16), 1400, 118);
        assert_eq!(ours.to_string(), "10.2.0.0/16 via 192.0.2.1 dev lo");
        assert_eq!((ours.protocol(), ours.mtu()), (118, Some(1400)));
        assert_eq!(ours.0.header.flags, RouteFlags::Onlink);
        assert_eq!(ours.0.attributes[1..4], kept);
        let metrics =
            vec![RouteMetric::Rtt(9), RouteMetric::Lock(1 << 8 | 1 << 2), RouteMetric::Mtu(1400)];
        assert_eq!(ours.0.attributes[4..], [RouteAttribute::Metrics(metrics)]);
    }

    #[test]
    fn a_route_read_from_the_journal_equals_the_recorded_route() {
        let hop = |index: u32| {
            let mut hop = RouteNextHop::default();
            hop.interface_index = index;
            hop.flags = RouteNextHopFlags::Onlink | RouteNextHopFlags::Dead;
            hop.attributes = vec![RouteAttribute::Gateway(Ipv6Addr::LOCALHOST.into())];
            hop
        };
        let hops = RouteAttribute::MultiPath(vec![hop(1), hop(2)]);
        let metrics = RouteAttribute::Metrics(vec![RouteMetric::CcAlgo("bbr".to_owned())]);
        let before = route(("fd02::", 48), vec![hops, metrics]);
        assert_eq!(before.interface(), Some(1));
        let text = serde_json::to_string(&before).unwrap();
        assert_eq!(serde_json::from_str::<TableRoute>(&text).unwrap(), before);
        for other in ["\"0z\"", "\"02\"", "[\"default\", \"via\", \"192.0.2.1\"]"] {
            assert!(serde_json::from_str::<TableRoute>(other).is_err(), "{other}");
        }
    }

    #[test]
    fn an_expiry_is_at_least_one_second() {
        let times = [0, 1, 100, 179_850, u32::MAX].map(seconds);
        assert_eq!(times, [None, Some(1), Some(1), Some(1798), None]);
    }
}
