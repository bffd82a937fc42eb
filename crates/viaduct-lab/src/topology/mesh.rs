//! Full mesh of nodes, with a link from each node to each server. A client is attached to the
//! first node.
//!
//! ```text
//!                     n1 ════════╗          n0, n1, …   10.1.0.1, 10.1.0.2, …
//!                   ╱╱  ╲╲       ║          s0, s1, …   10.2.0.1, 10.2.1.1, …
//!   client ─── n0 ════════ n2 ══ s0         client      10.0.0.1
//!               ╚════════════════╝
//! ```
//!
//! The links have the delays of a table, so that the shortest path between two nodes may lead
//! through a third one. The kernels' routes ignore this: each packet takes the direct link to
//! its destination.

use std::net::Ipv4Addr;
use std::time::Duration;

use viaduct_proto::link::LinkConfig;

use super::node::KillOnDrop;
use super::site::{HOST_SYSCTLS, ROUTER_SYSCTLS};
use super::{Host, Journal, Node, TopologyError, tun};
use crate::emulator::{Emulator, EmulatorConfig};

const MTU: u32 = 1500;

/// Machines of a mesh; see the module's drawing. Dropping it removes everything.
#[derive(Debug)]
pub struct Mesh {
    _programs: KillOnDrop,
    client: Host,
    nodes: Vec<Host>,
    servers: Vec<Host>,
    _emulators: Vec<Emulator>,
}

impl Mesh {
    /// Builds `nodes` nodes and `servers` servers. `between` returns the round trip between two
    /// nodes, and `to_server` the round trip from a node to a server. Fails if the kernel refuses a
    /// part; nothing is left in that case.
    pub fn build(
        (nodes, servers): (u8, u8),
        between: impl Fn(usize, usize) -> Duration,
        to_server: impl Fn(usize, usize) -> Duration,
        journal: &Journal,
    ) -> Result<Mesh, TopologyError> {
        let add = |name: String, at: [u8; 4]| machine(name, at.into(), journal);
        let client = add("client".to_owned(), [10, 0, 0, 1])?;
        let nodes = (0..nodes).map(|n| add(format!("n{n}"), [10, 1, 0, n + 1]));
        let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
        let servers = (0..servers).map(|n| add(format!("s{n}"), [10, 2, n, 1]));
        let servers = servers.collect::<Result<Vec<_>, _>>()?;
        let all = nodes.iter().chain(&servers).chain([&client]);
        let _programs = KillOnDrop(all.map(|host| host.node.clone()).collect());
        let mut emulators = vec![link(&client, &nodes[0], Duration::ZERO)?];
        for (n, node) in nodes.iter().enumerate() {
            for (m, other) in nodes.iter().enumerate().skip(n + 1) {
                emulators.push(link(node, other, between(n, m))?);
            }
            for (m, server) in servers.iter().enumerate() {
                emulators.push(link(node, server, to_server(n, m))?);
            }
        }
        client.ip(&["route add default dev to-n0".to_owned()])?;
        nodes.iter().try_for_each(|node| node.set_sysctls(&ROUTER_SYSCTLS))?;
        Ok(Mesh { _programs, client, nodes, servers, _emulators: emulators })
    }

    /// Returns the client, at the first node.
    pub fn client(&self) -> &Host {
        &self.client
    }

    /// Returns the nodes.
    pub fn nodes(&self) -> &[Host] {
        &self.nodes
    }

    /// Returns the servers.
    pub fn servers(&self) -> &[Host] {
        &self.servers
    }

    /// Kills a node: takes its links down, then kills its programs.
    pub fn kill(&self, node: usize) -> Result<(), TopologyError> {
        let devices = |host: &Host| format!("link set to-{} down", host.name());
        let own = &self.nodes[node];
        let others = self.nodes.iter().chain(&self.servers).filter(|host| host.v4 != own.v4);
        own.ip(&others.map(devices).collect::<Vec<_>>())?;
        Ok(own.netns().kill_all()?)
    }
}

/// Creates a machine with its address on the loopback interface.
fn machine(name: String, v4: Ipv4Addr, journal: &Journal) -> Result<Host, TopologyError> {
    let node = Node::new(name, journal)?;
    node.ip(&[format!("addr add {v4}/32 dev lo")])?;
    node.set_sysctls(&HOST_SYSCTLS)?;
    Ok(Host { node, v4, v6: None, routes: Vec::new() })
}

/// Connects two machines by a link with this round trip.
fn link(a: &Host, b: &Host, round_trip: Duration) -> Result<Emulator, TopologyError> {
    let open = |host: &Host, to: &Host| tun::open(host, &format!("to-{}", to.name()), MTU);
    let ends = (open(a, b)?, open(b, a)?);
    let config = LinkConfig { delay: round_trip / 2, ..LinkConfig::default() };
    let emulator = Emulator::start(ends.0, ends.1, EmulatorConfig::symmetric(config, 1))?;
    for (host, to) in [(a, b), (b, a)] {
        let device = format!("to-{}", to.name());
        host.ip(&[
            format!("link set {device} up"),
            format!("route add {}/32 dev {device} src {}", to.v4, host.v4),
        ])?;
    }
    Ok(emulator)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::programs::Ping;

    #[test]
    fn each_pair_has_its_own_round_trip() {
        let ms = |ms: usize| Duration::from_millis(ms as u64);
        let (between, to_server) = (|n, m| ms(n + 2 * m), |n, _| ms(10 * n + 1));
        let world = Mesh::build((3, 1), between, to_server, &Journal::new()).unwrap();
        let ping = Ping { count: 2, interval: Duration::from_millis(10), size: 100 };
        let [n0, n1, n2] = world.nodes() else { panic!("three nodes") };
        for (from, to, least) in
            [(n0, n1, 2.0), (n2, n0, 4.0), (n1, n2, 5.0), (n2, &world.servers()[0], 21.0)]
        {
            let report = ping.run(from, to.v4().into()).unwrap();
            assert_eq!(report.round_trips_ms.len(), 2, "{} to {}", from.name(), to.name());
            assert!(report.round_trips_ms.iter().all(|(_, ms)| *ms >= least), "{report:?}");
        }
    }
}
