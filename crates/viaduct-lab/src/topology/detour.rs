//! A client, a server, and a machine that stands aside of the way between them.
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

use super::site::{HOST_SYSCTLS, ROUTER_SYSCTLS};
use super::{Host, Journal, Node, TopologyError, tun};
use crate::emulator::{Emulator, EmulatorConfig};

const MTU: u32 = 1500;

/// Three machines around a router; see the module's drawing. All of it is gone when this is dropped.
#[derive(Debug)]
pub struct Detour {
    client: Host,
    server: Host,
    aside: Host,
    fork: Node,
    _emulators: Vec<Emulator>,
}

impl Detour {
    /// With `half` on either side of the fork, and `side` between it and the machine aside.
    ///
    /// # Errors
    /// The kernel refuses a part; nothing is left then.
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
        Ok(Detour { client, server, aside, fork, _emulators: emulators })
    }

    /// The client.
    pub fn client(&self) -> &Host {
        &self.client
    }

    /// The server.
    pub fn server(&self) -> &Host {
        &self.server
    }

    /// The machine that no packet passes unless it is sent there.
    pub fn aside(&self) -> &Host {
        &self.aside
    }

    /// The router between them.
    pub fn fork(&self) -> &Node {
        &self.fork
    }
}

impl Drop for Detour {
    /// A daemon that a program started would keep its namespace alive.
    fn drop(&mut self) {
        for node in [&*self.client, &*self.server, &*self.aside, &self.fork] {
            // What cannot be killed here is no reason not to end the rest.
            let _ = node.netns().kill_all();
        }
    }
}

/// Addresses and routes of link `number`: `node` at one end, the fork's `device` at the other.
fn wire(fork: &Node, device: &str, node: Node, number: u8) -> Result<Host, TopologyError> {
    let at = |last| Ipv4Addr::new(10, number, 0, last);
    // The client's end is .1 and the fork's .2; elsewhere the fork is on the left.
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
    fn the_way_by_the_machine_aside_is_longer() {
        let link = |text: &str| -> LinkConfig { text.parse().unwrap() };
        let (half, side) = (link("delay=4ms"), link("delay=2ms"));
        let world = Detour::build(&half, &side, 1, &Journal::new()).unwrap();
        let ping = Ping { count: 2, interval: Duration::from_millis(10), size: 100 };
        for (from, to, least) in [
            (world.client(), world.server(), 16.0),
            (world.client(), world.aside(), 12.0),
            (world.aside(), world.server(), 12.0),
        ] {
            let report = ping.run(from, to.v4().into()).unwrap();
            assert_eq!(report.round_trips_ms.len(), 2, "{} to {}", from.name(), to.name());
            assert!(report.round_trips_ms.iter().all(|(_, ms)| *ms >= least), "{report:?}");
        }
    }
}
