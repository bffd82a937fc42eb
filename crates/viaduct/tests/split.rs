//! Gateways in split mode: they end the hosts' TCP connections, and go on by their own under FEC.
#![allow(clippy::unwrap_used)] // a test may panic

mod common;

use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use viaduct_lab::binary::use_binary;
use viaduct_lab::gateways::{Gateway, GatewaySpec};
use viaduct_lab::topology::{DumbbellSpec, Host, Journal, Scratch};
use viaduct_lab::world::World;
use viaduct_proto::keys::SecretKey;
use viaduct_proto::rng::Rng;

const PORT: u16 = 9000;

fn world(link: &str) -> World {
    use_binary(env!("CARGO_BIN_EXE_viaduct"));
    World::new((1500, 1500), &link.parse().unwrap(), 1, &Journal::new()).unwrap()
}

fn listen(host: &Host, ip: IpAddr) -> TcpListener {
    let listen = || TcpListener::bind(SocketAddr::new(ip, PORT)).unwrap();
    host.netns().enter(listen).unwrap()
}

fn connect(host: &Host, ip: IpAddr) -> TcpStream {
    let to = SocketAddr::new(ip, PORT);
    let connect = || TcpStream::connect_timeout(&to, Duration::from_secs(5)).unwrap();
    let stream = host.netns().enter(connect).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

/// What the gateway's proxy has counted.
fn split(gateway: &Gateway, key: &str) -> Value {
    use std::os::unix::net::UnixStream;
    let socket = gateway.config().with_file_name(match gateway.config().file_stem().unwrap() {
        a if a == "a" => "site-a.sock",
        _ => "site-b.sock",
    });
    let mut text = String::new();
    UnixStream::connect(socket).unwrap().read_to_string(&mut text).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()["split"]["counters"][key].clone()
}

fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Sends `bytes` to their end, and what arrived back.
fn there_and_back(client: TcpStream, listener: &TcpListener, bytes: &[u8]) {
    common::there_and_back(client, listener.accept().unwrap().0, bytes);
}

#[test]
fn flows_between_the_sites_are_split_and_protected_and_keep_their_addresses() {
    let mut world = world("rate=200M,delay=20ms,loss=1%");
    let mut spec = GatewaySpec::default().split();
    spec.tables = "[split]\ncongestion_control = 'cubic'\nfar_buffer = 4000000\n".to_owned();
    world.protect(&spec).unwrap();
    let mut data = vec![0; 10_000_000];
    Rng::from_seed(3).fill(&mut data);
    for ip in world.b1().addresses() {
        let listener = listen(world.b1(), ip);
        let began = Instant::now();
        let client = connect(world.a1(), ip);
        let ours = client.local_addr().unwrap();
        // Acknowledged by the gateway beside us: the way there and back takes 40 ms.
        assert!(began.elapsed() < Duration::from_millis(40), "{:?}", began.elapsed());
        there_and_back(client, &listener, &data);
        // The server sees the client, port and all.
        let _client = connect(world.a1(), ip);
        assert_eq!(listener.accept().unwrap().1.ip(), ours.ip());
    }
    let gateways = world.gateways().unwrap();
    for gateway in [&gateways.a, &gateways.b] {
        eventually("both split", || split(gateway, "opened") == 4);
        assert_eq!(split(gateway, "bytes")[0], 20_000_000);
    }
    assert!(gateways.b.status().unwrap().peer().receiver.recovered > 50, "repairs were at work");
}

#[test]
fn handlers_that_are_needed_at_both_ends_stand_in_both_gateways() {
    let mut world = world("rate=100M,delay=2ms");
    let keys = Scratch::new().unwrap();
    let key = keys.write("site.key", SecretKey::from_bytes([7; 32]).to_text()).unwrap();
    let handlers = format!("handlers = ['compress', 'crypt:key={}']", key.display());
    let mut spec = GatewaySpec::default().split();
    spec.tables = format!(
        "[[policy]]\nfrom = ['10.{{own}}.0.0/16', 'fd00:{{own}}::/48']\n{handlers}\n\
         [[policy]]\nto = ['10.{{own}}.0.0/16', 'fd00:{{own}}::/48']\nside = 'accept'\n{handlers}\n"
    );
    world.protect(&spec).unwrap();
    let text = "the same again and again, ".repeat(200_000);
    for ip in world.b1().addresses() {
        let listener = listen(world.b1(), ip);
        let client = connect(world.a1(), ip);
        let ours = client.local_addr().unwrap();
        let (server, peer) = listener.accept().unwrap();
        assert_eq!(peer, ours, "the server sees the client, port and all");
        common::there_and_back(client, server, text.as_bytes());
    }
    // Both ways 10.4 MB, of which little crosses the link.
    let wan = world.dumbbell.gateway_a().run("ip", &["-s", "-j", "link", "show", "wan0"]).unwrap();
    let wan: Value = serde_json::from_str(&wan).unwrap();
    let sent = wan[0]["stats64"]["tx"]["bytes"].as_u64().unwrap();
    assert!(sent < 2_000_000, "{sent} bytes");
}

/// Chains with connections of their own; those of each go to a port of its own.
const CHAINS: [&str; 5] = [
    "'migrate'",
    "'stripe:paths=3'",
    "'mux'",
    "'mux', 'migrate'",
    "'migrate', 'route:node=192.0.2.9:1080'",
];

/// Gateways whose flows to each of some ports pass a chain, before two hosts a site.
fn chained(chains: &[&str]) -> World {
    use_binary(env!("CARGO_BIN_EXE_viaduct"));
    let spec = DumbbellSpec { hosts: 2, ..DumbbellSpec::default() };
    let mut world = World::build(&spec, &Journal::new()).unwrap();
    let mut spec = GatewaySpec::default().split();
    for (port, chain) in (PORT..).zip(chains) {
        for (way, side) in [("from", "connect"), ("to", "accept")] {
            let own = "['10.{own}.0.0/16', 'fd00:{own}::/48']";
            let handlers = format!("ports = ['{port}']\nhandlers = [{chain}]");
            writeln!(spec.tables, "[[policy]]\n{way} = {own}\nside = '{side}'\n{handlers}")
                .unwrap();
        }
    }
    world.protect(&spec).unwrap();
    world
}

#[test]
fn what_is_said_before_a_reset_comes_through_every_chain() {
    let others = ["'count'", "'shape:rate=20M'", "'latency:delay=5ms'", "'compress'"];
    let chains = [&CHAINS[..], &others].concat();
    let world = chained(&chains);
    let mut wrong = Vec::new();
    for (port, chain) in (PORT..).zip(chains) {
        let to = SocketAddr::new(world.b1().addresses().next().unwrap(), port);
        let listener = world.b1().netns().enter(|| TcpListener::bind(to)).unwrap().unwrap();
        let mut client = world.a1().netns().enter(|| TcpStream::connect(to)).unwrap().unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        client.write_all(&[0; 50_000]).unwrap();
        // It has not read all: the kernel says so by a reset.
        let (mut server, _) = listener.accept().unwrap();
        server.read_exact(&mut [0; 10]).unwrap();
        server.write_all(&[0; 20_000]).unwrap();
        thread::sleep(Duration::from_millis(50));
        drop(server);
        let (mut got, mut data) = (0, [0; 3_000]);
        let end = loop {
            match client.read(&mut data) {
                Ok(0) => break None,
                Ok(count) => got += count,
                Err(error) => break Some(error.kind()),
            }
            thread::sleep(Duration::from_millis(1));
        };
        if (got, end) != (20_000, Some(ErrorKind::ConnectionReset)) {
            wrong.push((chain, got, end));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn connections_that_handlers_open_stand_for_the_same_host() {
    let world = chained(&CHAINS);
    let data = vec![7; 3_000_000];
    for (port, chain) in (PORT..).zip(CHAINS) {
        for ip in world.b1().addresses() {
            let to = SocketAddr::new(ip, port);
            let listener = world.b1().netns().enter(|| TcpListener::bind(to)).unwrap().unwrap();
            // Two of each host: they may share a connection, and no two hosts do.
            let mut flows = Vec::new();
            for host in world.dumbbell.hosts_a().iter().chain(world.dumbbell.hosts_a()) {
                let client = host.netns().enter(|| TcpStream::connect(to)).unwrap().unwrap();
                client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
                let ours = client.local_addr().unwrap().ip();
                let (server, peer) = listener.accept().unwrap();
                assert_eq!(peer.ip(), ours, "{chain}");
                flows.push((client, server));
            }
            if chain.contains("migrate") {
                // What they have between the gateways is lost; its end there is the host's by name.
                let words = ["-K", "dst", &to.to_string()];
                let killed = world.dumbbell.gateway_a().run("ss", &words).unwrap();
                assert!(killed.contains("ESTAB"), "{chain}: {killed}");
            }
            for (client, server) in flows {
                common::there_and_back(client, server, &data);
            }
        }
    }
}

#[test]
fn connections_of_before_pass_on_and_those_of_a_gateway_that_ends_are_drained() {
    let mut world = world("rate=100M,delay=2ms");
    let ip = world.b1().addresses().next().unwrap();
    let listener = listen(world.b1(), ip);
    let before = connect(world.a1(), ip);
    world.protect(&GatewaySpec::default().split()).unwrap();
    there_and_back(before, &listener, b"begun before the gateways");
    let during = connect(world.a1(), ip);
    let (mut server, _) = listener.accept().unwrap();
    let gateways = world.gateways().unwrap();
    for gateway in [&gateways.a, &gateways.b] {
        gateway.signal(Signal::TERM).unwrap();
    }
    // What is there goes on to its end; what is new passes by.
    eventually("both let new ones pass by", || {
        let opened = |world: &mut World| {
            let gateways = world.gateways().unwrap();
            [&gateways.a, &gateways.b].map(|gateway| split(gateway, "opened"))
        };
        let before = opened(&mut world);
        there_and_back(connect(world.a1(), ip), &listener, b"new");
        opened(&mut world) == before
    });
    let mut during = during;
    during.write_all(b"still here").unwrap();
    let mut got = [0; 10];
    server.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"still here");
    drop((during, server));
    let gateways = world.gateways().unwrap();
    for gateway in [&gateways.a, &gateways.b] {
        eventually("it ends with its last flow", || gateway.status().is_err());
    }
    there_and_back(connect(world.a1(), ip), &listener, b"without them");
}

#[test]
fn rules_that_a_firewalls_reload_takes_away_are_put_back() {
    let mut world = world("rate=100M,delay=2ms");
    let ip = world.b1().addresses().next().unwrap();
    let listener = listen(world.b1(), ip);
    world.protect(&GatewaySpec::default().split()).unwrap();
    let rules = |world: &World| world.dumbbell.gateway_a().run("nft", &["-s", "list", "ruleset"]);
    let before = rules(&world).unwrap();
    assert!(before.contains("tproxy") && before.contains("maxseg"), "{before}");
    world.dumbbell.gateway_a().run("nft", &["flush", "ruleset"]).unwrap();
    world.dumbbell.gateway_a().run("ip", &["rule", "del", "priority", "118"]).unwrap();
    eventually("put back", || {
        // The order of tables is not ours to say.
        let [then, now] = [before.clone(), rules(&world).unwrap()].map(|text| {
            let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        });
        let ip = world.dumbbell.gateway_a().run("ip", &["rule", "list", "priority", "118"]);
        then == now && ip.unwrap().contains("fwmark")
    });
    there_and_back(connect(world.a1(), ip), &listener, b"split again");
    let gateways = world.gateways().unwrap();
    assert_eq!(split(&gateways.a, "opened"), 1);
    assert!(gateways.a.log().contains("are back"), "{}", gateways.a.log());
}
