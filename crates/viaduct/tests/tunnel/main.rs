//! A real tunnel between two routers on the path from a client to a server, as programs see it.
#![allow(clippy::unwrap_used)] // a test may panic

mod access_log;
#[path = "../common/mod.rs"]
mod common;
mod dead_after;
mod tls;
mod upgrade;

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use viaduct_lab::binary::use_binary;
use viaduct_lab::proxies::Proxy;
use viaduct_lab::topology::{Chain, Journal, Node, Scratch};
use viaduct_proto::keys::SecretKey;
use viaduct_proto::link::LinkConfig;

use common::{random, rest, until};

const PORT: u16 = 9000;
const FAR: &str = "--tunnel-listen [::]:7100 --allow-to 10.3.0.2/32,fd00:3::2/128";

/// client ── near end ══ tunnel ══ far end ── server
struct World {
    near: Proxy,
    far: Proxy,
    keys: Scratch,
    chain: Chain,
}

/// Starts a proxy. Its key and its peer's key are made of the bytes `own` and `peer`.
fn proxy(node: &Node, options: &str, keys: &Scratch, [own, peer]: [u8; 2]) -> Proxy {
    let key = SecretKey::from_bytes([own; 32]).to_text();
    let file = keys.write(&format!("{own}.key"), key).unwrap();
    let peer = SecretKey::from_bytes([peer; 32]).public();
    let options = format!("{options} --key {} --peer {peer}", file.display());
    Proxy::start(node, &options.split_whitespace().collect::<Vec<_>>()).unwrap()
}

impl World {
    /// Builds the world. `link` is between the ends of the tunnel, and `both` are options of both
    /// ends.
    fn new(link: &str, both: &str) -> World {
        World::with(link, [both, both])
    }

    /// Builds the world with options of the near end, and of the far end.
    fn with(link: &str, [near, far]: [&str; 2]) -> World {
        use_binary(env!("CARGO_BIN_EXE_viaduct"));
        let short: LinkConfig = "delay=1ms".parse().unwrap();
        let links = [short.clone(), link.parse().unwrap(), short];
        let chain = Chain::build(&links, 1, &Journal::new()).unwrap();
        let keys = Scratch::new().unwrap();
        let far = proxy(&chain.hops()[1], &format!("{FAR} {far}"), &keys, [2, 1]);
        let path = "--listen [::]:7000 --intercept 0.0.0.0/0,::/0 --tunnel 10.2.0.2:7100";
        let near = proxy(&chain.hops()[0], &format!("{path} {near}"), &keys, [1, 2]);
        World { near, far, keys, chain }
    }

    /// Kills and restarts the far end.
    fn restart_far(&mut self, both: &str) {
        self.far.process().kill().unwrap();
        self.far = proxy(&self.chain.hops()[1], &format!("{FAR} {both}"), &self.keys, [2, 1]);
    }

    fn addresses(&self) -> Vec<IpAddr> {
        self.chain.server().addresses().collect()
    }

    /// Opens a listener on the server.
    fn listen(&self, ip: IpAddr) -> TcpListener {
        self.listen_at(ip, PORT)
    }

    fn listen_at(&self, ip: IpAddr, port: u16) -> TcpListener {
        let listen = || TcpListener::bind(SocketAddr::new(ip, port)).unwrap();
        self.chain.server().netns().enter(listen).unwrap()
    }

    /// Connects from the client.
    fn connect(&self, ip: IpAddr) -> TcpStream {
        self.connect_to(SocketAddr::new(ip, PORT))
    }

    fn connect_to(&self, to: SocketAddr) -> TcpStream {
        let connect = || TcpStream::connect_timeout(&to, Duration::from_secs(5));
        let stream = self.chain.client().netns().enter(connect).unwrap().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// Opens a connection. Returns both of its ends.
    fn pair(&self, listener: &TcpListener) -> (TcpStream, TcpStream) {
        let client = self.connect_to(listener.local_addr().unwrap());
        let (server, from) = listener.accept().unwrap();
        assert!(!self.chain.client().addresses().any(|own| own == from.ip()), "not split");
        server.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        (client, server)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("near end:\n{}\nfar end:\n{}", self.near.log(), self.far.log());
        }
    }
}

/// Returns the status of a proxy, as text.
fn shown(proxy: &Proxy) -> String {
    let mut status = Command::new(env!("CARGO_BIN_EXE_viaduct"));
    status.args(["status", "--run-dir"]).arg(proxy.directory());
    String::from_utf8(status.output().unwrap().stdout).unwrap()
}

const CARRIERS: [&str; 2] = ["--carrier tcp", "--carrier quic"];

#[test]
fn every_byte_arrives_and_each_direction_ends_independently() {
    for carrier in CARRIERS {
        let world = World::new("delay=5ms", &format!("{carrier} --links 2"));
        for ip in world.addresses() {
            let listener = world.listen(ip);
            for bytes in [0, 1, 100_000, 20_000_000] {
                let sent = random(bytes);
                let (mut client, mut server) = world.pair(&listener);
                let server = thread::spawn(move || {
                    // All bytes of one direction, and its end, arrive before the first byte of the
                    // other direction is sent.
                    let got = rest(&mut server);
                    server.write_all(&got).unwrap();
                    got.len()
                });
                client.write_all(&sent).unwrap();
                client.shutdown(Shutdown::Write).unwrap();
                let back = rest(&mut client);
                assert_eq!(server.join().unwrap(), bytes, "{ip} {carrier}");
                assert!(back == sent, "{ip} {carrier}: {} of {bytes} came back", back.len());
            }
        }
    }
}

#[test]
fn single_bytes_are_served() {
    for carrier in CARRIERS {
        let world = World::new("delay=5ms", carrier);
        let listener = world.listen(world.addresses()[0]);
        let (mut client, mut server) = world.pair(&listener);
        client.set_nodelay(true).unwrap();
        let sent = random(300);
        for byte in &sent {
            client.write_all(&[*byte]).unwrap();
        }
        client.shutdown(Shutdown::Write).unwrap();
        assert!(rest(&mut server) == sent);
        server.set_nodelay(true).unwrap();
        for byte in &sent {
            server.write_all(&[*byte]).unwrap();
            let mut got = [0];
            client.read_exact(&mut got).unwrap();
            assert_eq!(got[0], *byte, "not one byte at a time");
        }
    }
}

#[test]
fn resets_and_refusals_are_resets_at_the_other_end() {
    for carrier in CARRIERS {
        let world = World::new("delay=5ms", carrier);
        let ip = world.addresses()[0];
        let ends_by_reset = |mut stream: TcpStream, what: &str| {
            let error = stream.read(&mut [0; 10]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{what}: {error}");
        };
        let reset = |stream: TcpStream| {
            rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
            drop(stream);
        };
        ends_by_reset(world.connect(ip), "a closed port");
        let outside = "10.3.0.1".parse().unwrap();
        ends_by_reset(world.connect(outside), "a server that is not allowed");
        let denial = format!("has denied a flow to {outside}:{PORT}");
        assert!(world.near.log().contains(&denial), "{}", world.near.log());
        assert!(shown(&world.near).contains("denied"), "{}", shown(&world.near));
        let listener = world.listen(ip);
        let (client, server) = world.pair(&listener);
        reset(server);
        ends_by_reset(client, "the server resets");
        let (client, server) = world.pair(&listener);
        reset(client);
        ends_by_reset(server, "the client resets");
    }
}

#[test]
fn a_full_far_end_is_unreachable() {
    let world = World::with("delay=1ms", ["--accept after-connect", "--flows 1"]);
    let listener = world.listen(world.addresses()[0]);
    let _open = world.pair(&listener);
    let to = listener.local_addr().unwrap();
    let connect = || TcpStream::connect_timeout(&to, Duration::from_secs(5));
    let error = world.chain.client().netns().enter(connect).unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::HostUnreachable, "{error}");
}

/// Returns the rate in Mb/s of iperf3 from the client to `to`; the iperf3 server is on the server.
fn rate(chain: &Chain, to: &str) -> f64 {
    let mut server = chain.server().command("iperf3");
    server.args(["--server", "--one-off"]).stdout(Stdio::null());
    let mut server = chain.server().spawn(server).unwrap();
    let listening = || chain.server().run("ss", &["-Hltn", "sport = :5201"]).unwrap();
    until("iperf3 listens", || listening().contains(":5201"));
    let options = format!("--json --congestion bbr --omit 4 --time 4 --client {to}");
    let said = chain.client().run("iperf3", &options.split(' ').collect::<Vec<_>>()).unwrap();
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    server.wait().unwrap();
    said["end"]["sum_received"]["bits_per_second"].as_f64().unwrap() / 1e6
}

#[test]
fn one_stream_fills_a_long_path() {
    use_binary(env!("CARGO_BIN_EXE_viaduct"));
    let link = "rate=200M,delay=50ms,queue=100ms".parse().unwrap();
    let chain = Chain::build(&[link], 1, &Journal::new()).unwrap();
    let plain = rate(&chain, "10.1.0.2");
    for carrier in ["--carrier tcp --link-congestion bbr", "--carrier quic --link-congestion cubic"]
    {
        let keys = Scratch::new().unwrap();
        let far = format!("--tunnel-listen [::]:7100 --allow-to 10.1.0.2/32 {carrier}");
        let _far = proxy(chain.server(), &far, &keys, [2, 1]);
        let near = "--listen 127.0.0.1:5201 --to 10.1.0.2:5201 --tunnel 10.1.0.2:7100";
        let _near = proxy(chain.client(), &format!("{near} {carrier}"), &keys, [1, 2]);
        let tunnel = rate(&chain, "127.0.0.1");
        // The experiment lfn/fill requires 95 % on an idle machine.
        assert!(tunnel > 0.75 * plain, "{tunnel} of {plain} Mb/s by {carrier}");
    }
}

#[test]
fn a_reader_that_has_stopped_does_not_slow_the_others() {
    for carrier in CARRIERS {
        let world = World::new("rate=50M,delay=10ms", carrier);
        let listener = world.listen(world.addresses()[0]);
        let stopped: Vec<_> = (0..3)
            .map(|_| {
                let (client, server) = world.pair(&listener);
                client.set_nonblocking(true).unwrap();
                (client, server)
            })
            .collect();
        let data = random(1 << 20);
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until {
            for (client, _) in &stopped {
                // Fills the buffers: the other end reads nothing.
                let _ = (&*client).write(&data);
            }
            thread::sleep(Duration::from_millis(5));
        }
        let (mut client, mut server) = world.pair(&listener);
        let sent = random(3_000_000);
        let expected = sent.clone();
        let begun = Instant::now();
        let writer = thread::spawn(move || {
            client.write_all(&sent).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            client
        });
        assert!(rest(&mut server) == expected);
        let took = begun.elapsed();
        // At 50 Mb/s the transfer takes 0.5 s.
        assert!(took < Duration::from_millis(1_500), "{took:?} {carrier}");
        writer.join().unwrap();
        for (client, server) in stopped {
            drop(client);
            drop(server);
        }
    }
}

#[test]
fn a_broken_link_resets_its_streams_and_is_dialled_again() {
    let world = World::new("delay=5ms", "--carrier tcp");
    let listener = world.listen(world.addresses()[0]);
    let (mut client, server) = world.pair(&listener);
    let far = &world.chain.hops()[1];
    far.run("ss", &["--kill", "state", "established", "sport", "=", ":7100"]).unwrap();
    let error = client.read(&mut [0; 10]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    drop(server);
    let (mut client, mut server) = world.pair(&listener);
    client.write_all(b"again").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(rest(&mut server), b"again");
    assert!(world.near.log().contains("is gone"), "{}", world.near.log());
}

#[test]
fn only_known_keys_get_a_tunnel() {
    let world = World::new("delay=1ms", "");
    let near = &world.chain.hops()[0];
    let connect = || TcpStream::connect("10.2.0.2:7100").unwrap();
    let mut unknown = near.netns().enter(connect).unwrap();
    unknown.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    unknown.write_all(&[0, 97]).unwrap();
    unknown.write_all(&[7; 97]).unwrap();
    assert_eq!(unknown.read(&mut [0; 10]).unwrap_or(0), 0, "there was an answer");
    let listener = world.listen(world.addresses()[0]);
    let (mut client, mut server) = world.pair(&listener);
    client.write_all(b"served").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(rest(&mut server), b"served");
}

#[test]
fn an_unknown_site_gets_the_reason_of_its_refusal() {
    for carrier in CARRIERS {
        let world = World::new("delay=5ms", carrier);
        let second = "--listen 127.0.0.1:7001 --to 10.3.0.2:9000 --tunnel 10.3.0.1:7100";
        let second = format!("{second} {carrier}");
        let second = proxy(world.chain.server(), &second, &world.keys, [3, 2]);
        let reason = "the far end does not know this site's public key";
        until(&format!("{carrier}: {}", second.log()), || second.log().contains(reason));
        until("the status", || shown(&second).contains(&format!("down: 10.3.0.1:7100: {reason}")));
        let log = world.far.log();
        assert!(!log.contains("ERROR") && !log.contains("10.3.0.2"), "{carrier}: {log}");
    }
}

#[test]
fn idle_unauthenticated_connections_do_not_exclude_peers() {
    for carrier in CARRIERS {
        let world = World::new("delay=5ms", carrier);
        let [unknown, peer] = [&world.chain.hops()[0], world.chain.server()];
        let dial = || {
            let to = "10.2.0.2:7100".parse::<SocketAddr>().unwrap();
            TcpStream::connect_timeout(&to, Duration::from_secs(5)).unwrap()
        };
        let idle: Vec<_> = (0..100).map(|_| unknown.netns().enter(dial).unwrap()).collect();
        // A near end that starts now must still get a link.
        let listener = world.listen(world.addresses()[0]);
        let to = listener.local_addr().unwrap();
        let second = format!("--listen 127.0.0.1:7001 --to {to} --tunnel 10.3.0.1:7100 {carrier}");
        let _second = proxy(peer, &second, &world.keys, [1, 2]);
        let connect = || TcpStream::connect("127.0.0.1:7001").unwrap();
        let mut client = peer.netns().enter(connect).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(b"served").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(rest(&mut server), b"served", "{carrier}");
        drop(idle);
    }
}

#[test]
fn unvalidated_quic_clients_get_a_retry_and_do_not_exclude_peers() {
    let world = World::new("delay=5ms", "--carrier quic");
    let [unknown, far, peer] = [world.chain.client(), &world.chain.hops()[1], world.chain.server()];
    // The far end gets the unknown host's Initials, but its answers do not reach that host, as if
    // the source addresses were spoofed.
    let deaf = "add table inet deaf; \
                add chain inet deaf input { type filter hook input priority 0; }; \
                add rule inet deaf input udp sport 7100 drop";
    unknown.run("nft", &[deaf]).unwrap();
    // Counts packets by the first byte of a Retry, which is not encrypted.
    let retries = "add table inet seen; \
                   add chain inet seen output { type filter hook output priority 0; }; \
                   add rule inet seen output udp sport 7100 @th,64,8 & 0xf0 == 0xf0 counter";
    far.run("nft", &[retries]).unwrap();
    let dials = "--listen 127.0.0.1:7003 --to 10.3.0.2:9000 --tunnel 10.2.0.2:7100 \
                 --carrier quic --links 40";
    let _unknown = proxy(unknown, dials, &world.keys, [9, 2]);
    let seen = || far.run("nft", &["list", "table", "inet", "seen"]).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while seen().contains("packets 0 ") {
        assert!(Instant::now() < deadline, "no Retry: {}", seen());
        thread::sleep(Duration::from_millis(20));
    }
    let listener = world.listen(world.addresses()[0]);
    let to = listener.local_addr().unwrap();
    let near = format!("--listen 127.0.0.1:7001 --to {to} --tunnel 10.3.0.1:7100 --carrier quic");
    let _near = proxy(peer, &near, &world.keys, [1, 2]);
    let connect = || TcpStream::connect("127.0.0.1:7001").unwrap();
    let mut client = peer.netns().enter(connect).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.write_all(b"served").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(rest(&mut server), b"served");
}

#[test]
fn a_restarted_far_end_serves_immediately() {
    for carrier in CARRIERS {
        let mut world = World::new("delay=5ms", carrier);
        let ip = world.addresses()[0];
        let listener = world.listen(ip);
        let (mut old, server) = world.pair(&listener);
        thread::spawn(move || {
            for stream in listener.incoming() {
                stream.unwrap().write_all(b"served").unwrap();
            }
        });
        world.restart_far(carrier);
        drop(server);
        let begun = Instant::now();
        let serves = || {
            let mut got = Vec::new();
            world.connect(ip).read_to_end(&mut got).is_ok() && got == b"served"
        };
        while !serves() {
            thread::sleep(Duration::from_millis(10));
        }
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(3), "{took:?} {carrier}");
        let error = old.read(&mut [0; 10]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    }
}

#[test]
fn a_stream_over_quic_survives_a_change_of_address() {
    let world = World::new("delay=5ms", "--carrier quic");
    let listener = world.listen(world.addresses()[0]);
    let (mut client, mut server) = world.pair(&listener);
    let echo = thread::spawn(move || {
        let mut bytes = [0; 1000];
        while server.read_exact(&mut bytes).is_ok() {
            server.write_all(&bytes).unwrap();
        }
    });
    let sent = random(1000);
    let mut got = [0; 1000];
    let [near, far] = [0, 1].map(|n| &world.chain.hops()[n]);
    for round in 0..300 {
        client.write_all(&sent).unwrap();
        client.read_exact(&mut got).unwrap();
        assert!(got == sent[..]);
        if round == 100 {
            far.run("ip", &["route", "add", "10.9.0.1/32", "via", "10.2.0.1"]).unwrap();
            near.run("ip", &["address", "add", "10.9.0.1/32", "dev", "lo"]).unwrap();
            let to = ["route", "replace", "10.2.0.2/32", "dev", "east", "src", "10.9.0.1"];
            near.run("ip", &to).unwrap();
            // Afterwards only packets from the new address arrive.
            let only_new = "add table inet old; \
                            add chain inet old input { type filter hook input priority 0; }; \
                            add rule inet old input ip saddr 10.2.0.1 udp dport 7100 drop";
            far.run("nft", &[only_new]).unwrap();
        }
    }
    drop(client);
    echo.join().unwrap();
    assert!(!world.near.log().contains("is gone"), "{}", world.near.log());
}

#[test]
fn the_status_shows_links_streams_and_buffers() {
    let world = World::new("delay=10ms", "--links 2");
    let ip = world.addresses()[0];
    let listener = world.listen(ip);
    let (mut client, _server) = world.pair(&listener);
    client.write_all(&random(100_000)).unwrap();
    // Connects are counted by outbound: the tunnel at the near end, direct at the far end.
    let [near, far] = ["onwards   tunnel: 1 connected", "onwards   direct: 1 connected"];
    for (proxy, onwards) in [(&world.near, near), (&world.far, far)] {
        let deadline = Instant::now() + Duration::from_secs(10);
        let all = ["tunnel to ", "  up", "1 open", "round trip 2", "97.7 KiB", onwards];
        while !all.iter().all(|what| shown(proxy).contains(what)) {
            assert!(Instant::now() < deadline, "{}", shown(proxy));
            thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn a_stopping_far_end_closes_its_links_immediately() {
    for carrier in CARRIERS {
        let mut world = World::new("delay=5ms", carrier);
        let listener = world.listen(world.addresses()[0]);
        let (client, server) = world.pair(&listener);
        drop((client, server));
        let pid = Pid::from_raw(world.far.process().id().cast_signed()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        world.far.process().wait().unwrap();
        let ended = Instant::now();
        while !world.near.log().contains("is gone") {
            assert!(ended.elapsed() < Duration::from_secs(2), "{carrier}");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Returns the number of open descriptors of a process.
fn descriptors(pid: u32) -> u64 {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() as u64
}

#[test]
fn a_far_end_without_descriptors_resumes_accepting_links() {
    use rustix::process::{Resource, Rlimit, prlimit};
    let mut world = World::new("delay=1ms", "--carrier tcp");
    let pid = world.far.process().id();
    let far = Pid::from_raw(pid.cast_signed()).unwrap();
    let hop = &world.chain.hops()[0];
    let dial = || TcpStream::connect("10.2.0.2:7100").unwrap();
    let before = descriptors(pid);
    let limit = Rlimit { current: Some(before + 8), maximum: Some(before + 1_000) };
    prlimit(Some(far), Resource::Nofile, limit).unwrap();
    let unknown: Vec<_> = (0..24).map(|_| hop.netns().enter(dial).unwrap()).collect();
    let failed = "cannot accept links now";
    until("a warning is logged", || world.far.log().contains(failed));
    // This link waits to be accepted as well.
    let listener = world.listen(world.addresses()[0]);
    let near = format!(
        "--listen 127.0.0.1:7001 --to {} --tunnel 10.3.0.1:7100 --links 1",
        listener.local_addr().unwrap()
    );
    let _near = proxy(world.chain.server(), &near, &world.keys, [1, 2]);
    let connect = || TcpStream::connect("127.0.0.1:7001").unwrap();
    let mut client = world.chain.server().netns().enter(connect).unwrap();
    prlimit(Some(far), Resource::Nofile, Rlimit { current: Some(before + 500), ..limit }).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.write_all(b"served").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(rest(&mut server), b"served");
    assert_eq!(world.far.log().matches(failed).count(), 1, "{}", world.far.log());
    drop(unknown);
}

#[test]
fn the_sites_own_key_is_refused_as_a_peer() {
    use_binary(env!("CARGO_BIN_EXE_viaduct"));
    let keys = Scratch::new().unwrap();
    let secret = SecretKey::from_bytes([5; 32]);
    let file = keys.write("own.key", secret.to_text()).unwrap();
    let mut check = Command::new(env!("CARGO_BIN_EXE_viaduct"));
    check.args(["proxy", "--check", "--listen", "127.0.0.1:1", "--to", "127.0.0.1:2"]);
    check.args(["--tunnel", "127.0.0.1:3", "--peer", &secret.public().to_string()]);
    let output = check.arg("--key").arg(file).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("is this site's own key"), "{said}");
}
