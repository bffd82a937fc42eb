//! The two hosts of section 5.2: on one machine over its loopback interface, or connected by
//! one or two 100 Mb/s links. Each host has a core of its own.
//!
//! ```text
//!   client 10.1.0.1 eth0 ═══ 100 Mb/s ═══ eth0 10.1.0.2 server
//!          10.4.0.1 eth1 ═══ 100 Mb/s ═══ eth1 10.4.0.2           the second of two
//! ```

use crate::experiments::cores::first_and_last;
use crate::experiments::prelude::*;
use crate::topology::Pair;

/// Congestion control of all sockets.
pub(super) const CONGESTION_CONTROL: &str = "cubic";
/// `tc` settings of the link: the rate of 100BASE-T, packets sent one by one as on a wire.
const LINK: &str = "tbf rate 100mbit burst 3200 limit 300000";
const PORT: u16 = 9000;

/// Connection between the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Network {
    Loopback,
    Link,
    TwoLinks,
}

impl Network {
    pub(super) fn name(self) -> &'static str {
        match self {
            Network::Loopback => "loopback",
            Network::Link => "100 Mb/s link",
            Network::TwoLinks => "two 100 Mb/s links",
        }
    }
}

/// The two hosts.
pub(super) enum World {
    Loopback(Node),
    Link(Pair),
}

/// Selector of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Server,
}

impl World {
    pub(super) fn build(network: Network, journal: &Journal) -> Result<World> {
        if network == Network::Loopback {
            let node = Node::new("host", journal)?;
            let local = format!(
                "route change local 127.0.0.1 dev lo table local congctl {CONGESTION_CONTROL}"
            );
            node.ip(&[local])?;
            return Ok(World::Loopback(node));
        }
        let pair = Pair::build(journal)?;
        if network == Network::TwoLinks {
            pair.add_link()?;
        }
        for host in [&pair.load, &pair.middle] {
            host.set_congestion_control(CONGESTION_CONTROL)?;
            limit(host, "eth0")?;
            if network == Network::TwoLinks {
                limit(host, "eth1")?;
            }
        }
        Ok(World::Link(pair))
    }

    pub(super) fn node(&self, side: Side) -> &Node {
        match (self, side) {
            (World::Loopback(node), _) => node,
            (World::Link(pair), Side::Client) => &pair.load,
            (World::Link(pair), Side::Server) => &pair.middle,
        }
    }

    /// Returns the core for all programs of a host.
    pub(super) fn core(side: Side) -> Result<usize> {
        let (first, last) = first_and_last()?;
        Ok(if side == Side::Client { first } else { last })
    }

    /// Returns the address of experiment port `n` in a host.
    pub(super) fn at(&self, side: Side, n: u16) -> SocketAddr {
        let ip = match (self, side) {
            (World::Loopback(_), _) => Ipv4Addr::LOCALHOST,
            (World::Link(pair), Side::Client) => pair.load.v4(),
            (World::Link(pair), Side::Server) => pair.middle.v4(),
        };
        SocketAddr::new(ip.into(), PORT + n)
    }
}

/// Limits a device to a 100 Mb/s link's rate.
fn limit(host: &Node, device: &str) -> Result<()> {
    host.set_offloads(device, false)?;
    let arguments = format!("qdisc replace dev {device} root {LINK}");
    host.run("tc", &arguments.split(' ').collect::<Vec<_>>())?;
    Ok(())
}
