//! Gateways with a router between them that drops UDP, translates the address of one gateway, drops
//! TCP that connection tracking calls INVALID, and loses 3 % of all packets:
//!
//! ```text
//!   a1 eth0 ═══ lan gwa wan0 ═════════ west router east ═════════ wan0 gwb lan ═══ eth0 b1
//!   10.1.0.2  10.1.0.1 192.0.2.1   192.0.2.9  198.51.100.9   198.51.100.2 10.2.0.1   10.2.0.2
//!                      2001:db8:a::1      ::9  2001:db8:b::9  2001:db8:b::2
//! ```

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use viaduct_lab::binary::use_binary;
use viaduct_lab::gateways::{Gateway, GatewayStatus};
use viaduct_lab::topology::programs::Ping;
use viaduct_lab::topology::{Journal, Node, Scratch};
use viaduct_proto::keys::SecretKey;
use viaduct_proto::trickles::packet::tcp::{Kind, Segment, emit};
use viaduct_proto::trickles::packet::{Mark, Role};
use viaduct_sys::capture::raw::RawSockets;
use viaduct_sys::socket::mmsg::Outbox;

use super::common::upgrade::{Successor, upgrade};
use super::common::within;

const RULES: &str = "
    table inet fw {
        counter invalid {}
        counter segments {}
        chain seen {
            type filter hook prerouting priority mangle; policy accept;
            tcp dport 7400 counter name segments
            tcp flags & psh == psh ct state invalid counter name invalid drop
            meta l4proto tcp ct state invalid drop
        }
        chain lossy {
            type filter hook forward priority -5; policy accept;
            numgen random mod 100 < 3 drop
        }
        chain ban {
            type filter hook forward priority 0; policy accept;
            meta l4proto udp drop
        }
        chain leaving {
            type nat hook postrouting priority srcnat;
            oifname east ip saddr 192.0.2.1 masquerade
            oifname east ip6 saddr 2001:db8:a::1 masquerade
        }
    }";

struct World {
    a1: Node,
    router: Node,
    gateways: [Gateway; 2],
    others: [Node; 3],
    scratch: Scratch,
}

fn sh(node: &Node, script: &str) -> String {
    node.run("sh", &["-ec", script]).unwrap()
}

impl World {
    /// Builds the network. The gateways do not run yet; they reach each other by IPv6 if `v6`.
    fn new(v6: bool, transport: &str) -> World {
        use_binary(env!("CARGO_BIN_EXE_viaduct"));
        let node = |name: &str| Node::new(name, &Journal::new()).unwrap();
        let [a1, gwa, router, gwb, b1] = ["a1", "gwa", "router", "gwb", "b1"].map(node);
        let wire = |from: &Node, end: &str, to: &Node, other: &str| {
            let netns = to.netns().path();
            sh(from, &format!("ip link add {end} type veth peer name {other} netns {netns}"));
        };
        wire(&gwa, "lan", &a1, "eth0");
        wire(&gwa, "wan0", &router, "west");
        wire(&gwb, "wan0", &router, "east");
        wire(&gwb, "lan", &b1, "eth0");
        let up = |node: &Node, devices: &[(&str, &str)]| {
            for (device, addresses) in devices {
                for address in addresses.split(' ') {
                    let nodad = if address.contains(':') { "nodad" } else { "" };
                    sh(node, &format!("ip addr add {address} dev {device} {nodad}"));
                }
                sh(node, &format!("ip link set {device} up; ethtool -K {device} tx off"));
            }
            sh(node, "echo 1 > /proc/sys/net/ipv4/ip_forward");
            sh(node, "echo 1 > /proc/sys/net/ipv6/conf/all/forwarding");
        };
        up(&a1, &[("eth0", "10.1.0.2/24")]);
        up(&gwa, &[("lan", "10.1.0.1/24"), ("wan0", "192.0.2.1/24 2001:db8:a::1/64")]);
        up(
            &router,
            &[
                ("west", "192.0.2.9/24 2001:db8:a::9/64"),
                ("east", "198.51.100.9/24 2001:db8:b::9/64"),
            ],
        );
        up(&gwb, &[("lan", "10.2.0.1/24"), ("wan0", "198.51.100.2/24 2001:db8:b::2/64")]);
        up(&b1, &[("eth0", "10.2.0.2/24")]);
        sh(&a1, "ip route add default via 10.1.0.1");
        sh(&b1, "ip route add default via 10.2.0.1");
        sh(&gwa, "ip route add default via 192.0.2.9; ip route add default via 2001:db8:a::9");
        sh(&gwb, "ip route add default via 198.51.100.9; ip route add default via 2001:db8:b::9");
        sh(
            &router,
            &format!(
                "ip route add 10.1.0.0/24 via 192.0.2.1; ip route add 10.2.0.0/24 via 198.51.100.2
                 nft '{RULES}'
                 echo 0 > /proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal
                 echo 0 > /proc/sys/net/netfilter/nf_conntrack_tcp_loose"
            ),
        );
        let scratch = Scratch::new().unwrap();
        let keys = [1, 2].map(|n| SecretKey::from_bytes([n; 32]));
        let listen = match v6 {
            true => ["[2001:db8:a::1]:7400", "[2001:db8:b::2]:7400"],
            false => ["192.0.2.1:7400", "0.0.0.0:7400"],
        };
        let endpoint = if v6 { listen[1].to_owned() } else { "198.51.100.2:7400".to_owned() };
        let nodes = [gwa, gwb];
        let gateways = [0, 1].map(|n: usize| {
            let letter = ['a', 'b'][n];
            scratch.write_secret(&format!("{letter}.key"), keys[n].to_text()).unwrap();
            let endpoint =
                if n == 0 { format!("endpoint = \"{endpoint}\"\n") } else { String::new() };
            let file = format!(
                "[site]\nname = \"site-{letter}\"\nkey = \"{letter}.key\"\n\
                 prefixes = [\"10.{}.0.0/16\"]\nwan = \"wan0\"\nlisten = \"{}\"\n\
                 run_dir = \"{}\"\n[[peer]]\nname = \"peer\"\nkey = \"{}\"\n{endpoint}\
                 transport = \"{transport}\"\nprefixes = [\"10.{}.0.0/16\"]\n",
                n + 1,
                listen[n],
                scratch.path().display(),
                keys[1 - n].public(),
                2 - n,
            );
            Gateway::new(&nodes[n], (&scratch, scratch.path()), letter, &file).unwrap()
        });
        let [gwa, gwb] = nodes;
        World { a1, router, gateways, others: [gwa, gwb, b1], scratch }
    }

    /// Starts the gateways; returns the time until they protect each other.
    fn start(&mut self) -> Duration {
        self.gateways[1].start().unwrap();
        self.gateways[0].start().unwrap();
        let started = Instant::now();
        self.gateways.iter_mut().for_each(|gateway| gateway.wait_until_up().unwrap());
        started.elapsed()
    }

    fn status(&self) -> [GatewayStatus; 2] {
        [0, 1].map(|n: usize| self.gateways[n].status().unwrap())
    }

    fn transports(&self) -> [String; 2] {
        self.status().map(|status| status.peers[0].transport.clone())
    }

    /// Packets that a counter of the router has counted.
    fn count(&self, name: &str) -> u64 {
        let text = sh(&self.router, &format!("nft list counter inet fw {name}"));
        let packets = text.split("packets ").nth(1).and_then(|rest| rest.split(' ').next());
        packets.unwrap().parse().unwrap()
    }

    /// Number of `count` pings without an answer.
    fn lost_pings(&self, count: u32) -> usize {
        let ping = Ping { count, interval: Duration::from_millis(5), size: 100 };
        let report = ping.run(&self.a1, "10.2.0.2".parse().unwrap()).unwrap();
        let answered: std::collections::BTreeSet<_> =
            report.round_trips_ms.iter().map(|(number, _)| *number).collect();
        count as usize - answered.len()
    }

    /// Sends forged segments, in the names of both ends of the connection, from the router.
    fn forge(&self, count: u32) {
        // Masquerading keeps the port.
        let seen = self.gateways[1].status().unwrap().peers[0].endpoint.clone();
        let port = seen.unwrap().parse::<SocketAddr>().unwrap().port();
        let at = |ip: &str, port| SocketAddr::new(ip.parse::<IpAddr>().unwrap(), port);
        let pairs = [
            (at("198.51.100.9", port), at("198.51.100.2", 7400)),
            (at("198.51.100.2", 7400), at("192.0.2.1", port)),
        ];
        let (raw, mut outbox) = (RawSockets::open().unwrap(), Outbox::default());
        for n in 0..count {
            for (source, destination) in pairs {
                let mark = Mark { role: Role::Request, count: 0, length: 0, ahead: 0 };
                let (seq, ack) = (n.wrapping_mul(2_654_435_761), n.wrapping_mul(40_503 << 16));
                let (kind, scaled, largest) = (Kind::Data, true, u16::MAX);
                let segment =
                    Segment { source, destination, kind, seq, ack, scaled, largest, mark };
                let mut packet = Vec::new();
                emit(&segment, b"forged", 1500, &mut packet).unwrap();
                // RST, FIN and ACK, SYN, and data.
                packet[33] = [0x04, 0x11, 0x02, 0x18][n as usize % 4];
                outbox.push(&packet, destination, None);
            }
            if outbox.is_full() {
                outbox.flush(raw.socket(true).unwrap());
            }
        }
        outbox.flush(raw.socket(true).unwrap());
    }
}

#[test]
fn where_udp_is_dropped_fake_tcp_protects_until_udp_is_back() {
    let mut world = World::new(false, "auto");
    let found = world.start();
    assert!(found < Duration::from_secs(6), "{found:?}");
    assert_eq!(world.transports(), ["fake-tcp", "fake-tcp"]);
    let lost = world.lost_pings(400);
    let [a, b] = world.status();
    let recovered = a.peer().receiver.recovered + b.peer().receiver.recovered;
    assert!(lost <= 6 && recovered >= 8, "{lost} lost, {recovered} recovered");
    let before = [a, b].map(|of| of.peer().session.handshakes);
    let netns = world.router.netns().clone();
    netns.enter(|| world.forge(10_000)).unwrap();
    assert!(world.lost_pings(100) <= 4);
    let [a, b] = world.status();
    let resets = [a.fake_tcp().resets, b.fake_tcp().resets];
    assert!(resets.iter().all(|resets| *resets >= 1_000), "{resets:?}");
    assert_eq!([a, b].map(|of| of.peer().session.handshakes), before, "the session has ended");
    // The counter leaves out the answers to forged SYNs.
    assert_eq!(world.count("invalid"), 0);
    assert!(world.count("segments") > 100);
    sh(&world.router, "nft flush chain inet fw ban");
    let is_back = || world.transports() == ["udp", "udp"];
    assert!(within(Duration::from_secs(40), is_back), "{}", world.gateways[0].log());
    let is_logged = || world.gateways[0].log().contains("UDP is answered again");
    assert!(within(Duration::from_secs(5), is_logged), "{}", world.gateways[0].log());
}

#[test]
fn fake_tcp_over_ipv6_leaves_the_machine_as_it_was() {
    let mut world = World::new(true, "fake-tcp");
    let rules =
        |world: &World| [0, 1].map(|n: usize| sh(&world.others[n], "nft list ruleset; ss -Htln"));
    let before = rules(&world);
    world.start();
    assert_eq!(world.transports(), ["fake-tcp", "fake-tcp"]);
    assert!(world.lost_pings(200) <= 4);
    assert_eq!(world.count("invalid"), 0);
    for gateway in &mut world.gateways {
        gateway.stop().unwrap();
    }
    assert_eq!(rules(&world), before);
}

#[test]
fn an_upgrade_continues_the_connections_of_fake_tcp() {
    let mut world = World::new(false, "fake-tcp");
    world.start();
    world.lost_pings(200);
    let before = world.status().map(|of| of.peer().session.handshakes);
    let run_dir = world.scratch.path().to_owned();
    let upgraded = ["site-b", "site-a"].map(|site| {
        let pid = upgrade(&run_dir, &["--name", site]).unwrap();
        let lost = world.lost_pings(200);
        assert!(lost <= 4, "{lost} lost after the upgrade of {site}");
        Successor::of(pid)
    });
    assert_eq!(world.transports(), ["fake-tcp", "fake-tcp"]);
    assert_eq!(world.count("invalid"), 0, "the numbers go on");
    let [a, b] = world.status();
    let handshakes = [a, b].map(|of| of.peer().session.handshakes);
    assert_eq!(handshakes, [0, 0], "before: {before:?}");
    upgraded.iter().for_each(Successor::end);
}
