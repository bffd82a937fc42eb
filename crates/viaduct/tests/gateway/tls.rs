//! Gateways in split mode, with a middlebox between them that passes only TCP connections to port
//! 443 that begin with a TLS ClientHello.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use viaduct_lab::binary::use_binary;
use viaduct_lab::gateways::{Gateway, GatewaySpec, Gateways};
use viaduct_lab::topology::{Journal, Middlebox, Node, Wan};
use viaduct_lab::upgrade::upgrade;

use super::common::{random, there_and_back, within, within_some};
use super::split::split;

/// Classifies each connection by its first payload bytes, in whichever packet they arrive.
const RULES: &str = "
    table inet fw {
        counter refused {}
        counter datagrams {}
        chain forward {
            type filter hook forward priority 0; policy drop;
            meta l4proto udp counter name datagrams
            tcp dport 443 ct mark 2 drop
            tcp dport 443 ct mark 0 @ih,0,16 0x1603 ct mark set 1
            tcp dport 443 ct mark 0 @ih,0,16 != 0x1603 ct mark set 2 counter name refused drop
            tcp dport 443 accept
            tcp sport 443 ct state established accept
        }
    }";
const PORT: u16 = 9000;

struct World {
    gateways: Gateways,
    middlebox: Middlebox,
}

impl World {
    /// Builds the network; `peers` are lines of the `[[peer]]` tables.
    fn new(peers: [&str; 2]) -> World {
        use_binary(env!("CARGO_BIN_EXE_viaduct"));
        let middlebox = Middlebox::build(&Wan::Veth, 1500, &Journal::new()).unwrap();
        sh(&middlebox.node, "nft flush ruleset");
        middlebox.node.run("nft", &[RULES]).unwrap();
        let site = "tls_listen = \"0.0.0.0:443\"\n".to_owned();
        let spec = GatewaySpec { site, ..GatewaySpec::default() }.split();
        let gateways = Gateways::beside(&middlebox, false, &spec).unwrap();
        for (gateway, lines) in [&gateways.a, &gateways.b].into_iter().zip(peers) {
            let text = fs::read_to_string(gateway.config()).unwrap();
            let mode = "mode = \"split\"\n";
            assert!(text.contains(mode), "{text}");
            fs::write(gateway.config(), text.replace(mode, &format!("{mode}{lines}"))).unwrap();
        }
        World { gateways, middlebox }
    }

    fn both(&self) -> [&Gateway; 2] {
        [&self.gateways.a, &self.gateways.b]
    }

    fn count(&self, name: &str) -> u64 {
        self.middlebox.counted(name).unwrap().packets
    }
}

fn sh(node: &Node, script: &str) -> String {
    node.run("sh", &["-ec", script]).unwrap()
}

/// Sends bytes from the host `from` to the host `to` and back. Checks that `to` sees the address
/// of `from`.
fn exchange(from: &Node, to: &Node, addresses: [&str; 2]) {
    let (client, server) = open(from, to, addresses);
    there_and_back(client, server, &random(3_000_000));
}

/// Opens a connection from the host `from` to the host `to`. Returns both of its ends.
fn open(from: &Node, to: &Node, [source, destination]: [&str; 2]) -> (TcpStream, TcpStream) {
    let listen = || TcpListener::bind((destination, PORT)).unwrap();
    let listener = to.netns().enter(listen).unwrap();
    let connect = || TcpStream::connect((destination, PORT)).unwrap();
    let client = from.netns().enter(connect).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    listener.set_nonblocking(true).unwrap();
    let accepted = within_some(Duration::from_secs(20), || listener.accept().ok());
    let (server, seen) = accepted.expect("the connection arrives at the server");
    assert_eq!(seen.ip().to_string(), source);
    (client, server)
}

const THERE: [&str; 2] = ["10.1.0.2", "10.2.0.2"];
const BACK: [&str; 2] = ["10.2.0.2", "10.1.0.2"];

/// Streams that the gateways have opened in tunnels.
fn opened(world: &World) -> [u64; 2] {
    world.both().map(|gateway| {
        let Value::Array(tunnels) = split(gateway, "tunnels") else { panic!() };
        tunnels.iter().map(|tunnel| tunnel["all"]["opened"].as_u64().unwrap()).sum()
    })
}

/// Waits until both gateways report the state `state` and one of `transports`. Returns whether they
/// do so in time.
fn are(world: &World, state: &str, transports: &[&str]) -> bool {
    within(Duration::from_secs(20), || {
        world.both().iter().all(|gateway| {
            gateway.status().is_ok_and(|status| {
                let peer = &status.peers[0];
                peer.state == state && transports.contains(&&peer.transport[..])
            })
        })
    })
}

fn logs(world: &World) -> String {
    world.both().map(Gateway::log).join("\n---\n")
}

#[test]
fn where_only_tls_passes_split_connections_go_through_a_tunnel_until_udp_is_back() {
    let mut world = World::new([
        "tls_endpoint = \"198.51.100.2:443\"\n",
        "endpoint = \"192.0.2.1:7400\"\ntls_endpoint = \"192.0.2.1:443\"\n",
    ]);
    world.gateways.b.start().unwrap();
    world.gateways.a.start().unwrap();
    assert!(are(&world, "degraded", &["tls"]), "{}", logs(&world));
    let [a1, b1] = [&world.middlebox.a1, &world.middlebox.b1];
    exchange(a1, b1, THERE);
    exchange(b1, a1, BACK);
    assert_eq!(opened(&world), [1, 1]);
    assert_eq!(world.count("refused"), 0);
    let log = world.gateways.a.log();
    assert!(log.contains("only TCP passes: repairs are off"), "{log}");
    // All packets pass again.
    sh(&world.middlebox.node, "nft flush ruleset");
    assert!(are(&world, "up", &["udp", "fake-tcp"]), "{}", logs(&world));
    exchange(a1, b1, THERE);
    assert_eq!(opened(&world), [1, 1], "new connections are direct");
    // They are also direct after an upgrade.
    let process = upgrade(world.gateways.directory(), &["--name", "site-b"]).unwrap();
    let begun = Instant::now();
    exchange(b1, a1, BACK);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    process.end().unwrap();
}

#[test]
fn upgrades_cut_no_connection_in_a_tunnel_over_tls_and_refuse_none() {
    let mut world = World::new([
        "tls_endpoint = \"198.51.100.2:443\"\n",
        "endpoint = \"192.0.2.1:7400\"\ntls_endpoint = \"192.0.2.1:443\"\n",
    ]);
    world.gateways.b.start().unwrap();
    world.gateways.a.start().unwrap();
    assert!(are(&world, "degraded", &["tls"]), "{}", logs(&world));
    let [a1, b1] = [&world.middlebox.a1, &world.middlebox.b1];
    let open_both = || [open(a1, b1, THERE), open(b1, a1, BACK)];
    let (mut flows, mut processes) = (Vec::from(open_both()), Vec::new());
    for name in ["site-a", "site-b"] {
        processes.push(upgrade(world.gateways.directory(), &["--name", name]).unwrap());
        // The middlebox drops connections that bypass the tunnel.
        flows.extend(open_both());
    }
    for (client, server) in flows {
        there_and_back(client, server, &random(300_000));
    }
    assert!(are(&world, "degraded", &["tls"]), "{}", logs(&world));
    assert_eq!(world.count("refused"), 0);
    for process in processes {
        process.end().unwrap();
    }
}

#[test]
fn a_tunnel_that_is_down_delays_no_connection_after_an_upgrade() {
    let mut world =
        World::new(["tls_endpoint = \"198.51.100.2:444\"\n", "endpoint = \"192.0.2.1:7400\"\n"]);
    let rules = "
        flush ruleset
        table inet fw {
            chain forward {
                type filter hook forward priority 0
                meta l4proto udp drop
                tcp dport 7400 drop
                tcp sport 7400 drop
            }
        }";
    world.middlebox.node.run("nft", &[rules]).unwrap();
    world.gateways.b.start().unwrap();
    world.gateways.a.start().unwrap();
    let dialled = || world.gateways.a.log().contains("198.51.100.2:444 is dialled");
    assert!(within(Duration::from_secs(20), dialled), "{}", logs(&world));
    let [a1, b1] = [&world.middlebox.a1, &world.middlebox.b1];
    exchange(a1, b1, THERE);
    let process = upgrade(world.gateways.directory(), &["--name", "site-a"]).unwrap();
    let begun = Instant::now();
    exchange(a1, b1, THERE);
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    process.end().unwrap();
}

#[test]
fn a_gateway_with_transport_tls_sends_no_datagrams_and_reports_this() {
    let mut world = World::new([
        "transport = \"tls\"\nserver_name = \"www.example.com\"\n",
        "transport = \"tls\"\n",
    ]);
    // The address of one gateway is translated.
    sh(
        &world.middlebox.node,
        "nft add table ip nat
         nft 'add chain ip nat leaving { type nat hook postrouting priority srcnat; }'
         nft add rule ip nat leaving oifname east ip saddr 192.0.2.1 masquerade",
    );
    world.gateways.b.start().unwrap();
    world.gateways.a.start().unwrap();
    assert!(are(&world, "up", &["tls"]), "{}", logs(&world));
    exchange(&world.middlebox.a1, &world.middlebox.b1, THERE);
    // The other gateway dials no tunnel, and uses the tunnel of the first gateway.
    exchange(&world.middlebox.b1, &world.middlebox.a1, BACK);
    assert_eq!(opened(&world), [1, 1]);
    assert_eq!((world.count("datagrams"), world.count("refused")), (0, 0));
    let mut status = Command::new(env!("CARGO_BIN_EXE_viaduct"));
    status.args(["status", "--name", "site-a", "--run-dir"]).arg(world.gateways.directory());
    let page = String::from_utf8(status.output().unwrap().stdout).unwrap();
    assert!(page.contains("none, repairs are off") && page.contains("as configured"), "{page}");
    // The translated address changes. Packets of the old tunnel are dropped; a new one is dialled.
    let mut server = world.middlebox.b1.command("python3");
    server.args(["-m", "http.server", "9001"]).stdout(Stdio::null()).stderr(Stdio::null());
    let _server = world.middlebox.b1.spawn(server).unwrap();
    let loads = || {
        let curl = ["-s", "--max-time", "3", "-o", "/dev/null", "http://10.2.0.2:9001/"];
        world.middlebox.a1.run("curl", &curl).is_ok()
    };
    assert!(within(Duration::from_secs(10), loads), "{}", logs(&world));
    world.middlebox.renumber().unwrap();
    assert!(!loads(), "the old tunnel still works");
    assert!(within(Duration::from_secs(90), loads), "{}", logs(&world));
    // After the tunnel's far end has gone, the status reports the reason.
    world.gateways.b.stop().unwrap();
    let is_down = || {
        let status = world.gateways.a.status().unwrap();
        let reason = status.peers[0].reason.clone().unwrap_or_default();
        status.peers[0].state == "down" && reason.contains("its tunnel over TLS is down")
    };
    assert!(within(Duration::from_secs(10), is_down), "{}", logs(&world));
}
