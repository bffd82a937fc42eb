//! Side of a dumbbell: a gateway, its hosts and the wires between them.

use std::net::{Ipv4Addr, Ipv6Addr};

use viaduct_sys::route::tun::Tun;

use super::{Host, Journal, Node, TopologyError, tun};
use crate::emulator::{Emulator, EmulatorConfig};

/// Side; determines names and addresses.
#[derive(Clone, Copy, Debug)]
pub(super) enum Side {
    A,
    B,
}

impl Side {
    fn letter(self) -> char {
        match self {
            Side::A => 'a',
            Side::B => 'b',
        }
    }

    fn number(self) -> u8 {
        self as u8 + 1
    }

    fn other(self) -> Side {
        match self {
            Side::A => Side::B,
            Side::B => Side::A,
        }
    }

    /// Returns the address of machine `last` (1 the gateway, 2 the host) on the wire of `host`.
    fn v4(self, host: u8, last: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, self.number(), host, last)
    }

    fn v6(self, host: u8, last: u8) -> Ipv6Addr {
        let (side, host, last) = (self.number().into(), host.into(), last.into());
        Ipv6Addr::new(0xfd00, side, 0, host, 0, 0, 0, last)
    }
}

/// Gateway and its hosts.
#[derive(Debug)]
pub(super) struct Site {
    side: Side,
    /// MTU of the wires in bytes.
    mtu: u32,
    pub(super) gateway: Node,
    pub(super) hosts: Vec<Host>,
}

/// Minimum MTU of a device for IPv6.
const V6_LEAST_MTU: u32 = 1280;

impl Site {
    /// Builds `side` with `hosts` hosts on wires of MTU `mtu`.
    pub(super) fn new(
        side: Side,
        hosts: usize,
        mtu: u32,
        journal: &Journal,
    ) -> Result<Site, TopologyError> {
        let gateway = Node::new(format!("gw{}", side.letter()), journal)?;
        gateway.set_sysctls(&ROUTER_SYSCTLS)?;
        let hosts = (1..=hosts)
            .map(|n| add_host(&gateway, side, n as u8, mtu, journal))
            .collect::<Result<_, _>>()?;
        Ok(Site { side, mtu, gateway, hosts })
    }

    /// Enables GRO in the hosts: without GRO, receiving TCP costs more than everything else on the
    /// path. A veth coalesces only if segmentation (TSO) is off at its other end. With an emulated
    /// link there is nothing to coalesce, because the emulator delivers packets one by one.
    pub(super) fn coalesce(&self) -> Result<(), TopologyError> {
        for host in &self.hosts {
            self.gateway.run("ethtool", &["-K", host.name(), "tso", "off"])?;
            host.run("ethtool", &["-K", "eth0", "gro", "on"])?;
        }
        Ok(())
    }

    /// Opens `wan0` as a TUN device for the emulator.
    pub(super) fn open_tun(&self, mtu: u32) -> Result<Tun, TopologyError> {
        tun::open(&self.gateway, "wan0", mtu)
    }

    /// Opens `wan1` as a TUN device for another emulator.
    pub(super) fn open_second_tun(&self) -> Result<Tun, TopologyError> {
        tun::open(&self.gateway, "wan1", self.mtu)
    }

    /// Configures the addresses of `wan1`.
    pub(super) fn connect_second_wan(&self) -> Result<(), TopologyError> {
        let own = self.side.number();
        self.gateway.ip(&[
            format!("addr add 198.51.100.{own}/30 dev wan1"),
            format!("addr add 2001:db8:1::{own}/64 dev wan1 nodad"),
            "link set wan1 up".into(),
        ])
    }

    /// Replaces the wire of host `n` with an emulated link.
    pub(super) fn emulate_wire(
        &self,
        n: u8,
        config: EmulatorConfig,
    ) -> Result<Emulator, TopologyError> {
        let host = &self.hosts[usize::from(n) - 1];
        host.ip(&["link del eth0".into()])?;
        let gateways = tun::open(&self.gateway, host.name(), self.mtu)?;
        let hosts = tun::open(host, "eth0", self.mtu)?;
        connect_host(&self.gateway, host, self.side, n)?;
        Ok(Emulator::start(gateways, hosts, config)?)
    }

    /// Configures the addresses of `wan0` and the routes to the other site.
    pub(super) fn connect_wan(&self) -> Result<(), TopologyError> {
        let (own, other) = (self.side.number(), self.side.other().number());
        self.gateway.ip(&[
            format!("addr add 192.0.2.{own}/30 dev wan0"),
            format!("addr add 2001:db8::{own}/64 dev wan0 nodad"),
            "link set wan0 up".into(),
            format!("route add 10.{other}.0.0/16 via 192.0.2.{other}"),
            format!("route add fd00:{other}::/48 via 2001:db8::{other}"),
        ])
    }
}

/// Adds a host with its wire to the gateway, with addresses and routes at both ends.
fn add_host(
    gateway: &Node,
    side: Side,
    n: u8,
    mtu: u32,
    journal: &Journal,
) -> Result<Host, TopologyError> {
    let node = Node::new(format!("{}{n}", side.letter()), journal)?;
    let (v4, v6) = (side.v4(n, 2), (mtu >= V6_LEAST_MTU).then(|| side.v6(n, 2)));
    let to_v6 = v6.map(|_| format!("default via {}", side.v6(n, 1)));
    let routes = [format!("default via {}", side.v4(n, 1))].into_iter().chain(to_v6).collect();
    let host = Host { node, v4, v6, routes };
    let wire = veth(mtu, ("eth0", 10), (host.name(), 100 + u32::from(n)), gateway);
    host.ip(&[wire])?;
    connect_host(gateway, &host, side, n)?;
    host.set_sysctls(&HOST_SYSCTLS)?;
    Ok(host)
}

/// Configures the addresses of both ends of a host's wire, and the host's routes.
fn connect_host(gateway: &Node, host: &Host, side: Side, n: u8) -> Result<(), TopologyError> {
    let name = host.name();
    let at_v6 = |v6| format!("addr add {v6}/64 dev {name} nodad");
    let mut at_gateway = vec![format!("addr add {}/24 dev {name}", side.v4(n, 1))];
    at_gateway.extend(host.v6.map(|_| at_v6(side.v6(n, 1))));
    at_gateway.push(format!("link set {name} up"));
    let mut at_host = vec![format!("addr add {}/24 dev eth0", host.v4)];
    at_host.extend(host.v6.map(|v6| format!("addr add {v6}/64 dev eth0 nodad")));
    at_host.push("link set eth0 up".into());
    at_host.extend(host.routes.iter().map(|route| format!("route add {route}")));
    gateway.ip(&at_gateway)?;
    host.ip(&at_host)
}

/// Returns the command that creates a wire from here to `peer`.
///
/// The interface indices of the two ends must differ: if they are equal, the kernel treats the
/// wire as a physical device and delays its carrier notification by up to a second.
pub(super) fn veth(mtu: u32, here: (&str, u32), there: (&str, u32), peer: &Node) -> String {
    let (name, index, peer_name, peer_index) = (here.0, here.1, there.0, there.1);
    let netns = peer.netns().path();
    format!(
        "link add {name} index {index} mtu {mtu} type veth \
         peer name {peer_name} index {peer_index} mtu {mtu} netns {netns}"
    )
}

/// Sysctls of a forwarding machine.
pub(super) const ROUTER_SYSCTLS: [(&str, &str); 4] = [
    ("net/ipv4/ip_forward", "1"),
    ("net/ipv6/conf/all/forwarding", "1"),
    // A recovered packet may arrive on a device other than that of its route.
    ("net/ipv4/conf/all/rp_filter", "0"),
    ("net/ipv4/conf/default/rp_filter", "0"),
];

/// Sysctls of a machine that runs programs.
pub(super) const HOST_SYSCTLS: [(&str, &str); 4] = [
    // No connection uses the metrics of an earlier one.
    ("net/ipv4/tcp_no_metrics_save", "1"),
    // Buffers of 64 MB: more than 1 Gb/s at 100 ms needs.
    ("net/ipv4/tcp_rmem", "4096 131072 67108864"),
    ("net/ipv4/tcp_wmem", "4096 65536 67108864"),
    // Permits ping to group 0, even if its members are root only in a user namespace.
    ("net/ipv4/ping_group_range", "0 0"),
];
