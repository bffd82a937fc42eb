//! Client, server, and a machine off the path between them.
//!
//! ```text
//!                            aside eth0  10.3.0.2
//!                               ║
//!                               ║
//!   client eth0 ═══════ west  fork  east ═══════ eth0 server
//!      10.1.0.1     10.1.0.2        10.2.0.1     10.2.0.2
//! ```

use std::net::Ipv4Addr;

use viaduct_proto::link::LinkConfig;

use super::node::KillOnDrop;
use super::site::{HOST_SYSCTLS, ROUTER_SYSCTLS};
use super::{Host, Journal, Node, TopologyError, tun};
use crate::emulator::{Emulator, EmulatorConfig};

const MTU: u32 = 1500;

/// Three machines around a router; see the module's drawing. Dropping it removes everything.
#[derive(Debug)]
pub struct Detour {
    _programs: KillOnDrop,
    /// Client.
    pub client: Host,
    /// Server.
    pub server: Host,
    /// Machine off the path; only packets addressed to it or routed there pass it.
    pub aside: Host,
    /// Router between the client and the server.
    pub fork: Node,
    _emulators: Vec<Emulator>,
}

impl Detour {
    /// Builds the world with a `half` link on either side of the fork, and a `side` link to the
    /// machine aside. Fails if the kernel refuses a part; nothing is left in that case.
    pub fn build(
        half: &LinkConfig,
        side: &LinkConfig,
        seed: u64,
        journal: &Journal,
    ) -> Result<Detour, TopologyError> {
        let fork = Node::new("fork", journal)?;
        let mut emulators = Vec::new();
        let mut add = |name, device, link: &LinkConfig| {
            let number = emulators.len() as u8 + 1;
            let node = Node::new(name, journal)?;
            let ends = (tun::open(&node, "eth0", MTU)?, tun::open(&fork, device, MTU)?);
            let config = EmulatorConfig::symmetric(link.clone(), seed + u64::from(number));
            emulators.push(Emulator::start(ends.0, ends.1, config)?);
            wire(&fork, device, node, number)
        };
        let client = add("client", "west", half)?;
        let server = add("server", "east", half)?;
        let aside = add("aside", "side", side)?;
        fork.set_sysctls(&ROUTER_SYSCTLS)?;
        let hosts = [&client, &server, &aside].map(|host| host.node.clone());
        let _programs = KillOnDrop(hosts.into_iter().chain([fork.clone()]).collect());
        Ok(Detour { _programs, client, server, aside, fork, _emulators: emulators })
    }
}

/// Configures addresses and routes of link `number` between `node` and the fork's `device`.
fn wire(fork: &Node, device: &str, node: Node, number: u8) -> Result<Host, TopologyError> {
    let at = |last| Ipv4Addr::new(10, number, 0, last);
    // The client's end is .1 and the fork's end .2; on the other links, the reverse.
    let (own, forks) = if number == 1 { (at(1), at(2)) } else { (at(2), at(1)) };
    fork.ip(&[format!("addr add {forks}/30 dev {device}"), format!("link set {device} up")])?;
    let route = format!("default via {forks}");
    node.ip(&[
        format!("addr add {own}/30 dev eth0"),
        "link set eth0 up".into(),
        format!("route add {route}"),
    ])?;
    node.set_sysctls(&HOST_SYSCTLS)?;
    Ok(Host { node, v4: own, v6: None, routes: vec![route] })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::programs::Ping;
    use std::time::Duration;

    #[test]
    fn the_path_through_the_machine_aside_is_longer() {
        let link = |text: &str| -> LinkConfig { text.parse().unwrap() };
        let (half, side) = (link("delay=4ms"), link("delay=2ms"));
        let world = Detour::build(&half, &side, 1, &Journal::new()).unwrap();
        let ping = Ping { count: 2, interval: Duration::from_millis(10), size: 100 };
        for (from, to, least) in [
            (&world.client, &world.server, 16.0),
            (&world.client, &world.aside, 12.0),
            (&world.aside, &world.server, 12.0),
        ] {
            let report = ping.run(from, to.v4().into()).unwrap();
            assert_eq!(report.round_trips_ms.len(), 2, "{} to {}", from.name(), to.name());
            assert!(report.round_trips_ms.iter().all(|(_, ms)| *ms >= least), "{report:?}");
        }
    }
}
