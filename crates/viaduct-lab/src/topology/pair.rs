//! Two machines and a wire between them: one makes the load and serves it, the other is what stands
//! in between (Miniproxy, section 6.1).
//!
//! ```text
//!   load eth0 ─────────────── eth0 box
//!    10.1.0.1                10.1.0.2
//!        eth1 ─ ─ ─ ─ ─ ─ ─ eth1            if asked for: 10.4.0.1, 10.4.0.2
//! ```

use std::net::Ipv4Addr;

use super::site::{HOST_SYSCTLS, veth};
use super::{Host, Journal, Node, TopologyError};

const MTU: u32 = 1500;

/// Both machines. All of it is gone when this is dropped.
#[derive(Debug)]
pub struct Pair {
    load: Host,
    middle: Host,
}

impl Pair {
    /// Builds it.
    ///
    /// # Errors
    /// The kernel refuses a part; nothing is left then.
    pub fn build(journal: &Journal) -> Result<Pair, TopologyError> {
        let (load, middle) = (Node::new("load", journal)?, Node::new("box", journal)?);
        load.ip(&[veth(MTU, ("eth0", 10), ("eth0", 11), &middle)])?;
        Ok(Pair { load: host(load, 1)?, middle: host(middle, 2)? })
    }

    /// Adds a second wire, 10.4.0.0/24, beside the first: what comes from its address at the load
    /// goes by it to wherever the other machine is asked for, and back.
    ///
    /// # Errors
    /// The kernel refuses.
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

    /// The machine of clients and servers.
    pub fn load(&self) -> &Host {
        &self.load
    }

    /// The machine that stands between them.
    pub fn middle(&self) -> &Host {
        &self.middle
    }
}

impl Drop for Pair {
    /// A daemon that a program started would keep its namespace alive.
    fn drop(&mut self) {
        for host in [&self.load, &self.middle] {
            // What cannot be killed here is no reason not to end the rest.
            let _ = host.netns().kill_all();
        }
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
    // Tens of thousands of connections a second, each with a port of its own.
    node.set_sysctls(&[
        ("net/ipv4/ip_local_port_range", "10000 65535"),
        ("net/ipv4/tcp_tw_reuse", "1"),
        ("net/core/somaxconn", "4096"),
        ("net/ipv4/tcp_max_syn_backlog", "16384"),
    ])?;
    Ok(Host { node, v4, v6: None, routes: vec![route] })
}
