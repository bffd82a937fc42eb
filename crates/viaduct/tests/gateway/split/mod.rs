//! Gateways in split mode: they terminate the hosts' TCP connections, and continue over connections
//! of their own, which FEC protects.

mod chains;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use viaduct_lab::binary::use_binary;
use viaduct_lab::gateways::{Gateway, GatewaySpec};
use viaduct_lab::topology::{Host, Journal, Scratch};
use viaduct_lab::world::World;
use viaduct_proto::keys::SecretKey;
use viaduct_proto::rng::Rng;

use crate::common;

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

/// Returns a counter of the gateway's proxy.
pub(super) fn split(gateway: &Gateway, key: &str) -> Value {
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

/// Sends `bytes` and an end of stream in one direction, and then the same in the other direction.
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
        // The near gateway accepts: the round trip to the far gateway takes 40 ms.
        assert!(began.elapsed() < Duration::from_millis(40), "{:?}", began.elapsed());
        there_and_back(client, &listener, &data);
        // The server sees the client's address.
        let _client = connect(world.a1(), ip);
        assert_eq!(listener.accept().unwrap().1.ip(), ours.ip());
    }
    let gateways = world.gateways().unwrap();
    for gateway in [&gateways.a, &gateways.b] {
        eventually("both gateways split", || split(gateway, "opened") == 4);
        eventually("all bytes are counted", || split(gateway, "bytes")[0] == 20_000_000);
    }
    assert!(gateways.b.status().unwrap().peer().receiver.recovered > 50, "too few were recovered");
}

#[test]
fn handlers_needed_at_both_ends_run_in_both_gateways() {
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
        assert_eq!(peer, ours, "the server sees the client's address and port");
        common::there_and_back(client, server, text.as_bytes());
    }
    // 10.4 MB in each direction, of which little crosses the link.
    let wan = world.dumbbell.gateway_a().run("ip", &["-s", "-j", "link", "show", "wan0"]).unwrap();
    let wan: Value = serde_json::from_str(&wan).unwrap();
    let sent = wan[0]["stats64"]["tx"]["bytes"].as_u64().unwrap();
    assert!(sent < 2_000_000, "{sent} bytes");
}

#[test]
fn existing_connections_are_not_split_and_a_stopping_gateway_drains() {
    let mut world = world("rate=100M,delay=2ms");
    let ip = world.b1().addresses().next().unwrap();
    let listener = listen(world.b1(), ip);
    let before = connect(world.a1(), ip);
    world.protect(&GatewaySpec::default().split()).unwrap();
    there_and_back(before, &listener, b"begun before the gateways");
    let gateways = world.gateways().unwrap();
    for gateway in [&gateways.a, &gateways.b] {
        assert_eq!(split(gateway, "opened"), 0);
    }
    let during = connect(world.a1(), ip);
    let (mut server, _) = listener.accept().unwrap();
    let gateways = world.gateways().unwrap();
    for gateway in [&gateways.a, &gateways.b] {
        gateway.signal(Signal::TERM).unwrap();
    }
    // Open flows continue to their end; new ones bypass the proxy.
    eventually("new connections bypass both", || {
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
        eventually("the gateway has ended", || gateway.status().is_err());
    }
    there_and_back(connect(world.a1(), ip), &listener, b"without them");
}

#[test]
fn rules_removed_by_a_firewall_reload_are_restored() {
    let mut world = world("rate=100M,delay=2ms");
    let ip = world.b1().addresses().next().unwrap();
    let listener = listen(world.b1(), ip);
    world.protect(&GatewaySpec::fec("lower_mtu = true\n").split()).unwrap();
    let rules = |world: &World| world.dumbbell.gateway_a().run("nft", &["-s", "list", "ruleset"]);
    let before = rules(&world).unwrap();
    assert!(before.contains("tproxy") && before.contains("maxseg"), "{before}");
    world.dumbbell.gateway_a().run("nft", &["flush", "ruleset"]).unwrap();
    world.dumbbell.gateway_a().run("ip", &["rule", "del", "priority", "118"]).unwrap();
    eventually("the rules are restored", || {
        // The order of tables is not defined.
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
    eventually("the flow is split", || split(&gateways.a, "opened") == 1);
    eventually("the log names the rules", || gateways.a.log().contains("have been restored"));
}
