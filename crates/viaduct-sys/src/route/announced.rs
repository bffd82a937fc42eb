//! Routes in a separate table, for a routing daemon that reads them and announces them to
//! its neighbours.
//!
//! ```text
//!   table 118   10.2.16.0/20 dev vd-oslo proto 118 metric 100
//!               10.2.32.0/20 dev vd-oslo proto 118 metric 101
//! ```
//!
//! No packet takes these routes, unless a policy rule selects their table. The kernel deletes the
//! routes with their device. If the device is a TUN interface, the routes disappear when the
//! process that holds the interface ends, even by a crash.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

use netlink_packet_route::AddressFamily;
use netlink_packet_route::route::{
    RouteAttribute, RouteHeader, RouteMessage, RouteScope, RouteType,
};

use crate::route::interface;
use crate::route::mtu::PROTOCOL;
use crate::route::netlink::{NLM_F_CREATE, NLM_F_REPLACE};
use crate::route::rtnetlink::{self, RouteSocket, first};
use crate::route::table_route::destination;

/// Metric of each prefix.
pub type Metrics = BTreeMap<(IpAddr, u8), u32>;

/// Routes in force.
#[derive(Debug)]
pub struct AnnouncedRoutes {
    table: u32,
    device: u32,
    metrics: Metrics,
}

impl AnnouncedRoutes {
    /// Takes over the routes of `table` through `device`, if there are any. Errors: there is no
    /// such device, or the kernel refuses to list its routes.
    pub fn new(table: u32, device: &str) -> io::Result<AnnouncedRoutes> {
        let device = interface::index(device)?;
        let socket = RouteSocket::open()?;
        let mut metrics = Metrics::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let ours = socket.routes(family)?.into_iter().filter_map(|route| {
                let oif = first!(route.attributes, RouteAttribute::Oif(index) => *index);
                let is_ours = rtnetlink::table(&route) == table
                    && oif == Some(device)
                    && u8::from(route.header.protocol) == PROTOCOL;
                let metric = first!(route.attributes, RouteAttribute::Priority(metric) => *metric);
                Some((destination(&route).filter(|_| is_ours)?, metric.unwrap_or_default()))
            });
            metrics.extend(ours);
        }
        Ok(AnnouncedRoutes { table, device, metrics })
    }

    /// Replaces the routes in force with `wanted`. If a metric changes, the new route is added
    /// before the old one is deleted. Errors: the kernel refuses a change. The other changes are
    /// made, and the next call repeats the refused ones.
    pub fn set(&mut self, wanted: &Metrics) -> io::Result<()> {
        let socket = RouteSocket::open()?;
        let mut done = Ok(());
        for (&to, &metric) in wanted {
            let before = self.metrics.get(&to).copied();
            if before == Some(metric) {
                continue;
            }
            let changed = socket.add(&self.route(to, metric), NLM_F_CREATE | NLM_F_REPLACE);
            match changed.and_then(|()| before.map_or(Ok(()), |old| self.delete(&socket, to, old)))
            {
                Ok(()) => drop(self.metrics.insert(to, metric)),
                Err(error) => done = Err(error),
            }
        }
        let former = self.metrics.iter().filter(|(to, _)| !wanted.contains_key(to));
        let former: Vec<_> = former.map(|(to, metric)| (*to, *metric)).collect();
        for (to, metric) in former {
            match self.delete(&socket, to, metric) {
                Ok(()) => drop(self.metrics.remove(&to)),
                Err(error) => done = Err(error),
            }
        }
        done
    }

    fn delete(&self, socket: &RouteSocket, to: (IpAddr, u8), metric: u32) -> io::Result<()> {
        match socket.delete(&self.route(to, metric)) {
            // Another program has deleted the route.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            done => done,
        }
    }

    fn route(&self, to: (IpAddr, u8), metric: u32) -> RouteMessage {
        let header = RouteHeader {
            protocol: PROTOCOL.into(),
            scope: if to.0.is_ipv4() { RouteScope::Link } else { RouteScope::Universe },
            kind: RouteType::Unicast,
            ..RouteHeader::default()
        };
        let mut route = rtnetlink::route(header, to);
        route.attributes.extend([
            RouteAttribute::Oif(self.device),
            RouteAttribute::Priority(metric),
            RouteAttribute::Table(self.table),
        ]);
        route
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Netns;
    use crate::process::tool;
    use crate::route::tun::Tun;

    fn listed() -> Vec<String> {
        let list = |family| tool::run("ip", &[family, "route", "show", "table", "118"], "");
        let both = ["-4", "-6"].map(|family| list(family).unwrap_or_default()).concat();
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        both.lines().map(words).collect()
    }

    #[test]
    fn routes_change_and_end_with_their_device() {
        let changes = || {
            let tun = Tun::create("vd-a").unwrap();
            tun.interface().set_up().unwrap();
            let mut routes = AnnouncedRoutes::new(118, "vd-a").unwrap();
            let to: [(IpAddr, u8); 3] = [
                ("10.2.0.0".parse().unwrap(), 20),
                ("10.2.16.0".parse().unwrap(), 20),
                ("fd00:2::".parse().unwrap(), 52),
            ];
            let mut wanted: Metrics = to.into_iter().zip([100, 101, 102]).collect();
            routes.set(&wanted).unwrap();
            let first = listed();
            wanted.remove(&to[0]);
            wanted.insert(to[1], 100);
            // Another process takes the device over.
            let mut routes = AnnouncedRoutes::new(118, "vd-a").unwrap();
            assert_eq!(routes.metrics.len(), 3);
            tool::run("ip", &["route", "del", "10.2.0.0/20", "table", "118"], "").unwrap();
            routes.set(&wanted).unwrap();
            let then = listed();
            drop(tun);
            [first, then, listed()]
        };
        let [first, then, last] = Netns::new().unwrap().enter(changes).unwrap();
        let expected = [
            "10.2.0.0/20 dev vd-a proto 118 scope link metric 100",
            "10.2.16.0/20 dev vd-a proto 118 scope link metric 101",
            "fd00:2::/52 dev vd-a proto 118 metric 102 pref medium",
        ];
        assert_eq!(first.len(), 3);
        for (line, expected) in first.iter().zip(expected) {
            assert!(line.starts_with(expected), "{line}");
        }
        assert!(
            then.len() == 2 && then[0].ends_with("metric 100 linkdown")
                || then[0].ends_with("metric 100"),
            "{then:?}"
        );
        assert_eq!(last, Vec::<String>::new());
    }
}
