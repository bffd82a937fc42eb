//! A real proxy on the path between a client and a server, as programs see it.
#![allow(clippy::unwrap_used)] // a test may panic

mod accept;
mod access_log;
mod auto_hops;
mod cache;
#[path = "../common/mod.rs"]
mod common;
mod dead_after;
mod hop_agent;
mod hops;
mod local_addresses;
mod names;
mod next_hops;
mod options;
mod passwords;
mod policy;
mod relay;
mod requests;
mod resets;
mod rules;
mod syn_flood;
mod transparency;
mod unprivileged;
mod upgrade;
mod watchdog;

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use viaduct_lab::binary::use_binary;
use viaduct_lab::proxies::Proxy;
use viaduct_lab::topology::programs::WebServer;
use viaduct_lab::topology::{Chain, Journal, Node, Scratch};
use viaduct_proto::keys::SecretKey;
use viaduct_proto::link::LinkConfig;
use viaduct_sys::capture::ring::{Ring, RingConfig};

use common::{fill, random, rest, when_seen};

const PORT: u16 = 9000;

/// A client, a router with a proxy, and a server.
struct World {
    proxy: Proxy,
    chain: Chain,
}

/// Builds the chain without a proxy.
fn chain(link: &str) -> Chain {
    use_binary(env!("CARGO_BIN_EXE_viaduct"));
    let link: LinkConfig = link.parse().unwrap();
    Chain::build(&[link.clone(), link], 1, &Journal::new()).unwrap()
}

impl World {
    fn new(link: &str) -> World {
        let chain = chain(link);
        World { proxy: Proxy::on_path(&chain.hops()[0]).unwrap(), chain }
    }

    fn addresses(&self) -> Vec<IpAddr> {
        self.chain.server().addresses().collect()
    }

    /// Opens a listener on the server.
    fn listen(&self, ip: IpAddr) -> TcpListener {
        let listen = || TcpListener::bind(SocketAddr::new(ip, PORT)).unwrap();
        self.chain.server().netns().enter(listen).unwrap()
    }

    /// Connects from the client.
    fn connect(&self, ip: IpAddr) -> std::io::Result<TcpStream> {
        let to = SocketAddr::new(ip, PORT);
        let connect = || TcpStream::connect_timeout(&to, Duration::from_secs(5));
        let stream = self.chain.client().netns().enter(connect).unwrap()?;
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Ok(stream)
    }

    fn hop(&self) -> &Node {
        &self.chain.hops()[0]
    }
}

#[test]
fn every_byte_arrives_and_each_direction_ends_independently() {
    let world = World::new("delay=1ms");
    for ip in world.addresses() {
        for bytes in [0, 1, 100_000, 20_000_000] {
            let listener = world.listen(ip);
            let sent = random(bytes);
            let server = thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                // Reads all of one direction before it sends the first byte in the other.
                let got = rest(&mut stream);
                stream.write_all(&got).unwrap();
                got.len()
            });
            let mut client = world.connect(ip).unwrap();
            client.write_all(&sent).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            let back = rest(&mut client);
            assert_eq!(server.join().unwrap(), bytes, "{ip}");
            assert!(back == sent, "{ip}: {} of {bytes} bytes came back", back.len());
        }
    }
}

#[test]
fn single_bytes_and_a_slow_reader_are_served() {
    let world = World::new("delay=1ms");
    let ip = world.addresses()[0];
    let listener = world.listen(ip);
    let sent = random(3_000_000);
    let expected = sent.clone();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut first = [0; 200];
        stream.read_exact(&mut first).unwrap();
        thread::sleep(Duration::from_millis(500));
        [&first[..], &rest(&mut stream)].concat()
    });
    let mut client = world.connect(ip).unwrap();
    client.set_nodelay(true).unwrap();
    for byte in &sent[..200] {
        client.write_all(&[*byte]).unwrap();
    }
    client.write_all(&sent[200..]).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert!(server.join().unwrap() == expected);
}

#[test]
fn refusals_and_resets_are_resets_to_the_client() {
    let world = World::new("delay=5ms");
    let ip = world.addresses()[0];
    let ends_by_reset = |mut client: TcpStream| {
        let error = client.read(&mut [0; 10]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    };
    // The client is accepted early, so the server's refusal becomes a reset, which may arrive
    // before the client's connect returns.
    match world.connect(ip) {
        Ok(client) => ends_by_reset(client),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
    }
    let listener = world.listen(ip);
    let client = world.connect(ip).unwrap();
    let (stream, _) = listener.accept().unwrap();
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    drop(stream);
    ends_by_reset(client);
    let client = world.connect(ip).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
    drop(client);
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let error = stream.read(&mut [0; 10]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "in the other direction: {error}");
}

#[test]
fn a_syn_is_forwarded_before_the_clients_handshake_is_complete() {
    const SYN: u8 = 2;
    const ACK: u8 = 16;
    let world = World::new("delay=25ms");
    let ip = world.addresses()[0];
    let _listener = world.listen(ip);
    let config = RingConfig { max_packet: 1500, bytes: 1 << 20 };
    let open =
        |name: &str| world.hop().netns().enter(|| Ring::open(name, config).unwrap()).unwrap();
    let (mut west, mut east) = (open("west"), open("east"));
    let (onward, acknowledged) = thread::scope(|scope| {
        let onward = scope.spawn(move || when_seen(&mut east, |flags| flags == SYN));
        let done = scope.spawn(move || when_seen(&mut west, |flags| flags == ACK));
        world.connect(ip).unwrap();
        (onward.join().unwrap(), done.join().unwrap())
    });
    let ahead = acknowledged.saturating_duration_since(onward);
    // An early SYN leaves nearly a round trip of 50 ms before the client's ACK, a late one after
    // it.
    assert!(ahead > Duration::from_millis(25), "the SYN left {ahead:?} before the ACK");
}

/// Runs curl for a file of a web server, with `options` that name the proxy. Returns its output.
fn curl(chain: &Chain, options: &str) -> Result<String, String> {
    let url = format!("http://{}:8080/file", chain.server().v4());
    let arguments = format!("--silent --show-error --fail --max-time 10 {options} {url}");
    let arguments: Vec<&str> = arguments.split_whitespace().collect();
    chain.client().run("curl", &arguments).map_err(|error| error.to_string())
}

#[test]
fn clients_are_served_by_each_protocol_if_they_are_allowed() {
    let chain = chain("delay=1ms");
    let web = WebServer::start(chain.server(), 50_000, 1).unwrap();
    // The longest path: a hop that accepts SOCKS5 and CONNECT, followed by a hop that accepts
    // PROXY.
    let second = "--listen 10.1.0.2:7002 --expect proxy \
                  --allow-from 10.1.0.2/32 --allow-to 10.2.0.0/30";
    let first = "--listen 10.1.0.2:7001 --expect socks,connect --next 10.1.0.2:7002 \
                 --allow-from 10.1.0.1/32 --allow-to 10.2.0.0/30";
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let start = |text: &str| {
        let words = words(text);
        Proxy::start(&chain.hops()[0], &words.iter().map(String::as_str).collect::<Vec<_>>())
            .unwrap()
    };
    let (second, _first) = (start(second), start(first));
    let direct = web.download(chain.client(), Duration::from_secs(10)).unwrap();
    assert_eq!(direct.bytes, 50_000);
    for options in ["--socks5 10.1.0.2:7001", "--proxytunnel --proxy http://10.1.0.2:7001"] {
        let write = format!("{options} --output /dev/null --write-out %{{size_download}}");
        assert_eq!(curl(&chain, &write).unwrap(), "50000", "{options}");
    }
    let elsewhere = "--proxytunnel --proxy http://10.1.0.2:7001 --connect-to ::10.1.0.2:7001";
    assert!(curl(&chain, elsewhere).unwrap_err().contains("403"), "the server is not allowed");
    let denied = || rules::status(&second)["counters"]["refused"]["denied"].as_u64().unwrap();
    let before = denied();
    let unheard = "--proxytunnel --proxy http://10.1.0.2:7002";
    assert!(curl(&chain, unheard).is_err(), "the client is not allowed");
    assert_eq!(denied(), before + 1, "refused for another reason");
}

/// Sends a few bytes in each direction.
fn echo(client: &mut TcpStream, server: &mut TcpStream) {
    let mut got = [0; 5];
    client.write_all(b"there").unwrap();
    server.read_exact(&mut got).unwrap();
    server.write_all(&got).unwrap();
    client.read_exact(&mut got).unwrap();
}

#[test]
fn several_workers_accept_the_clients_of_their_own_syns_as_one_proxy() {
    const EACH: u64 = 60;
    let chain = chain("delay=2ms");
    let path = ["--listen", "[::]:7000", "--intercept", "0.0.0.0/0,::/0", "--workers", "3"];
    let mut world = World { proxy: Proxy::start(&chain.hops()[0], &path).unwrap(), chain };
    let mut open = Vec::new();
    for ip in world.addresses() {
        let listener = world.listen(ip);
        for _ in 0..EACH {
            let mut client = world.connect(ip).unwrap();
            let (mut server, _) = listener.accept().unwrap();
            echo(&mut client, &mut server);
            open.push((client, server));
        }
    }
    let status = rules::status(&world.proxy);
    let counters = &status["counters"];
    for what in ["open", "accepted", "opened"] {
        assert_eq!(counters[what], 2 * EACH, "{what} in {counters}");
    }
    assert_eq!(
        counters["early"]["matched"],
        2 * EACH,
        "the loop that saw the SYN must accept: {counters}"
    );
    assert_eq!(counters["bytes"], serde_json::json!([2 * EACH * 5, 2 * EACH * 5]));

    let second = Proxy::start(
        world.hop(),
        &["--listen", "[::]:7000", "--to", "10.2.0.2:1", "--workers", "2"],
    );
    assert!(
        second.unwrap_err().to_string().contains("exclusively"),
        "two proxies with several workers cannot share a port"
    );
    let pid = Pid::from_raw(world.proxy.process().id().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    thread::sleep(Duration::from_millis(300));
    for (client, server) in &mut open {
        echo(client, server);
    }
    open.truncate(1);
    // The loops without flows end, and their counts are kept.
    thread::sleep(Duration::from_secs(2));
    let counters = rules::status(&world.proxy)["counters"].clone();
    for (what, expected) in [("open", 1), ("accepted", 2 * EACH), ("opened", 2 * EACH)] {
        assert_eq!(counters[what], expected, "{what} in {counters}");
    }
    drop(open);
    assert!(world.proxy.process().wait().unwrap().success(), "all loops have ended");
}
