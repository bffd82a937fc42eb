//! Two sites with several gateways each, between an inner and an outer router.
//!
//! ```text
//!         ┌──────────────┐                                         ┌──────────────┐
//!   a ── ain ═ a1 … aN ═ aout ══════════ link ══════════ bout ═ b1 … bN ═ bin ── b
//!  10.1.s.2      lan wan0      192.0.2.1       192.0.2.2   wan0 lan         10.2.s.2
//!
//!   member n of site s: lan 10.10s.n.2, wan0 10.11s.n.2; its routers have number 1
//! ```
//!
//! The hosts have an address in each of the 16 slices of their site. A further wire connects the
//! two routers of a site directly. This wire carries packets for which no more specific route leads
//! to a member.

use std::net::Ipv4Addr;

use viaduct_proto::link::LinkConfig;

use super::node::KillOnDrop;
use super::site::{HOST_SYSCTLS, ROUTER_SYSCTLS, veth};
use super::{Host, Journal, Node, TopologyError, tun};
use crate::emulator::{Emulator, EmulatorConfig};

const MTU: u32 = 1500;

/// Number of slices of a site's prefix.
pub const SLICES: u8 = 16;

/// Two sites with racks; see the module's drawing. Dropping it removes everything.
#[derive(Debug)]
pub struct Racks {
    _programs: KillOnDrop,
    /// The sites, A first.
    pub sites: [RackSite; 2],
    /// Link between the outer routers.
    pub emulator: Emulator,
}

/// Site with a rack.
#[derive(Debug)]
pub struct RackSite {
    /// Host.
    pub host: Host,
    /// Router of the host.
    pub inner: Node,
    /// Router towards the other site.
    pub outer: Node,
    /// Machines of the rack.
    pub members: Vec<Node>,
}

impl Racks {
    /// Builds sites with `members` machines each. Fails if the kernel refuses a part; nothing is
    /// left in that case.
    pub fn build(
        members: usize,
        link: &LinkConfig,
        seed: u64,
        journal: &Journal,
    ) -> Result<Racks, TopologyError> {
        let sites = [RackSite::build(1, members, journal)?, RackSite::build(2, members, journal)?];
        let nodes = sites.iter().flat_map(RackSite::nodes).cloned().collect();
        let _programs = KillOnDrop(nodes);
        let [a, b] = [&sites[0].outer, &sites[1].outer];
        let ends = (tun::open(a, "wan", MTU)?, tun::open(b, "wan", MTU)?);
        let emulator =
            Emulator::start(ends.0, ends.1, EmulatorConfig::symmetric(link.clone(), seed))?;
        for (node, own, other) in [(a, 1, 2), (b, 2, 1)] {
            node.ip(&[
                format!("addr add 192.0.2.{own}/30 dev wan"),
                "link set wan up".into(),
                format!("route add 10.{other}.0.0/16 via 192.0.2.{other}"),
                format!("route add 10.11{other}.0.0/16 via 192.0.2.{other}"),
            ])?;
        }
        Ok(Racks { _programs, sites, emulator })
    }
}

impl RackSite {
    fn build(site: u8, members: usize, journal: &Journal) -> Result<RackSite, TopologyError> {
        let letter = if site == 1 { 'a' } else { 'b' };
        let router = |name: &str| {
            let node = Node::new(format!("{letter}{name}"), journal)?;
            node.set_sysctls(&ROUTER_SYSCTLS)?;
            Ok::<_, TopologyError>(node)
        };
        let (inner, outer) = (router("in")?, router("out")?);
        let host = host(Node::new(letter.to_string(), journal)?, &inner, site)?;
        bypass(&inner, &outer, site)?;
        let mut all = Vec::new();
        for n in 1..=members as u8 {
            let member = router(&n.to_string())?;
            connect_member(&member, (&inner, &outer), site, n)?;
            all.push(member);
        }
        Ok(RackSite { host, inner, outer, members: all })
    }

    fn nodes(&self) -> impl Iterator<Item = &Node> {
        [&self.host.node, &self.inner, &self.outer].into_iter().chain(&self.members)
    }

    /// Makes machine `n`, counted from 0, drop all packets, as if it had lost its power, except
    /// that no interface loses its carrier.
    pub fn cut_off(&self, n: usize) -> Result<(), TopologyError> {
        let rules = "add table inet gone
            add chain inet gone in { type filter hook prerouting priority -400; policy drop; }
            add chain inet gone out { type filter hook output priority -400; policy drop; }";
        self.members[n].run("nft", &[rules]).map(drop)
    }

    /// Ends the effect of [`RackSite::cut_off`].
    pub fn restore(&self, n: usize) -> Result<(), TopologyError> {
        self.members[n].run("nft", &["delete table inet gone"]).map(drop)
    }
}

/// Returns the addresses of the host of site `site`, 1 or 2: one in each slice.
pub fn addresses(site: u8) -> impl Iterator<Item = Ipv4Addr> {
    (0..SLICES).map(move |slice| Ipv4Addr::new(10, site, slice * (255 / SLICES + 1), 2))
}

/// Turns a node into the host of a site, and connects it with its router.
fn host(node: Node, inner: &Node, site: u8) -> Result<Host, TopologyError> {
    inner.ip(&[
        veth(MTU, ("lan", 20), ("eth0", 21), &node),
        format!("addr add 10.{site}.0.1/16 dev lan"),
        "link set lan up".into(),
    ])?;
    let mut lines: Vec<_> =
        addresses(site).map(|at| format!("addr add {at}/16 dev eth0")).collect();
    let route = format!("default via 10.{site}.0.1");
    lines.extend(["link set eth0 up".into(), format!("route add {route}")]);
    node.ip(&lines)?;
    node.set_sysctls(&HOST_SYSCTLS)?;
    Ok(Host { node, v4: Ipv4Addr::new(10, site, 0, 2), v6: None, routes: vec![route] })
}

/// Connects the two routers of a site.
fn bypass(inner: &Node, outer: &Node, site: u8) -> Result<(), TopologyError> {
    inner.ip(&[
        veth(MTU, ("past", 30), ("past", 31), outer),
        format!("addr add 10.12{site}.0.1/30 dev past"),
        "link set past up".into(),
        format!("route add default via 10.12{site}.0.2"),
    ])?;
    outer.ip(&[
        format!("addr add 10.12{site}.0.2/30 dev past"),
        "link set past up".into(),
        format!("route add 10.{site}.0.0/16 via 10.12{site}.0.1"),
    ])
}

/// Connects machine `n` of a rack with the two routers of its site.
fn connect_member(
    member: &Node,
    (inner, outer): (&Node, &Node),
    site: u8,
    n: u8,
) -> Result<(), TopologyError> {
    for (router, network, device) in [(inner, 10_u32, "lan"), (outer, 11, "wan0")] {
        let index = network * 10 + u32::from(n);
        router.ip(&[
            veth(MTU, (&format!("m{n}"), index), (device, network), member),
            format!("addr add 10.{network}{site}.{n}.1/30 dev m{n}"),
            format!("link set m{n} up"),
        ])?;
        member.ip(&[
            format!("addr add 10.{network}{site}.{n}.2/30 dev {device}"),
            format!("link set {device} up"),
        ])?;
        // The tap sees packets as they cross the wire.
        router.run("ethtool", &["-K", &format!("m{n}"), "tx", "off"])?;
        member.run("ethtool", &["-K", device, "tx", "off"])?;
    }
    member.ip(&[
        format!("route add default via 10.11{site}.{n}.1"),
        format!("route add 10.{site}.0.0/16 via 10.10{site}.{n}.1"),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::programs::Ping;
    use std::time::Duration;

    #[test]
    fn hosts_reach_each_other_past_the_racks_and_through_a_member() {
        let link = "delay=1ms".parse().unwrap();
        let world = Racks::build(2, &link, 1, &Journal::new()).unwrap();
        let [a, b] = &world.sites;
        let ping = Ping { count: 2, interval: Duration::from_millis(10), size: 100 };
        let answered = |to: Ipv4Addr| ping.run(&a.host, to.into()).unwrap().round_trips_ms.len();
        assert!(addresses(2).all(|to| answered(to) == 2));
        a.inner.ip(&["route add 10.2.16.0/20 via 10.101.2.2".into()]).unwrap();
        b.outer.ip(&["route add 10.2.16.0/20 via 10.112.1.2".into()]).unwrap();
        let to = Ipv4Addr::new(10, 2, 16, 2);
        assert_eq!(answered(to), 2);
        a.cut_off(1).unwrap();
        assert_eq!((answered(to), answered([10, 2, 32, 2].into())), (0, 2));
        a.restore(1).unwrap();
        assert_eq!(answered(to), 2);
    }
}
