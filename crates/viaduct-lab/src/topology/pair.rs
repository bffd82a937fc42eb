//! Two machines and a wire between them: one generates and serves the load, the other runs the
//! proxy under test (Miniproxy, section 6.1).
//!
//! ```text
//!   load eth0 ─────────────── eth0 box
//!    10.1.0.1                10.1.0.2
//!        eth1 ─ ─ ─ ─ ─ ─ ─ eth1            optional: 10.4.0.1, 10.4.0.2
//! ```

use std::net::Ipv4Addr;

use super::node::KillOnDrop;
use super::site::{HOST_SYSCTLS, veth};
use super::{Host, Journal, Node, TopologyError};

const MTU: u32 = 1500;

/// Pair of machines; see the module's drawing. Dropping it removes everything.
#[derive(Debug)]
pub struct Pair {
    _programs: KillOnDrop,
    /// Machine of the clients and servers.
    pub load: Host,
    /// Machine of the proxy between them.
    pub middle: Host,
}

impl Pair {
    /// Builds the two machines and their wire. Fails if the kernel refuses a part; nothing is
    /// left in that case.
    pub fn build(journal: &Journal) -> Result<Pair, TopologyError> {
        let (load, middle) = (Node::new("load", journal)?, Node::new("box", journal)?);
        load.ip(&[veth(MTU, ("eth0", 10), ("eth0", 11), &middle)])?;
        let _programs = KillOnDrop(vec![load.clone(), middle.clone()]);
        Ok(Pair { _programs, load: host(load, 1)?, middle: host(middle, 2)? })
    }

    /// Adds a second wire, 10.4.0.0/24. Traffic between 10.4.0.1 and any address of the proxy's
    /// machine uses the second wire in both directions.
    pub fn add_link(&self) -> Result<(), TopologyError> {
        self.load.ip(&[
            veth(MTU, ("eth1", 20), ("eth1", 21), &self.middle),
            "addr add 10.4.0.1/24 dev eth1".into(),
            "link set eth1 up".into(),
        ])?;
        self.middle.ip(&["addr add 10.4.0.2/24 dev eth1".into(), "link set eth1 up".into()])?;
        self.load.ip(&[
            "rule add from 10.4.0.1 lookup 104".into(),
            "route add 10.1.0.0/24 via 10.4.0.2 dev eth1 table 104".into(),
        ])
    }
}

fn host(node: Node, last: u8) -> Result<Host, TopologyError> {
    let v4 = Ipv4Addr::new(10, 1, 0, last);
    let route = "10.1.0.0/24 dev eth0".to_owned();
    node.ip(&[
        format!("addr add {v4}/24 dev eth0 noprefixroute"),
        "link set eth0 up".into(),
        format!("route add {route}"),
    ])?;
    node.set_sysctls(&HOST_SYSCTLS)?;
    // Sized for tens of thousands of connections per second, each with its own port.
    node.set_sysctls(&[
        ("net/ipv4/ip_local_port_range", "10000 65535"),
        ("net/ipv4/tcp_tw_reuse", "1"),
        ("net/core/somaxconn", "4096"),
        ("net/ipv4/tcp_max_syn_backlog", "16384"),
    ])?;
    Ok(Host { node, v4, v6: None, routes: vec![route] })
}
