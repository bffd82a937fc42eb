//! Interfaces of this machine, and how they are stacked.
//!
//! ```text
//!   br0, bond0          eth0.7          ppp0
//!    │      │             │               │        above: has the addresses and the routes
//!   eth0   eth1          eth0            eth0      below: carries the packets
//!   ports                VLAN            PPPoE
//! ```

use std::fs;
use std::io;

use crate::route::link_message::{IFLA_LINK, IFLA_MASTER, IFLA_MTU, LinkMessage};
use crate::route::rtnetlink::RouteSocket;

/// Type of an interface, as far as it matters for the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// Bridge.
    Bridge,
    /// Bond or team.
    Bond,
    /// PPP, possibly over Ethernet.
    Ppp,
    /// Any other type.
    Other,
}

/// Interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Index.
    pub index: u32,
    /// Name.
    pub name: String,
    /// MTU in bytes.
    pub mtu: usize,
    /// True if the interface is up, with a carrier.
    pub is_running: bool,
    /// True if its packets have Ethernet headers; false for loopback, PPP and TUN.
    pub is_ethernet: bool,
    /// Type.
    pub kind: LinkKind,
    /// Index of the bridge, bond or other master that the interface is a port of.
    pub master: Option<u32>,
    /// Index of the interface below a VLAN, MACVLAN or IPVLAN.
    pub lower: Option<u32>,
}

/// All interfaces of a network namespace.
#[derive(Clone, Debug, Default)]
pub struct Links {
    links: Vec<Link>,
    /// Names of the interfaces that carry PPPoE sessions.
    pppoe: Vec<String>,
}

impl Links {
    /// Reads the interfaces of the calling thread's network namespace.
    ///
    /// # Errors
    /// The netlink request fails.
    pub fn read() -> io::Result<Links> {
        let links = RouteSocket::open()?.dump(&LinkMessage::default())?;
        let pppoe = fs::read_to_string("/proc/thread-self/net/pppoe").unwrap_or_default();
        Ok(Links { links: links.iter().filter_map(read_link).collect(), pppoe: carriers(&pppoe) })
    }

    /// Iterates over the interfaces, in the kernel's order.
    pub fn iter(&self) -> impl Iterator<Item = &Link> {
        self.links.iter()
    }

    /// Returns the interface `name`.
    pub fn named(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|link| link.name == name)
    }

    /// Returns the interface of this index.
    pub fn at(&self, index: u32) -> Option<&Link> {
        self.links.iter().find(|link| link.index == index)
    }

    /// Returns the interfaces that carry the packets of `link`, directly or through others.
    pub fn below(&self, link: &Link) -> Vec<&Link> {
        let mut found: Vec<&Link> = Vec::new();
        let mut above = vec![link];
        while let Some(top) = above.pop() {
            for one in self.links.iter().filter(|one| self.carries(one, top)) {
                if one.index != link.index && !found.contains(&one) {
                    found.push(one);
                    above.push(one);
                }
            }
        }
        found
    }

    /// Returns whether `one` is directly below `top`.
    fn carries(&self, one: &Link, top: &Link) -> bool {
        let is_pppoe = top.kind == LinkKind::Ppp && self.pppoe.contains(&one.name);
        one.master == Some(top.index) || top.lower == Some(one.index) || is_pppoe
    }
}

impl FromIterator<Link> for Links {
    fn from_iter<T: IntoIterator<Item = Link>>(links: T) -> Links {
        Links { links: links.into_iter().collect(), pppoe: Vec::new() }
    }
}

/// Reads one interface; `None` if it has no name.
fn read_link(message: &LinkMessage) -> Option<Link> {
    let kind = message.kind().unwrap_or_default();
    // The `IFLA_LINK` of a veth is the index of its other end, which may be in another namespace.
    let is_stacked = ["vlan", "macvlan", "ipvlan"].contains(&kind);
    Some(Link {
        index: message.index,
        name: message.name()?.to_owned(),
        mtu: message.number(IFLA_MTU).unwrap_or_default() as usize,
        is_running: message.flags & libc::IFF_RUNNING as u32 != 0,
        is_ethernet: message.hardware == libc::ARPHRD_ETHER,
        kind: match kind {
            "bridge" => LinkKind::Bridge,
            "bond" | "team" => LinkKind::Bond,
            "ppp" => LinkKind::Ppp,
            _ => LinkKind::Other,
        },
        master: message.number(IFLA_MASTER),
        lower: message.number(IFLA_LINK).filter(|_| is_stacked),
    })
}

/// Returns the interface names in the text of `/proc/net/pppoe`. Each line has ID, address and
/// name.
fn carriers(text: &str) -> Vec<String> {
    let name = |line: &str| line.split_whitespace().nth(2).map(str::to_owned);
    text.lines().skip(1).filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Netns;
    use crate::process::tool;

    fn ip(line: &str) {
        tool::run("ip", &line.split(' ').collect::<Vec<_>>(), "").unwrap();
    }

    #[test]
    fn the_interfaces_below_an_interface_are_found() {
        let work = || {
            ip("link set lo up");
            ip("link add eth0 mtu 1400 type veth peer name far0");
            ip("link add eth1 type veth peer name far1");
            ip("link add br0 type bridge");
            ip("link set eth0 master br0");
            ip("link add over link br0 type macvlan");
            ip("link set eth0 up");
            ip("link set far0 up");
            // The kernel sets the carrier flag later.
            let running = |_| {
                std::thread::sleep(std::time::Duration::from_millis(10));
                let links = Links::read().unwrap();
                links.named("eth0").unwrap().is_running.then_some(links)
            };
            let links = (0..500).find_map(running).expect("eth0 has a carrier");
            let below = |name: &str| {
                let found = links.below(links.named(name).unwrap());
                found.iter().map(|link| link.name.clone()).collect::<Vec<_>>()
            };
            assert_eq!(below("over"), ["br0", "eth0"]);
            assert_eq!(below("br0"), ["eth0"]);
            assert!(below("eth0").is_empty() && below("eth1").is_empty());
            let (port, bridge) = (links.named("eth0").unwrap(), links.named("br0").unwrap());
            assert_eq!((port.mtu, port.master, port.lower), (1400, Some(bridge.index), None));
            assert_eq!((bridge.kind, port.kind), (LinkKind::Bridge, LinkKind::Other));
            assert!(!links.named("eth1").unwrap().is_running);
            assert!(port.is_ethernet && !links.named("lo").unwrap().is_ethernet);
            assert_eq!(links.at(port.index), Some(port));
        };
        Netns::new().unwrap().enter(work).unwrap();
    }

    #[test]
    fn the_interfaces_below_a_bond_and_a_vlan_are_found() {
        let work = || {
            ip("link add eth0 type veth peer name far0");
            for (kind, add, join) in [
                ("VLANs", "link add top link eth0 type vlan id 7", None),
                ("bonds", "link add top type bond", Some("link set eth0 master top")),
            ] {
                if tool::run("ip", &add.split(' ').collect::<Vec<_>>(), "").is_err() {
                    eprintln!("skipped: this kernel has no {kind}");
                    continue;
                }
                join.into_iter().for_each(ip);
                let links = Links::read().unwrap();
                let found = links.below(links.named("top").unwrap());
                assert_eq!(found.iter().map(|link| &link.name).collect::<Vec<_>>(), ["eth0"]);
                ip("link del top");
            }
        };
        Netns::new().unwrap().enter(work).unwrap();
    }

    #[test]
    fn the_interface_below_a_pppoe_session_is_found() {
        let text = "Id       Address              Device\n\
                    00000001 52:54:00:12:34:56     eth0\n";
        let eth0 = Link {
            index: 2,
            name: "eth0".to_owned(),
            mtu: 1500,
            is_running: true,
            is_ethernet: true,
            kind: LinkKind::Other,
            master: None,
            lower: None,
        };
        let ppp0 = Link { index: 3, name: "ppp0".to_owned(), kind: LinkKind::Ppp, ..eth0 };
        let links = Links { links: vec![eth0.clone(), ppp0.clone()], pppoe: carriers(text) };
        assert_eq!(links.below(&ppp0), [&eth0]);
        assert!(links.below(&eth0).is_empty());
    }
}
