//! Real gateways in a lab world: effects on hosts, and the state that a gateway leaves behind.
#![allow(clippy::unwrap_used)] // a test may panic

mod cache;
#[path = "../common/mod.rs"]
mod common;
mod fake_tcp;
mod fleet;
mod lanes;
mod paths;
mod racks;
mod setup;
mod split;
mod tls;
mod unaltered;
mod upgrade;
mod watchdog;

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use viaduct_lab::binary::use_binary;
use viaduct_lab::gateways::{Gateway, GatewaySpec};
use viaduct_lab::topology::programs::{Iperf, Ping};
use viaduct_lab::topology::{DumbbellSpec, Journal, Node};
use viaduct_lab::world::World;
use viaduct_proto::repair::stats::SenderStats;
use viaduct_sys::capture::ring::{Ring, RingConfig};

fn world(mtu: (u32, u32), link: &str) -> World {
    use_binary(env!("CARGO_BIN_EXE_viaduct"));
    World::new(mtu, &link.parse().unwrap(), 1, &Journal::new()).unwrap()
}

/// Waits for at most 15 s until the condition holds.
fn eventually(gateway: &Gateway, what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(15);
    while !done() {
        assert!(Instant::now() < deadline, "{what}: {}", gateway.log());
        thread::sleep(Duration::from_millis(50));
    }
}

/// Number of 300 pings of `size` bytes that got no answer.
fn lost_pings(world: &World, v6: bool, size: u32) -> usize {
    let ping = Ping { count: 300, interval: Duration::from_millis(5), size };
    let b1 = world.b1();
    let to = if v6 { b1.v6().unwrap().into() } else { b1.v4().into() };
    let report = ping.run(world.a1(), to).unwrap();
    // A reply may arrive twice, if its packet was late and was recovered as well.
    let answered: BTreeSet<_> = report.round_trips_ms.iter().map(|(number, _)| *number).collect();
    300 - answered.len()
}

#[test]
fn pings_of_every_kind_get_through_a_lossy_link() {
    let mut world = world((1500, 1500), "rate=100M,delay=5ms,loss=3%");
    let plain = lost_pings(&world, false, 100);
    assert!(plain >= 5, "the link loses 6 % of round trips, but only {plain} of 300 were lost");
    world.protect(&GatewaySpec::default()).unwrap();
    // Fragments are recovered from the window's repairs, or on request.
    for (kind, v6, size) in [("IPv4", false, 100), ("IPv6", true, 100), ("in parts", false, 4000)] {
        let lost = lost_pings(&world, v6, size);
        assert!(lost <= 6, "{kind}: {lost}");
    }
}

#[test]
fn jumbo_packets_are_protected() {
    let mut world = world((8000, 9000), "rate=500M,delay=5ms,loss=3%");
    world.protect(&GatewaySpec::default().host_mtu(8000)).unwrap();
    let lost = lost_pings(&world, false, 7900);
    let shell = world.gateways().unwrap().a.status().unwrap().shell();
    assert!(lost <= 6, "{lost} {shell:?}");
    let status = world.gateways().unwrap().a.status().unwrap();
    assert_eq!((status.shell().truncated, status.shell().send_failed), (0, 0));
    assert_eq!(status.kept_below, [None]);
}

/// Gateways that make hosts send shorter packets.
fn short() -> GatewaySpec {
    GatewaySpec::fec("lower_mtu = true\n")
}

#[test]
fn with_equal_mtus_nothing_is_altered_and_repairs_are_fragmented() {
    let mut world = world((1500, 1500), "rate=200M,delay=20ms,queue=50ms,loss=1%");
    let flow = Iperf::tcp("cubic", 4, 2);
    let plain = flow.run(world.a1(), world.b1()).unwrap().received;
    let node = world.dumbbell.gateway_a().clone();
    let altered = || {
        let routes = ["-4", "-6"].map(|family| node.run("ip", &[family, "route"]).unwrap());
        // Excludes routes by the gateway's own interface, through which recovered packets enter the
        // kernel.
        let routes = routes.concat();
        let routes: Vec<_> = routes.lines().filter(|of| !of.contains(" vd-")).collect();
        format!("{routes:?} {}", node.run("nft", &["list", "ruleset"]).unwrap())
    };
    let before = altered();
    world.protect(&GatewaySpec::default()).unwrap();
    assert_eq!(altered(), before);
    let protected = flow.run(world.a1(), world.b1()).unwrap().received;
    assert_eq!(altered(), before);
    let gateways = world.gateways().unwrap();
    let status = gateways.a.status().unwrap();
    assert_eq!((status.kept_below[0], status.shell().send_failed), (None, 0));
    assert!(protected > 5.0 * plain, "{protected} against {plain}");
    // Most packets are as long as the WAN's MTU, so their repairs take two datagrams each. On a
    // busy machine the gateway misses some packets.
    let (sender, shell) = (status.peer().sender, status.shell());
    let too_long = sender.unprotected.saturating_sub(shell.tap_drops_out + shell.tap_late_out);
    assert!(too_long * 100 < sender.packets, "{sender:?}");
    let receiver = gateways.b.status().unwrap().peer().receiver;
    assert!(receiver.recovered >= 20, "{receiver:?}");
}

#[test]
fn with_equal_mtus_and_lower_mtu_hosts_send_shorter_packets() {
    let mut world = world((1500, 1500), "rate=200M,delay=20ms,queue=50ms,loss=1%");
    let flow = Iperf::tcp("cubic", 4, 2);
    let plain = flow.run(world.a1(), world.b1()).unwrap().received;
    // The plain flow must have ended: its segments, which may be retransmitted, are as long as the
    // WAN's MTU.
    let connected = ["-Htn", "state", "connected", "exclude", "time-wait"];
    let ended = |host: &Node| host.run("ss", &connected).unwrap().trim().is_empty();
    let ended = || ended(world.a1()) && ended(world.b1());
    assert!(common::within(Duration::from_secs(20), ended), "the plain flow has not ended");
    world.protect(&short()).unwrap();
    let protected = flow.run(world.a1(), world.b1()).unwrap().received;
    let status = world.gateways().unwrap().a.status().unwrap();
    let kept = status.kept_below[0].expect("packets are not kept short");
    let ruleset = world.dumbbell.gateway_a().run("nft", &["list", "ruleset"]).unwrap();
    assert!((1400..1430).contains(&kept) && ruleset.contains("maxseg"), "{kept} {ruleset}");
    assert_eq!(status.shell().send_failed, 0, "a repair was too long for the WAN");
    // On a busy machine the gateway misses some packets.
    let unprotected = status.peer().sender.unprotected;
    let missed = status.shell().tap_drops_out + status.shell().tap_late_out;
    assert_eq!(unprotected, missed, "TCP segments were too long to be protected");
    assert!(protected > 5.0 * plain, "{protected} against {plain}");
}

#[test]
fn the_gateways_own_queue_makes_repairs_yield() {
    let mut world = world((1200, 1500), "rate=100M,delay=10ms,queue=50ms,loss=1%");
    let shaper = "qdisc replace dev wan0 root tbf rate 20mbit burst 15k limit 60k";
    let gateway = world.dumbbell.gateway_a().clone();
    gateway.run("tc", &shaper.split(' ').collect::<Vec<_>>()).unwrap();
    world.protect(&GatewaySpec::default()).unwrap();
    let sent = |world: &mut World| world.gateways().unwrap().a.status().unwrap().peer().sender;
    let (a1, b1) = (world.a1().clone(), world.b1().clone());
    let mut overhead = |megabits: u64| {
        let stream = Iperf::udp(1_000_000 * megabits, 1_172, 9);
        let (a1, b1) = (a1.clone(), b1.clone());
        let flow = thread::spawn(move || stream.run(&a1, &b1));
        // Long enough for the gateway to learn why packets are lost.
        thread::sleep(Duration::from_secs(5));
        let before = sent(&mut world);
        flow.join().unwrap().unwrap();
        let after = sent(&mut world);
        let share = |of: fn(&SenderStats) -> u64| (of(&after) - of(&before)) as f64;
        share(|of| of.repair_bytes) / share(|of| of.bytes)
    };
    let (fits, too_much) = (overhead(15), overhead(24));
    let dropped = world.gateways().unwrap().a.status().unwrap().shell().wan_drops;
    assert!(dropped > 1_000 && fits > 0.025 && too_much < 0.015, "{dropped} {fits} {too_much}");
}

#[test]
fn a_gateway_may_be_killed_at_any_time() {
    let mut world = world((1200, 1500), "rate=50M,delay=10ms,queue=50ms,loss=0.2%");
    world.protect(&GatewaySpec::default().host_mtu(1200)).unwrap();
    let (a1, b1) = (world.a1().clone(), world.b1().clone());
    let transfer = thread::spawn(move || Iperf::tcp("cubic", 8, 0).run(&a1, &b1));
    for side in ["a", "b"] {
        thread::sleep(Duration::from_millis(1_000));
        let gateways = world.gateways().unwrap();
        let killed = if side == "a" { &mut gateways.a } else { &mut gateways.b };
        killed.kill().unwrap();
        thread::sleep(Duration::from_millis(500));
        killed.start().unwrap();
        gateways.wait_until_up().unwrap();
        let before = gateways.b.status().unwrap().peer().receiver.recovered;
        eventually(&gateways.b, &format!("protection after the kill of {side}"), || {
            gateways.b.status().unwrap().peer().receiver.recovered > before
        });
    }
    let report = transfer.join().unwrap().expect("the connection has not survived the kills");
    assert!(report.received > 1e6, "{report:?}");
}

/// Returns the state that a gateway changes on its machine, as the machine's own tools print it.
fn system(node: &Node) -> String {
    let offloads = node.run("ethtool", &["-k", "wan0"]).unwrap();
    let routes = node.run("ip", &["route"]).unwrap() + &node.run("ip", &["-6", "route"]).unwrap();
    let rules = node.run("nft", &["list", "ruleset"]).unwrap();
    let links = node.run("ip", &["-br", "link"]).unwrap();
    let routes: String =
        routes.lines().filter(|l| !l.starts_with("fe80")).collect::<Vec<_>>().join("\n");
    let links: Vec<_> = links.lines().filter_map(|l| l.split_whitespace().next()).collect();
    format!("{offloads}\n{routes}\n{rules}\n{links:?}")
}

#[test]
fn changes_to_the_system_are_reverted() {
    let mut world = world((1500, 1500), "rate=100M,delay=1ms");
    let node = world.dumbbell.gateway_a().clone();
    let before = system(&node);
    let gateways = world.protect(&short()).unwrap();
    let during = system(&node);
    assert_ne!(before, during);
    gateways.a.kill().unwrap();
    gateways.a.start().unwrap();
    gateways.a.wait_until_up().unwrap();
    assert_eq!(system(&node), during, "a start after a kill makes the same changes once");
    gateways.a.stop().unwrap();
    assert_eq!(system(&node), before);
    // Changes are also reverted if the gateway is stopped before it is up.
    for millis in [10, 30, 60, 100, 200] {
        gateways.a.start().unwrap();
        thread::sleep(Duration::from_millis(millis));
        gateways.a.stop().unwrap();
        assert_eq!(system(&node), before, "after {millis} ms");
    }
}

#[test]
fn observing_gateways_change_nothing_and_count_offloaded_segments() {
    use_binary(env!("CARGO_BIN_EXE_viaduct"));
    let mut world = World::build(&DumbbellSpec::default(), &Journal::new()).unwrap();
    let nodes = [world.dumbbell.gateway_a().clone(), world.dumbbell.gateway_b().clone()];
    // With these offloads, long packets of hosts reach the tap unsegmented, and the last device
    // segments them.
    nodes[0].run("ethtool", &["-K", "wan0", "tso", "on", "gso", "on"]).unwrap();
    world.a1().run("ethtool", &["-K", "eth0", "tso", "on"]).unwrap();
    let before = nodes.each_ref().map(system);
    world.protect(&GatewaySpec::fec("code = \"observe\"\n")).unwrap();
    assert_eq!(nodes.each_ref().map(system), before);
    let stream = Iperf::tcp("cubic", 3, 0).paced(100_000_000, 1 << 16);
    let received = stream.run(world.a1(), world.b1()).unwrap().received;
    thread::sleep(Duration::from_millis(1_500));
    let gateways = world.gateways().unwrap();
    let [a, b] = [&gateways.a, &gateways.b].map(|gateway| gateway.status().unwrap());
    for (shell, tap) in [(a.shell(), &a), (b.shell(), &b)] {
        assert_eq!((shell.truncated, shell.unfinished), (0, 0), "{:?}", tap.peer());
    }
    let (sender, receiver) = (a.peer().sender, b.peer().receiver);
    let least = received * 3.0 / 8.0 / 1448.0;
    assert!(sender.packets as f64 > 0.95 * least, "{least}: {sender:?}");
    // Each packet has the same name at both ends, because both gateways segment in the same way.
    assert_eq!((receiver.link.lost, receiver.late), (0, 0), "{receiver:?}");
    assert!(receiver.link.covered as f64 > 0.95 * least, "{least}: {receiver:?}");
    // Repairs require changes to the system. A reload makes these changes, and the gateway reverts
    // them when it exits.
    let text = std::fs::read_to_string(gateways.a.config()).unwrap();
    std::fs::write(gateways.a.config(), text.replace("\"observe\"", "\"auto\"")).unwrap();
    gateways.a.signal(Signal::HUP).unwrap();
    eventually(&gateways.a, "a reload", || gateways.a.log().contains("INFO reloaded"));
    assert_ne!(system(&nodes[0]), before[0]);
    assert_eq!(lost_pings(&world, false, 100), 0);
    let status = world.gateways().unwrap().a.status().unwrap();
    assert!(status.peer().sender.protected >= 300, "{:?}", status.peer().sender);
    world.gateways().unwrap().a.stop().unwrap();
    assert_eq!(system(&nodes[0]), before[0]);
}

#[test]
fn a_reload_takes_effect_completely_or_not_at_all() {
    let mut world = world((1200, 1500), "rate=100M,delay=5ms,loss=3%");
    world.protect(&GatewaySpec::default().host_mtu(1200)).unwrap();
    assert!(lost_pings(&world, false, 100) <= 6);
    let gateways = world.gateways().unwrap();
    let good = std::fs::read_to_string(gateways.a.config()).unwrap();
    let reload = |gateway: &Gateway, text: &str, expected: &str| {
        std::fs::write(gateway.config(), text).unwrap();
        gateway.signal(Signal::HUP).unwrap();
        eventually(gateway, expected, || gateway.log().contains(expected));
    };
    reload(&gateways.a, &good.replace("[peer.fec]", "[peer.fec]\nr = 0"), "ERROR not reloaded");
    let other = "[peer.fec]\ncode = \"reed-solomon\"\nr = 10\nc = 4\n";
    reload(&gateways.a, &good.replace("[peer.fec]", other), "INFO reloaded");
    // Counters are published a few times a second.
    thread::sleep(Duration::from_millis(300));
    let before = gateways.a.status().unwrap().peer().sender.protected;
    // On a busy machine the gateway misses some packets.
    assert!(before >= 250, "a reload must keep the counters: {before}");
    assert!(lost_pings(&world, false, 100) <= 6);
    let after = world.gateways().unwrap().a.status().unwrap().peer();
    assert!(after.up && after.sender.protected >= before + 250, "{after:?}");
}

/// Sends packets that an attacker on the WAN can send, while `going` is true: repeated, truncated
/// and bit-flipped repairs, and noise. Returns their number.
fn attack(node: &Node, going: &AtomicBool) -> u64 {
    node.netns()
        .enter(|| {
            let config = RingConfig { max_packet: 1500, bytes: 1 << 20 };
            let mut tap = Ring::open("wan0", config).unwrap();
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            let target = "192.0.2.2:7400";
            let (mut sent, mut sample) = (0u64, vec![3u8; 200]);
            while going.load(Ordering::Relaxed) {
                while let Some(frame) = tap.next() {
                    if frame.len() > 60 && frame[9] == 17 && frame[22..24] == 7400u16.to_be_bytes()
                    {
                        sample = frame[28..].to_vec();
                    }
                }
                for kind in 0..64u64 {
                    let mut datagram = sample.clone();
                    let at = (sent * 31 + kind) as usize % datagram.len();
                    match kind % 4 {
                        0 => {}
                        1 => datagram.truncate(at),
                        2 => datagram[at] ^= 1 << (sent % 8),
                        _ => datagram
                            .iter_mut()
                            .for_each(|b| *b = b.wrapping_mul(31).wrapping_add(7)),
                    }
                    sent += u64::from(socket.send_to(&datagram, target).is_ok());
                }
                thread::sleep(Duration::from_millis(3));
            }
            sent
        })
        .unwrap()
}

#[test]
fn forged_repairs_are_refused_and_disturb_nothing() {
    let mut world = world((1200, 1500), "rate=200M,delay=5ms,loss=3%");
    world.protect(&GatewaySpec::default().host_mtu(1200)).unwrap();
    let going = AtomicBool::new(true);
    let node = world.dumbbell.gateway_a().clone();
    let (sent, lost) = thread::scope(|scope| {
        let attacker = scope.spawn(|| attack(&node, &going));
        let lost = lost_pings(&world, false, 100);
        going.store(false, Ordering::Relaxed);
        (attacker.join().unwrap(), lost)
    });
    thread::sleep(Duration::from_millis(300));
    let status = world.gateways().unwrap().b.status().unwrap();
    let (receiver, session) = (status.peer().receiver, status.peer().session);
    assert!(sent > 5_000, "{sent}");
    assert!(lost <= 2, "recovery did not continue: {lost} pings lost");
    assert!(session.forged > 0 && session.replayed > 0, "{session:?}");
    assert_eq!(status.shell().injected, receiver.recovered, "only lost packets may be injected");
    assert_eq!((receiver.garbled, receiver.foreign, receiver.malformed), (0, 0, 0));
    // Every packet that B's hosts received was sent by A's hosts: 300 requests and a few others.
    assert!(receiver.packets + receiver.recovered <= 310, "{receiver:?}");
}

/// Processor time of the gateway's process.
fn cpu(pid: Pid) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap();
    let words: Vec<_> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let ticks: u64 = words[11].parse::<u64>().unwrap() + words[12].parse::<u64>().unwrap();
    Duration::from_millis(10 * ticks)
}

#[test]
fn a_wan_that_goes_down_comes_back_and_one_that_is_deleted_ends_the_gateway() {
    use_binary(env!("CARGO_BIN_EXE_viaduct"));
    let mut world = World::build(&DumbbellSpec::default(), &Journal::new()).unwrap();
    let node = world.dumbbell.gateway_b().clone();
    world.protect(&GatewaySpec::default()).unwrap();
    let pid = world.gateways().unwrap().b.pid().unwrap();
    let routes = node.run("ip", &["route", "show", "via", "192.0.2.1"]).unwrap();
    for to in ["down", "up"] {
        node.run("ip", &["link", "set", "wan0", to]).unwrap();
    }
    for route in routes.lines() {
        node.run("sh", &["-c", &format!("ip route replace {route} via 192.0.2.1")]).unwrap();
    }
    thread::sleep(Duration::from_millis(300));
    let before = cpu(pid);
    thread::sleep(Duration::from_secs(1));
    assert!(cpu(pid) - before < Duration::from_millis(300), "the gateway spins");
    assert_eq!(lost_pings(&world, false, 100), 0);
    node.run("ip", &["link", "del", "wan0"]).unwrap();
    let gateway = &world.gateways().unwrap().b;
    eventually(gateway, "the end", || gateway.log().contains("the WAN interface was deleted"));
}

#[test]
fn the_route_mtu_follows_the_wan_mtu() {
    let mut world = world((1500, 1500), "rate=100M,delay=1ms");
    let node = world.dumbbell.gateway_a().clone();
    let route = "10.2.0.0/16";
    let routes = || node.run("ip", &["route", "show", route]).unwrap();
    let before = routes();
    let gateway = &world.protect(&short()).unwrap().a;
    let kept = || gateway.status().unwrap().kept_below[0].unwrap();
    let first = kept();
    node.run("ip", &["link", "set", "wan0", "mtu", "1480"]).unwrap();
    eventually(gateway, "a smaller MTU", || kept() == first - 20);
    assert!(routes().contains(&format!("mtu lock {}", first - 20)), "{}", routes());
    for to in ["down", "up"] {
        node.run("ip", &["link", "set", "wan0", to]).unwrap();
    }
    thread::sleep(Duration::from_millis(1_500));
    // The route comes back later than the interface, as with a network manager.
    node.run("sh", &["-c", &format!("ip route replace {}", before.trim())]).unwrap();
    eventually(gateway, "a flap", || routes().contains("mtu lock"));
    // If an operator replaces the route, the MTU of the new one is lowered. The source address
    // distinguishes the new route from the old one.
    let new = ["via", "192.0.2.2", "dev", "wan0", "src", "192.0.2.1"];
    node.run("ip", &[&["route", "replace", route][..], &new].concat()).unwrap();
    let is_lowered = || routes().contains("src 192.0.2.1") && routes().contains("mtu lock");
    eventually(gateway, "another route", is_lowered);
}

#[test]
fn an_mtu_too_small_for_repairs_is_reported_until_it_is_raised() {
    let mut world = world((1500, 1500), "rate=100M,delay=1ms");
    let node = world.dumbbell.gateway_a().clone();
    let six = "fd00:2::/48";
    let room = |route: &str| {
        let family = if route == six { "-6" } else { "-4" };
        node.run("ip", &[family, "route", "show", route]).unwrap().contains("mtu lock")
    };
    let gateway = &world.protect(&short()).unwrap().a;
    let trouble = || gateway.status().unwrap().trouble.unwrap_or_default();
    node.run("ip", &["link", "set", "wan0", "mtu", "1350"]).unwrap();
    eventually(gateway, "too small an MTU", || trouble().contains("MTU of 1350"));
    assert_eq!(gateway.log().matches("WARN the WAN has changed").count(), 1, "{}", gateway.log());
    node.run("ip", &["link", "set", "wan0", "mtu", "1500"]).unwrap();
    eventually(gateway, "room again", || trouble().is_empty());
    // A reload takes effect although a peer has no route, and the gateway waits for that route.
    node.run("ip", &["-6", "route", "flush", six]).unwrap();
    gateway.signal(Signal::HUP).unwrap();
    eventually(gateway, "the reload", || gateway.log().contains("INFO reloaded"));
    eventually(gateway, "the missing route", || trouble().contains("no route to peer"));
    eventually(gateway, "IPv4's room", || room("10.2.0.0/16"));
    assert!(node.run("nft", &["list", "ruleset"]).unwrap().contains("maxseg"));
    node.run("ip", &["-6", "route", "add", six, "via", "2001:db8::2"]).unwrap();
    eventually(gateway, "IPv6's room", || room(six) && trouble().is_empty());
}

#[test]
fn a_stopped_peer_is_down_in_status_and_log() {
    let mut world = world((1500, 1500), "rate=100M,delay=5ms");
    let gateways = world.protect(&GatewaySpec::default()).unwrap();
    gateways.b.stop().unwrap();
    eventually(&gateways.a, "down", || !gateways.a.status().unwrap().peer().up);
    eventually(&gateways.a, "logged", || gateways.a.log().contains("does not answer"));
    let down = gateways.a.status().unwrap().peers[0].clone();
    assert_eq!(down.state, "down");
    let reason = down.reason.unwrap();
    assert!(reason.contains("does not answer any more, last handshake"), "{reason}");
    gateways.b.start().unwrap();
    gateways.wait_until_up().unwrap();
    let up = || gateways.a.status().unwrap().peers[0].state == "up";
    eventually(&gateways.a, "up again", up);
    // If the interface itself is down, that is the reported reason.
    let node = world.dumbbell.gateway_a().clone();
    node.run("ip", &["link", "set", "wan0", "down"]).unwrap();
    let gateway = &world.gateways().unwrap().a;
    let why = || gateway.status().unwrap().peers[0].reason.clone().unwrap_or_default();
    eventually(gateway, "the WAN", || why().starts_with("wan0 is down"));
}

#[test]
fn a_route_missing_at_the_start_is_waited_for() {
    let mut world = world((1500, 1500), "rate=100M,delay=1ms");
    let node = world.dumbbell.gateway_a().clone();
    let gateways = world.protect(&short()).unwrap();
    gateways.a.stop().unwrap();
    let six = "fd00:2::/48";
    node.run("ip", &["-6", "route", "flush", six]).unwrap();
    gateways.a.start().unwrap();
    gateways.a.wait_until_up().unwrap();
    let gateway = &gateways.a;
    eventually(gateway, "the missing route", || gateway.log().contains("no route to peer"));
    let room = |family: &str, route: &str| {
        node.run("ip", &[family, "route", "show", route]).unwrap().contains("mtu lock")
    };
    assert!(room("-4", "10.2.0.0/16"), "the other route is not lowered");
    let trouble = || gateway.status().unwrap().trouble.unwrap_or_default();
    assert!(trouble().contains("no route to peer"), "{}", trouble());
    node.run("ip", &["-6", "route", "add", six, "via", "2001:db8::2"]).unwrap();
    eventually(gateway, "the room", || room("-6", six) && trouble().is_empty());
}
