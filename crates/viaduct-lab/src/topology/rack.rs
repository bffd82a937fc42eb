//! Rack of machines on one Ethernet segment of a router, which share a service's address.
//!
//! ```text
//!             ┌ rack (bridge) 10.2.200.1 ┐
//!   … router ─┤                          ├── eth0 s1   10.2.200.11   boxes in front
//!             └──────────────────────────┘   eth0 s2   10.2.200.12
//!                                            eth0 b1   10.2.200.21   replicas, each of which
//!                 service 10.2.200.80        eth0 b2   10.2.200.22   has the service's address
//!                                            eth0 b3   10.2.200.23   on its loopback interface
//! ```
//!
//! The segment is in the network of a dumbbell's side B, so the other side has a route to it.

use std::net::Ipv4Addr;

use super::node::KillOnDrop;
use super::site::{HOST_SYSCTLS, veth};
use super::{Host, Journal, Node, TopologyError};

const MTU: u32 = 1500;
/// Name of the bridge in the router.
const BRIDGE: &str = "rack";
/// Address of the service.
const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 2, 200, 80);
/// Sysctls of a replica, which must neither answer ARP requests for the service's address nor
/// announce this address.
const REPLICA_SYSCTLS: [(&str, &str); 2] =
    [("net/ipv4/conf/all/arp_ignore", "1"), ("net/ipv4/conf/all/arp_announce", "2")];

/// Machines of a rack. Dropping the value removes the machines.
#[derive(Debug)]
pub struct Rack {
    _programs: KillOnDrop,
    fronts: Vec<Host>,
    replicas: Vec<Host>,
}

impl Rack {
    /// Builds a rack at `router`, a gateway of side B. Fails if the kernel refuses a part.
    pub fn build(
        router: &Node,
        fronts: u8,
        replicas: u8,
        journal: &Journal,
    ) -> Result<Rack, TopologyError> {
        router.ip(&[
            format!("link add {BRIDGE} type bridge forward_delay 0"),
            format!("addr add {}/24 dev {BRIDGE}", address(1)),
            format!("link set {BRIDGE} up"),
        ])?;
        let add = |name: String, last: u8| host(router, name, last, journal);
        let fronts =
            (1..=fronts).map(|n| add(format!("s{n}"), 10 + n)).collect::<Result<_, _>>()?;
        let replicas: Vec<Host> =
            (1..=replicas).map(|n| add(format!("b{n}"), 20 + n)).collect::<Result<_, _>>()?;
        for replica in &replicas {
            replica.set_sysctls(&REPLICA_SYSCTLS)?;
            replica.ip(&[format!("addr add {SERVICE}/32 dev lo")])?;
        }
        let rack = Rack { _programs: KillOnDrop(Vec::new()), fronts, replicas };
        let nodes =
            rack.fronts.iter().chain(&rack.replicas).map(|host| host.node.clone()).collect();
        Ok(Rack { _programs: KillOnDrop(nodes), ..rack })
    }

    /// Returns the service's address.
    pub fn service(&self) -> Ipv4Addr {
        SERVICE
    }

    /// Returns the machines in front of the replicas: s1, s2, …
    pub fn fronts(&self) -> &[Host] {
        &self.fronts
    }

    /// Returns the replicas: b1, b2, …
    pub fn replicas(&self) -> &[Host] {
        &self.replicas
    }

    /// Kills a machine: takes its wire down, then kills all its programs.
    pub fn kill(&self, host: &Host) -> Result<(), TopologyError> {
        host.ip(&["link set eth0 down".to_owned()])?;
        Ok(host.node.netns().kill_all()?)
    }
}

fn address(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 2, 200, last)
}

fn host(router: &Node, name: String, last: u8, journal: &Journal) -> Result<Host, TopologyError> {
    let node = Node::new(name, journal)?;
    let route = format!("default via {}", address(1));
    // The router has interfaces b1, … already, to the hosts of its side.
    let port = format!("{BRIDGE}-{}", node.name());
    node.ip(&[veth(MTU, ("eth0", 10), (&port, 200 + u32::from(last)), router)])?;
    router.ip(&[format!("link set {port} master {BRIDGE} up")])?;
    node.ip(&[
        format!("addr add {}/24 dev eth0", address(last)),
        "link set eth0 up".into(),
        format!("route add {route}"),
    ])?;
    node.set_sysctls(&HOST_SYSCTLS)?;
    Ok(Host { node, v4: address(last), v6: None, routes: vec![route] })
}
