//! Client, server and a chain of routers between them, with an emulated link between neighbours.
//!
//! ```text
//!   client eth0 ═══════ west hop1 east ═══════ west hop2 east ═══════ eth0 server
//!      10.1.0.1     10.1.0.2   10.2.0.1    10.2.0.2   10.3.0.1     10.3.0.2
//!
//!   IPv6 in the same manner: fd00:<n>::1 and fd00:<n>::2
//! ```

use std::net::{Ipv4Addr, Ipv6Addr};

use viaduct_proto::link::LinkConfig;

use super::node::KillOnDrop;
use super::site::{HOST_SYSCTLS, ROUTER_SYSCTLS};
use super::{Host, Journal, Node, TopologyError, tun};
use crate::emulator::{Emulator, EmulatorConfig};

const MTU: u32 = 1500;

/// Chain of machines; see the module's drawing. Dropping it removes everything.
#[derive(Debug)]
pub struct Chain {
    _programs: KillOnDrop,
    client: Host,
    hops: Vec<Node>,
    server: Host,
    _emulators: Vec<Emulator>,
}

/// End of a link.
#[derive(Clone, Copy)]
struct End {
    link: usize,
    /// Last part of the address: 1 on the client's side, 2 on the server's.
    last: u8,
}

impl Chain {
    /// Builds the chain with these links, from the client to the server, and a router between every
    /// two links. Fails if the kernel refuses a part; nothing is left in that case.
    pub fn build(
        links: &[LinkConfig],
        seed: u64,
        journal: &Journal,
    ) -> Result<Chain, TopologyError> {
        let (value, range) = (links.len() as u64, "1 to 9 links");
        if !(1..=9).contains(&links.len()) {
            return Err(TopologyError::Spec { what: "links", value, range });
        }
        let mut names = vec!["client".to_owned()];
        names.extend((1..links.len()).map(|n| format!("hop{n}")));
        names.push("server".to_owned());
        let mut nodes = names
            .into_iter()
            .map(|name| Node::new(name, journal))
            .collect::<Result<Vec<_>, _>>()?;
        let programs = KillOnDrop(nodes.clone());
        let emulators = links.iter().enumerate().map(|(n, link)| {
            let (left, right) = (east(n), west(n + 1, links.len()));
            let ends = (tun::open(&nodes[n], left, MTU)?, tun::open(&nodes[n + 1], right, MTU)?);
            let config = EmulatorConfig::symmetric(link.clone(), seed + n as u64);
            Ok(Emulator::start(ends.0, ends.1, config)?)
        });
        let emulators = emulators.collect::<Result<Vec<_>, TopologyError>>()?;
        for (n, node) in nodes.iter().enumerate() {
            address(node, n, links.len())?;
        }
        let last = links.len() - 1;
        let server = host(nodes.pop().expect("at least two nodes"), End { link: last, last: 2 })?;
        let client = host(nodes.remove(0), End { link: 0, last: 1 })?;
        Ok(Chain { _programs: programs, client, hops: nodes, server, _emulators: emulators })
    }

    /// Returns the client.
    pub fn client(&self) -> &Host {
        &self.client
    }

    /// Returns the routers, from the client's side.
    pub fn hops(&self) -> &[Node] {
        &self.hops
    }

    /// Returns the server.
    pub fn server(&self) -> &Host {
        &self.server
    }
}

impl End {
    fn v4(self) -> Ipv4Addr {
        Ipv4Addr::new(10, self.link as u8 + 1, 0, self.last)
    }

    fn v6(self) -> Ipv6Addr {
        Ipv6Addr::new(0xfd00, self.link as u16 + 1, 0, 0, 0, 0, 0, self.last.into())
    }
}

/// Returns the device of machine `n` towards the server.
fn east(n: usize) -> &'static str {
    if n == 0 { "eth0" } else { "east" }
}

/// Returns the device of machine `n` towards the client, in a chain of `links` links.
fn west(n: usize, links: usize) -> &'static str {
    if n == links { "eth0" } else { "west" }
}

/// Configures addresses and routes of machine `n`: the default route points towards the server, and
/// each remote link towards the client has a route of its own.
fn address(node: &Node, n: usize, links: usize) -> Result<(), TopologyError> {
    let mut lines = Vec::new();
    let mut up = |device: &str, end: End| {
        lines.push(format!("addr add {}/30 dev {device}", end.v4()));
        lines.push(format!("addr add {}/64 dev {device} nodad", end.v6()));
        lines.push(format!("link set {device} up"));
    };
    if n > 0 {
        up(west(n, links), End { link: n - 1, last: 2 });
    }
    if n < links {
        up(east(n), End { link: n, last: 1 });
    }
    for link in 0..n.saturating_sub(1) {
        let (to, via) = (End { link, last: 0 }, End { link: n - 1, last: 1 });
        lines.push(format!("route add {}/30 via {}", to.v4(), via.v4()));
        lines.push(format!("route add {}/64 via {}", to.v6(), via.v6()));
    }
    if n < links && n > 0 {
        let via = End { link: n, last: 2 };
        lines.push(format!("route add default via {}", via.v4()));
        lines.push(format!("route add default via {}", via.v6()));
    }
    node.ip(&lines)?;
    if n > 0 && n < links { node.set_sysctls(&ROUTER_SYSCTLS) } else { Ok(()) }
}

/// Turns a node at an end of the chain into a host with its default route.
fn host(node: Node, own: End) -> Result<Host, TopologyError> {
    let via = End { last: 3 - own.last, ..own };
    let routes = vec![format!("default via {}", via.v4()), format!("default via {}", via.v6())];
    node.ip(&routes.iter().map(|route| format!("route add {route}")).collect::<Vec<_>>())?;
    node.set_sysctls(&HOST_SYSCTLS)?;
    Ok(Host { node, v4: own.v4(), v6: Some(own.v6()), routes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::programs::Ping;
    use std::time::Duration;

    #[test]
    fn the_ends_reach_each_other_over_all_links() {
        let link: LinkConfig = "delay=2ms".parse().unwrap();
        for links in [1, 2, 4] {
            let world = Chain::build(&vec![link.clone(); links], 1, &Journal::new()).unwrap();
            assert_eq!(world.hops().len(), links - 1);
            for to in world.server().addresses() {
                let ping = Ping { count: 2, interval: Duration::from_millis(10), size: 100 };
                let report = ping.run(world.client(), to).unwrap();
                let least = 4.0 * links as f64;
                assert_eq!(report.round_trips_ms.len(), 2, "{links} links to {to}");
                assert!(report.round_trips_ms.iter().all(|(_, ms)| *ms >= least), "{report:?}");
            }
        }
    }
}
