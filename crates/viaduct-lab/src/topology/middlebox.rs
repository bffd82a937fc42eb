//! Two sites with a middlebox between their gateways. The middlebox translates the address of
//! gateway A. It drops TCP segments that strict connection tracking classifies as INVALID and, on
//! demand, UDP.
//!
//! ```text
//!   a1 eth0 ═══ lan gwa wan0 ══════ west middlebox east ══════ wan0 gwb lan ═══ eth0 b1
//!   10.1.0.2  10.1.0.1 192.0.2.1   192.0.2.9  198.51.100.9   198.51.100.2 10.2.0.1  10.2.0.2
//!                      2001:db8:a::1     ::9  2001:db8:b::9  2001:db8:b::2
//! ```
//!
//! `wan0` of gwa and `west` are a veth pair, or two TUNs with an emulator between them.

use std::net::Ipv4Addr;

use super::dumbbell::is_fast;
use super::node::KillOnDrop;
use super::site::{HOST_SYSCTLS, ROUTER_SYSCTLS, veth};
use super::{Host, Journal, Node, TopologyError, Wan, tun};
use crate::emulator::Emulator;

const WAN_MTU: u32 = 1500;

/// Rules of the middlebox. The counters count segments of fake TCP: those with datagrams to
/// each gateway (`to_a`, `to_b`), INVALID ones with datagrams (`invalid`), and other INVALID
/// ones (`other_invalid`).
const RULES: &str = "
    table inet fw {
        counter to_a {}
        counter to_b {}
        counter invalid {}
        counter other_invalid {}
        chain seen {
            type filter hook prerouting priority mangle; policy accept;
            tcp dport 7400 tcp flags & psh == psh counter name to_b
            tcp sport 7400 tcp flags & psh == psh counter name to_a
            tcp dport 7400 tcp flags & psh == psh ct state invalid counter name invalid drop
            tcp sport 7400 tcp flags & psh == psh ct state invalid counter name invalid drop
            tcp dport 7400 ct state invalid counter name other_invalid drop
            tcp sport 7400 ct state invalid counter name other_invalid drop
            meta l4proto tcp ct state invalid drop
        }
        chain ban {
            type filter hook forward priority 0; policy accept;
        }
        chain leaving {
            type nat hook postrouting priority srcnat;
            oifname east ip saddr 192.0.2.1 masquerade
            oifname east ip6 saddr 2001:db8:a::1 masquerade
        }
    }";

/// Connection tracking with all of its checks.
const STRICT: [(&str, &str); 2] = [
    ("net/netfilter/nf_conntrack_tcp_be_liberal", "0"),
    ("net/netfilter/nf_conntrack_tcp_loose", "0"),
];

/// Two sites and a middlebox; see the module's drawing. Dropping it removes everything.
#[derive(Debug)]
pub struct Middlebox {
    _programs: KillOnDrop,
    /// Host of site A.
    pub a1: Host,
    /// Host of site B.
    pub b1: Host,
    /// Gateways of the sites, without programs.
    pub gateways: [Node; 2],
    /// The middlebox itself.
    pub node: Node,
    emulator: Option<Emulator>,
}

/// Packets and bytes that a rule has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Packets.
    pub packets: u64,
    /// Bytes, with IP headers.
    pub bytes: u64,
}

impl Middlebox {
    /// Builds the sites, whose hosts have this MTU, and the middlebox, which lets UDP pass. Fails
    /// if the kernel refuses a part; nothing is left in that case.
    pub fn build(wan: &Wan, host_mtu: u32, journal: &Journal) -> Result<Middlebox, TopologyError> {
        let new = |name: &str| Node::new(name, journal);
        let (a1, gwa, node) = (new("a1")?, new("gwa")?, new("middlebox")?);
        let (gwb, b1) = (new("gwb")?, new("b1")?);
        let _programs = KillOnDrop([&a1, &gwa, &node, &gwb, &b1].map(Node::clone).into());
        for (gateway, host) in [(&gwa, &a1), (&gwb, &b1)] {
            gateway.ip(&[veth(host_mtu, ("lan", 20), ("eth0", 21), host)])?;
        }
        gwb.ip(&[veth(WAN_MTU, ("wan0", 10), ("east", 12), &node)])?;
        let emulator = connect_west(&gwa, &node, wan)?;
        address(&gwa, "10.1.0.1", "192.0.2", "2001:db8:a", 1)?;
        address(&gwb, "10.2.0.1", "198.51.100", "2001:db8:b", 2)?;
        let (a1, b1) = (host(a1, [10, 1, 0, 2])?, host(b1, [10, 2, 0, 2])?);
        configure(&node)?;
        for (node, device) in [(&gwb, "wan0"), (&node, "east")] {
            node.run("ethtool", &["-K", device, "tx", "off"])?;
        }
        Ok(Middlebox { _programs, a1, b1, gateways: [gwa, gwb], node, emulator })
    }

    /// Returns the link between gateway A and the middlebox if it is emulated.
    pub fn emulator(&self) -> Option<&Emulator> {
        self.emulator.as_ref()
    }

    /// Starts or stops dropping all UDP.
    pub fn drop_udp(&self, is_dropped: bool) -> Result<(), TopologyError> {
        let rule = match is_dropped {
            true => "add rule inet fw ban meta l4proto udp drop",
            false => "flush chain inet fw ban",
        };
        self.node.run("nft", &[rule]).map(drop)
    }

    /// Starts dropping the UDP that arrives at `west` or `east`, until [`Middlebox::drop_udp`] is
    /// called with `false`.
    pub fn drop_udp_from(&self, device: &str) -> Result<(), TopologyError> {
        let rule = format!("add rule inet fw ban iifname {device} meta l4proto udp drop");
        self.node.run("nft", &[&rule]).map(drop)
    }

    /// Changes the IPv4 address that gateway B sees to 198.51.100.10. The kernel then forgets the
    /// connections that it has masqueraded.
    pub fn renumber(&self) -> Result<(), TopologyError> {
        self.node.ip(&[
            "addr del 198.51.100.9/24 dev east".into(),
            "addr add 198.51.100.10/24 dev east".into(),
            "route replace 10.2.0.0/24 via 198.51.100.2".into(),
        ])?;
        self.gateways[1].ip(&["route replace default via 198.51.100.10".into()])
    }

    /// Exempts the middlebox's own segments, such as forged ones, from its connection tracking, as
    /// if a host beyond it had sent them.
    pub fn leave_own_untracked(&self) -> Result<(), TopologyError> {
        let rules = "add table inet own
            add chain inet own out { type filter hook output priority raw; }
            add rule inet own out tcp dport 7400 notrack
            add rule inet own out tcp sport 7400 notrack";
        self.node.run("nft", &[rules]).map(drop)
    }

    /// Reads the counter `name`, which is `to_a`, `to_b`, `invalid` or `other_invalid`.
    pub fn counted(&self, name: &str) -> Result<Counted, TopologyError> {
        let text = self.node.run("nft", &["list", "counter", "inet", "fw", name])?;
        let number = |what: &str| {
            let mut words = text.split_whitespace().skip_while(|word| *word != what).skip(1);
            words.next().and_then(|word| word.parse().ok())
        };
        let counted = number("packets").zip(number("bytes"));
        let (packets, bytes) = counted.ok_or_else(|| TopologyError::Answer {
            node: self.node.name().into(),
            what: format!("nft printed no counter: {text}"),
        })?;
        Ok(Counted { packets, bytes })
    }
}

/// Connects `wan0` of gateway A with the middlebox.
fn connect_west(gwa: &Node, node: &Node, wan: &Wan) -> Result<Option<Emulator>, TopologyError> {
    match wan {
        Wan::Veth => {
            gwa.ip(&[veth(WAN_MTU, ("wan0", 10), ("west", 11), node)])?;
            for (node, device) in [(gwa, "wan0"), (node, "west")] {
                node.run("ethtool", &["-K", device, "tx", "off"])?;
            }
            Ok(None)
        }
        Wan::Emulated(config) => {
            let ends = (tun::open(gwa, "wan0", WAN_MTU)?, tun::open(node, "west", WAN_MTU)?);
            if is_fast(config) {
                // These calls require root. Without them, the link is slower.
                let _ = gwa.spread_receive("wan0");
                let _ = node.spread_receive("west");
            }
            Ok(Some(Emulator::start(ends.0, ends.1, (**config).clone())?))
        }
    }
}

/// Configures a gateway: its address in the site, and host number `last` in the networks of the
/// WAN, where the router has number 9.
fn address(gateway: &Node, lan: &str, v4: &str, v6: &str, last: u8) -> Result<(), TopologyError> {
    gateway.set_sysctls(&ROUTER_SYSCTLS)?;
    gateway.ip(&[
        format!("addr add {lan}/24 dev lan"),
        "link set lan up".into(),
        format!("addr add {v4}.{last}/24 dev wan0"),
        format!("addr add {v6}::{last}/64 dev wan0 nodad"),
        "link set wan0 up".into(),
        format!("route add default via {v4}.9"),
        format!("route add default via {v6}::9"),
    ])
}

fn configure(node: &Node) -> Result<(), TopologyError> {
    node.set_sysctls(&ROUTER_SYSCTLS)?;
    let mut lines = Vec::new();
    for (device, v4, v6) in
        [("west", "192.0.2.9", "2001:db8:a::9"), ("east", "198.51.100.9", "2001:db8:b::9")]
    {
        lines.push(format!("addr add {v4}/24 dev {device}"));
        lines.push(format!("addr add {v6}/64 dev {device} nodad"));
        lines.push(format!("link set {device} up"));
    }
    lines.push("route add 10.1.0.0/24 via 192.0.2.1".into());
    lines.push("route add 10.2.0.0/24 via 198.51.100.2".into());
    node.ip(&lines)?;
    node.run("nft", &[RULES])?;
    node.set_sysctls(&STRICT)
}

/// Turns a node into a host with this address. Its default gateway has number 1 in the
/// same network.
fn host(node: Node, v4: [u8; 4]) -> Result<Host, TopologyError> {
    let v4 = Ipv4Addr::from(v4);
    let [a, b, c, _] = v4.octets();
    let route = format!("default via {a}.{b}.{c}.1");
    node.ip(&[
        format!("addr add {v4}/24 dev eth0"),
        "link set eth0 up".into(),
        format!("route add {route}"),
    ])?;
    node.set_sysctls(&HOST_SYSCTLS)?;
    Ok(Host { node, v4, v6: None, routes: vec![route] })
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use super::*;
    use crate::topology::programs::Iperf;

    #[test]
    fn tcp_passes_and_udp_can_be_dropped() {
        let world = Middlebox::build(&Wan::Veth, 1500, &Journal::new()).unwrap();
        let report = Iperf::tcp("cubic", 1, 0).run(&world.a1, &world.b1).unwrap();
        assert!(report.received > 1e8, "{report:?}");
        let bind = |host: &Host| host.netns().enter(|| UdpSocket::bind("0.0.0.0:7").unwrap());
        let (from, to) = (bind(&world.a1).unwrap(), bind(&world.b1).unwrap());
        to.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let udp_passes = || {
            from.send_to(b"?", (world.b1.v4(), 7)).unwrap();
            to.recv(&mut [0]).is_ok()
        };
        assert!(udp_passes());
        world.drop_udp(true).unwrap();
        assert!(!udp_passes());
        world.drop_udp(false).unwrap();
        assert!(udp_passes());
        assert_eq!(world.counted("invalid").unwrap(), Counted::default());
    }
}
