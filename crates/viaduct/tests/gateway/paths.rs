//! Gateways with two WANs each: paths that die, classes of packets, and changes to the machine.

use std::cell::Cell;
use std::fs;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use viaduct_lab::emulator::{Direction, Emulator};
use viaduct_lab::gateways::GatewaySpec;
use viaduct_lab::topology::programs::{Carrier, Message, TimedMessages};
use viaduct_lab::upgrade::upgrade;
use viaduct_lab::world::World;
use viaduct_proto::repair::status::PathStatus;

use super::{eventually, system, world};

/// Link of each path, with a round trip of 40 ms.
const LINK: &str = "rate=50M,delay=20ms";

/// World with two WANs, and gateways that know both paths.
fn two_wans(spec: GatewaySpec) -> (World, Emulator) {
    let mut world = world((1500, 1500), LINK);
    let second = world.dumbbell.add_wan(LINK.parse().unwrap(), 2).unwrap();
    let spec = GatewaySpec { two_wans: true, ..spec };
    world.protect(&spec).unwrap().wait_for_paths(true).unwrap();
    (world, second)
}

fn set(emulator: &Emulator, link: &str) {
    for direction in [Direction::AtoB, Direction::BtoA] {
        emulator.set(direction, link.parse().unwrap()).unwrap();
    }
}

/// Sends messages from A1 to B1, 100 a second, and calls `after` when one second has passed.
fn messages_and(world: &World, seconds: u64, after: impl FnOnce()) -> Vec<Message> {
    let (a1, b1) = (world.a1().clone(), world.b1().clone());
    let sent = thread::spawn(move || stream(seconds).run(&a1, &b1).unwrap());
    thread::sleep(Duration::from_secs(1));
    after();
    sent.join().unwrap()
}

fn messages(world: &World, seconds: u64) -> Vec<Message> {
    stream(seconds).run(world.a1(), world.b1()).unwrap()
}

fn stream(seconds: u64) -> TimedMessages {
    TimedMessages {
        carrier: Carrier::Udp,
        size: 200,
        bits_per_second: 160_000.0,
        duration: Duration::from_secs(seconds),
        timeout: Duration::from_secs(2),
        port: 6_000,
    }
}

/// States of the paths at gateway A.
fn paths(world: &World) -> Vec<PathStatus> {
    world.running().unwrap().a.status().unwrap().peers.remove(0).paths
}

#[test]
fn messages_continue_on_the_other_path_when_a_path_dies() {
    let (world, _second) = two_wans(GatewaySpec::default());
    let first = world.emulator().unwrap();
    // The losses of each path are measured separately, and repairs take the other path.
    set(first, &format!("{LINK},loss=3%"));
    messages(&world, 3);
    let known = || paths(&world)[0].reported.1 > 0 && paths(&world)[0].sent >= 300;
    eventually(&world.running().unwrap().a, "losses of the first path", known);
    let found = paths(&world);
    let names: Vec<_> = found.iter().map(|path| (&path.wan[..], &path.repairs_by[..])).collect();
    assert_eq!(names, [("first", "second"), ("second", "first")]);
    assert!(found[1].reported == (0, 0) && found[1].sent == 0, "{found:?}");
    let rtts: Vec<_> = found.iter().map(|path| path.rtt_ms.unwrap()).collect();
    assert!(rtts.iter().all(|rtt| (40.0..60.0).contains(rtt)), "{rtts:?}");
    let sent = messages_and(&world, 4, || set(first, &format!("{LINK},loss=100%")));
    let lost = sent.iter().filter(|message| message.latency.is_none()).count();
    assert!(lost <= 2, "{lost} of {}", sent.len());
    let gateways = world.running().unwrap();
    let is_left = || {
        let found = paths(&world);
        !found[0].up && found[1].up && found[1].sent > 200
    };
    eventually(&gateways.a, "the packets on the second path", is_left);
    let log = gateways.a.log();
    assert!(log.contains("the path by first is down: its packets take second"), "{log}");
    set(first, LINK);
    eventually(&gateways.a, "the first path", || paths(&world)[0].up);
    let before = paths(&world)[0].sent;
    messages(&world, 1);
    let returns = || paths(&world)[0].sent >= before + 90;
    eventually(&gateways.a, "packets on the first path again", returns);
    assert_eq!(gateways.b.status().unwrap().peer().session.forged, 0);
}

#[test]
fn classes_take_their_wan_and_duplicates_the_other() {
    let class = "[[site.class]]\nname = \"datagrams\"\nprotocols = [\"udp\"]\nwan = \"second\"\n";
    let duplicate =
        "[[peer.class]]\nname = \"all\"\nprotocols = [\"udp\"]\nrepairs = \"duplicate\"\n";
    let spec = GatewaySpec {
        tables: class.to_owned(),
        ..GatewaySpec::fec(&format!("path = \"other\"\n{duplicate}"))
    };
    let (mut world, second) = two_wans(spec);
    let sent = messages(&world, 1);
    let taken = || paths(&world)[1].sent >= sent.len() as u64;
    eventually(&world.running().unwrap().a, "the packets of the class", taken);
    let found = paths(&world);
    assert!(found[0].sent < 10, "{found:?}");
    let copies = world.sender().unwrap().copies;
    assert!(copies >= sent.len() as u64, "{copies}");
    // None of the copies is delivered as a duplicate, or used for recovery.
    let receiver = world.receiver().unwrap();
    assert!(receiver.recovered <= 2, "{receiver:?}");
    let sent = messages_and(&world, 3, || set(&second, &format!("{LINK},loss=100%")));
    let lost = sent.iter().filter(|message| message.latency.is_none()).count();
    assert_eq!(lost, 0, "of {}", sent.len());
    // A reload changes classes.
    set(&second, LINK);
    let gateways = world.gateways().unwrap();
    gateways.wait_for_paths(true).unwrap();
    let config = gateways.a.config().to_owned();
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("wan = \"second\"", "wan = \"first\"")).unwrap();
    gateways.a.signal(Signal::HUP).unwrap();
    eventually(&gateways.a, "the reload", || gateways.a.log().contains("reloaded"));
    let before = paths(&world)[0].sent;
    messages(&world, 1);
    let taken = || paths(&world)[0].sent >= before + 90;
    eventually(&world.running().unwrap().a, "the other class", taken);
    let gateways = world.gateways().unwrap();
    fs::write(&config, text.replace("name = \"second\"\ninterface", "name = \"2nd\"\ninterface"))
        .unwrap();
    gateways.a.signal(Signal::HUP).unwrap();
    eventually(&gateways.a, "a refusal", || gateways.a.log().contains("is not a WAN"));
}

#[test]
fn both_paths_continue_in_another_process() {
    let (world, second) = two_wans(GatewaySpec::default());
    let node = world.dumbbell.gateway_a();
    let rules = || node.run("nft", &["list", "ruleset"]).unwrap();
    let (gateways, before) = (world.running().unwrap(), rules());
    let handshakes = || gateways.b.status().unwrap().peer().session.handshakes;
    // At the start the handshakes of both sides cross; an unanswered handshake is repeated after a
    // second.
    let last = Cell::new(0);
    eventually(&gateways.a, "no handshake in progress", || {
        thread::sleep(Duration::from_millis(2_200));
        last.replace(handshakes()) == last.get()
    });
    let sessions = last.get();
    let new = upgrade(gateways.directory(), &["--name", "site-a"]).unwrap();
    eventually(&gateways.a, "both paths", || paths(&world).iter().all(|path| path.up));
    assert_eq!((gateways.a.status().unwrap().pid, handshakes()), (new.id(), sessions));
    eventually(&gateways.a, "the rules as before", || rules() == before);
    let first = world.emulator().unwrap();
    let sent = messages_and(&world, 3, || set(first, &format!("{LINK},loss=100%")));
    let lost = sent.iter().filter(|message| message.latency.is_none()).count();
    assert!(lost <= 2, "{lost} of {}", sent.len());
    eventually(&gateways.a, "the end of a path", || !paths(&world)[0].up);
    assert_ne!(rules(), before);
    new.end().unwrap();
    drop(second);
}

#[test]
fn a_path_that_is_down_stays_unused_in_another_process_until_it_is_up() {
    let (world, second) = two_wans(GatewaySpec::default());
    let node = world.dumbbell.gateway_a();
    let rules = || node.run("nft", &["list", "ruleset"]).unwrap();
    let up = || paths(&world).iter().map(|path| path.up).collect::<Vec<_>>();
    let (gateways, before) = (world.running().unwrap(), rules());
    let (first, mut upgraded) = (world.emulator().unwrap(), None);
    let sent = messages_and(&world, 5, || {
        set(first, &format!("{LINK},loss=100%"));
        let is_left = || up() == [false, true] && rules() != before;
        eventually(&gateways.a, "the end of a path", is_left);
        let left = rules();
        let new = upgrade(gateways.directory(), &["--name", "site-a"]).unwrap();
        upgraded = Some((new, left));
    });
    let (new, left) = upgraded.unwrap();
    assert_eq!((gateways.a.status().unwrap().pid, rules()), (new.id(), left.clone()));
    let lost = sent.iter().filter(|message| message.latency.is_none()).count();
    assert!(lost <= 2, "{lost} of {}", sent.len());
    let counted = paths(&world)[1].sent;
    messages(&world, 1);
    let taken = || paths(&world)[1].sent >= counted + 90;
    eventually(&gateways.a, "packets on the second path", taken);
    assert_eq!((up(), rules()), (vec![false, true], left));
    assert!(paths(&world)[0].sent < 10, "{:?}", paths(&world));
    set(first, LINK);
    let is_back = || up() == [true, true] && rules() == before;
    eventually(&gateways.a, "the first path", is_back);
    assert_eq!(gateways.b.status().unwrap().peer().session.forged, 0);
    new.end().unwrap();
    drop(second);
}

#[test]
fn rules_and_routes_of_paths_are_reverted() {
    let mut world = world((1500, 1500), LINK);
    let _second = world.dumbbell.add_wan(LINK.parse().unwrap(), 2).unwrap();
    let node = world.dumbbell.gateway_a().clone();
    let state = || {
        let filters = ["wan0", "wan1"]
            .map(|wan| node.netns().sysctl(&format!("net/ipv4/conf/{wan}/rp_filter")).unwrap());
        let tables = node.run("ip", &["route", "show", "table", "all", "proto", "118"]).unwrap();
        let offloads = node.run("ethtool", &["-k", "wan1"]).unwrap();
        let rules = node.run("ip", &["rule"]).unwrap() + &node.run("ip", &["-6", "rule"]).unwrap();
        format!("{} {filters:?}\n{tables}\n{offloads}\n{rules}", system(&node))
    };
    let before = state();
    let spec = GatewaySpec { two_wans: true, ..GatewaySpec::default() };
    let gateways = world.protect(&spec).unwrap();
    gateways.wait_for_paths(true).unwrap();
    let during = state();
    assert!(during.contains("118:") && during.contains("dev wan1"), "{during}");
    // The kernel drops the routes of an interface that goes down.
    node.run("ip", &["link", "set", "wan1", "down"]).unwrap();
    node.run("ip", &["link", "set", "wan1", "up"]).unwrap();
    node.run("ip", &["addr", "add", "2001:db8:1::1/64", "dev", "wan1", "nodad"]).unwrap();
    eventually(&gateways.a, "the routes", || state() == during);
    gateways.a.kill().unwrap();
    gateways.a.start().unwrap();
    gateways.wait_for_paths(true).unwrap();
    assert_eq!(state(), during, "a start after a kill makes the same changes once");
    gateways.a.stop().unwrap();
    assert_eq!(state(), before);
}
