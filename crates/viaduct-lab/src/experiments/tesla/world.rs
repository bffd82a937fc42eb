//! The two hosts of section 5.2: on one machine, speaking by its loopback interface, or with a
//! 100 Mb/s link between them, or two. Each has a core of its own.
//!
//! ```text
//!   client 10.1.0.1 eth0 ═══ 100 Mb/s ═══ eth0 10.1.0.2 server
//!          10.4.0.1 eth1 ═══ 100 Mb/s ═══ eth1 10.4.0.2           the second of two
//! ```

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Result;

use crate::experiments::cores::first_and_last;
use crate::topology::{Journal, Node, Pair};

/// Of all sockets.
pub(super) const CONGESTION_CONTROL: &str = "cubic";
/// The link: what 100BASE-T carries, packets whole and one by one as on a wire.
const LINK: &str = "tbf rate 100mbit burst 3200 limit 300000";
const PORT: u16 = 9000;

/// Where the two hosts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Between {
    Loopback,
    Link,
    TwoLinks,
}

impl Between {
    pub(super) fn name(self) -> &'static str {
        match self {
            Between::Loopback => "loopback",
            Between::Link => "100 Mb/s link",
            Between::TwoLinks => "two 100 Mb/s links",
        }
    }
}

/// Both.
pub(super) enum World {
    Loopback(Node),
    Link(Pair),
}

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    Client,
    Server,
}

impl World {
    pub(super) fn build(between: Between, journal: &Journal) -> Result<World> {
        if between == Between::Loopback {
            let node = Node::new("host", journal)?;
            let local = format!(
                "route change local 127.0.0.1 dev lo table local congctl {CONGESTION_CONTROL}"
            );
            node.ip(&[local])?;
            return Ok(World::Loopback(node));
        }
        let pair = Pair::build(journal)?;
        if between == Between::TwoLinks {
            pair.add_link()?;
        }
        for host in [pair.load(), pair.middle()] {
            host.set_congestion_control(CONGESTION_CONTROL)?;
            limit(host, "eth0")?;
            if between == Between::TwoLinks {
                limit(host, "eth1")?;
            }
        }
        Ok(World::Link(pair))
    }

    pub(super) fn node(&self, who: Who) -> &Node {
        match (self, who) {
            (World::Loopback(node), _) => node,
            (World::Link(pair), Who::Client) => pair.load(),
            (World::Link(pair), Who::Server) => pair.middle(),
        }
    }

    /// The core that everything of a host runs on.
    pub(super) fn core(who: Who) -> Result<usize> {
        let (first, last) = first_and_last()?;
        Ok(if who == Who::Client { first } else { last })
    }

    /// Port `n` of those that the experiments use, in a host.
    pub(super) fn at(&self, who: Who, n: u16) -> SocketAddr {
        let ip = match (self, who) {
            (World::Loopback(_), _) => Ipv4Addr::LOCALHOST,
            (World::Link(pair), Who::Client) => pair.load().v4(),
            (World::Link(pair), Who::Server) => pair.middle().v4(),
        };
        SocketAddr::new(ip.into(), PORT + n)
    }
}

/// Has a device send as a 100 Mb/s link's would.
fn limit(host: &Node, device: &str) -> Result<()> {
    host.set_offloads(device, false)?;
    let arguments = format!("qdisc replace dev {device} root {LINK}");
    host.run("tc", &arguments.split(' ').collect::<Vec<_>>())?;
    Ok(())
}
