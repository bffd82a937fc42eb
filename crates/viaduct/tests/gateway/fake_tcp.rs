//! Gateways with a middlebox between them ([`viaduct_lab::topology::Middlebox`]). It translates the
//! address of one gateway, drops UDP and the packets that connection tracking calls INVALID, and
//! loses 3 % of all packets.

use std::net::SocketAddr;
use std::time::Duration;

use viaduct_lab::binary::use_binary;
use viaduct_lab::forge::{ACK, FIN, Forgery, PSH, RST, SYN};
use viaduct_lab::gateways::{GatewaySpec, GatewayStatus, Gateways};
use viaduct_lab::topology::programs::Ping;
use viaduct_lab::topology::{Journal, Middlebox, Wan};
use viaduct_lab::upgrade::upgrade;

use super::common::within;

/// Loss at the middlebox, after its connection tracking.
const LOSS: &str = "
    add chain inet fw lossy { type filter hook forward priority -5; }
    add rule inet fw lossy numgen random mod 100 < 3 drop";
/// Number of forged segments. Each gateway gets a quarter of them as resets and FINs.
const FORGED: u64 = 20_000;

struct World {
    gateways: Gateways,
    middlebox: Middlebox,
}

impl World {
    /// Builds the network. The gateways do not run yet; they reach each other by IPv6 if `v6`.
    fn new(v6: bool, transport: &str) -> World {
        World::with_fec(v6, transport, "")
    }

    /// As [`World::new`], with these lines of `[peer.fec]`.
    fn with_fec(v6: bool, transport: &str, fec: &str) -> World {
        use_binary(env!("CARGO_BIN_EXE_viaduct"));
        let middlebox = Middlebox::build(&Wan::Veth, 1500, &Journal::new()).unwrap();
        middlebox.node.run("nft", &[LOSS]).unwrap();
        middlebox.drop_udp(true).unwrap();
        let peer = format!("transport = \"{transport}\"\n");
        let spec = GatewaySpec { peer, ..GatewaySpec::fec(fec) };
        World { gateways: Gateways::beside(&middlebox, v6, &spec).unwrap(), middlebox }
    }

    fn status(&self) -> [GatewayStatus; 2] {
        [&self.gateways.a, &self.gateways.b].map(|gateway| gateway.status().unwrap())
    }

    fn transports(&self) -> [String; 2] {
        self.status().map(|status| status.peers[0].transport.clone())
    }

    /// Packets that a counter of the middlebox has counted.
    fn count(&self, name: &str) -> u64 {
        self.middlebox.counted(name).unwrap().packets
    }

    /// Sends `count` pings. Returns how many got no answer.
    fn lost_pings(&self, count: u32) -> usize {
        let ping = Ping { count, interval: Duration::from_millis(5), size: 100 };
        let report = ping.run(&self.middlebox.a1, self.middlebox.b1.v4().into()).unwrap();
        let answered: std::collections::BTreeSet<_> =
            report.round_trips_ms.iter().map(|(number, _)| *number).collect();
        count as usize - answered.len()
    }

    /// Sends forged segments, with the addresses of both ends of the connection, every second one
    /// with the right numbers. The middlebox's connection tracking does not see them.
    fn forge(&self) {
        // Masquerading keeps the port.
        let seen = self.gateways.b.status().unwrap().peers[0].endpoint.clone();
        let port = seen.unwrap().parse::<SocketAddr>().unwrap().port();
        let flags = &[RST, FIN | ACK, SYN, PSH | ACK];
        let (knows_numbers, seed) = (true, 1);
        self.middlebox.leave_own_untracked().unwrap();
        let forgery = Forgery { count: FORGED, rate: 100_000, flags, knows_numbers, seed };
        forgery.send(&self.middlebox, port).unwrap();
    }
}

#[test]
fn where_udp_is_dropped_fake_tcp_protects_until_udp_is_back() {
    let mut world = World::new(false, "auto");
    let found = world.gateways.start_both().unwrap();
    assert!(found < Duration::from_secs(6), "{found:?}");
    // Gateway B changes to fake TCP when gateway A first uses the new session.
    let is_found = || world.transports() == ["fake-tcp", "fake-tcp"];
    assert!(within(Duration::from_secs(5), is_found), "{:?}", world.transports());
    let lost = world.lost_pings(400);
    let [a, b] = world.status();
    let recovered = a.peer().receiver.recovered + b.peer().receiver.recovered;
    assert!(lost <= 6 && recovered >= 8, "{lost} lost, {recovered} recovered");
    let before = [a, b].map(|of| of.peer().session.handshakes);
    world.forge();
    assert!(world.lost_pings(100) <= 4);
    let [a, b] = world.status();
    let resets = [a.fake_tcp().resets, b.fake_tcp().resets];
    assert!(resets.iter().all(|resets| *resets >= FORGED / 20), "{resets:?}");
    assert_eq!([a, b].map(|of| of.peer().session.handshakes), before, "the session has ended");
    // The counter leaves out the answers to forged SYNs.
    assert_eq!(world.count("invalid"), 0);
    assert!(world.count("to_b") > 100);
    world.middlebox.drop_udp(false).unwrap();
    let is_back = || world.transports() == ["udp", "udp"];
    assert!(within(Duration::from_secs(40), is_back), "{}", world.gateways.a.log());
    let is_logged = || world.gateways.a.log().contains("UDP is answered again");
    assert!(within(Duration::from_secs(5), is_logged), "{}", world.gateways.a.log());
}

#[test]
fn where_udp_is_throttled_fake_tcp_protects() {
    // With packets as sparse as these, this code sends some 1,000 datagrams a second.
    let mut world = World::with_fec(false, "auto", "code = \"layered\"\nr = 8\nc = 3\n");
    world.middlebox.drop_udp(false).unwrap();
    world.gateways.start_both().unwrap();
    world.lost_pings(100);
    assert_eq!(world.transports(), ["udp", "udp"]);
    let limit =
        "add rule inet fw ban meta l4proto udp limit rate over 100/second burst 5 packets drop";
    world.middlebox.node.run("nft", &[limit]).unwrap();
    let is_left = || {
        world.lost_pings(400);
        world.transports() == ["fake-tcp", "fake-tcp"]
    };
    assert!(within(Duration::from_secs(60), is_left), "{}", world.gateways.a.log());
    // Either gateway may have changed first, and the other followed. If no report passes for a
    // moment, the handshake over fake TCP may have been answered first.
    let reasons = world.status().map(|of| of.peers[0].transport_reason.clone());
    let is_own =
        |reason: &String| ["UDP is throttled", "UDP is not answered"].contains(&&reason[..]);
    let is_right = |reason: &String| is_own(reason) || reason == "the peer has chosen it";
    assert!(reasons.iter().any(is_own) && reasons.iter().all(is_right), "{reasons:?}");
    let lost = world.lost_pings(400);
    assert!(lost <= 6, "{lost} lost");
}

#[test]
fn a_session_outlives_a_changed_address_of_nat() {
    for transport in ["udp", "fake-tcp"] {
        let mut world = World::new(false, transport);
        world.middlebox.drop_udp(transport != "udp").unwrap();
        world.gateways.start_both().unwrap();
        world.lost_pings(200);
        let before = world.status().map(|of| of.peer().session.handshakes);
        world.middlebox.renumber().unwrap();
        let is_moved = || {
            world.lost_pings(20);
            let endpoint = world.status()[1].peers[0].endpoint.clone();
            endpoint.is_some_and(|at| at.starts_with("198.51.100.10:"))
        };
        assert!(within(Duration::from_secs(8), is_moved), "{transport}: {:?}", world.status());
        let lost = world.lost_pings(400);
        assert!(lost <= 6, "{transport}: {lost} lost");
        let after = world.status().map(|of| of.peer().session.handshakes);
        assert_eq!(after, before, "{transport}: the session has continued");
    }
}

#[test]
fn fake_tcp_over_ipv6_leaves_the_machine_as_it_was() {
    let mut world = World::new(true, "fake-tcp");
    let rules = |world: &World| {
        let nodes = world.middlebox.gateways.each_ref();
        nodes.map(|node| node.run("sh", &["-ec", "nft list ruleset; ss -Htln"]).unwrap())
    };
    let before = rules(&world);
    world.gateways.start_both().unwrap();
    assert_eq!(world.transports(), ["fake-tcp", "fake-tcp"]);
    assert!(world.lost_pings(200) <= 4);
    assert_eq!(world.count("invalid"), 0);
    world.gateways.a.stop().unwrap();
    world.gateways.b.stop().unwrap();
    assert_eq!(rules(&world), before);
}

#[test]
fn an_upgrade_continues_the_connections_of_fake_tcp() {
    let mut world = World::new(false, "fake-tcp");
    world.gateways.start_both().unwrap();
    world.lost_pings(200);
    let before = world.status().map(|of| of.peer().session.handshakes);
    let run_dir = world.gateways.directory().to_owned();
    let upgraded = ["site-b", "site-a"].map(|site| {
        let process = upgrade(&run_dir, &["--name", site]).unwrap();
        let lost = world.lost_pings(200);
        assert!(lost <= 4, "{lost} lost after the upgrade of {site}");
        process
    });
    assert_eq!(world.transports(), ["fake-tcp", "fake-tcp"]);
    assert_eq!(world.count("invalid"), 0, "the new processes continue the sequence numbers");
    let [a, b] = world.status();
    let handshakes = [a, b].map(|of| of.peer().session.handshakes);
    assert_eq!(handshakes, [0, 0], "before: {before:?}");
    upgraded.iter().for_each(|process| process.end().unwrap());
}
