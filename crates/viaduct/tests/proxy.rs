//! A real proxy on the path between a client and a server: what programs see of it.
#![allow(clippy::unwrap_used)] // a test may panic

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
use viaduct_proto::rng::Rng;
use viaduct_sys::ring::{Ring, RingConfig};

const PORT: u16 = 9000;

/// A client, a router with a proxy, and a server.
struct World {
    proxy: Proxy,
    chain: Chain,
}

/// The same without a proxy.
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

    /// A listener in the server.
    fn listen(&self, ip: IpAddr) -> TcpListener {
        let listen = || TcpListener::bind(SocketAddr::new(ip, PORT)).unwrap();
        self.chain.server().netns().enter(listen).unwrap()
    }

    /// A connection from the client.
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

fn random(bytes: usize) -> Vec<u8> {
    let mut data = vec![0; bytes];
    Rng::from_seed(7).fill(&mut data);
    data
}

/// Reads to the end of `stream`; what came.
fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut data = Vec::new();
    stream.read_to_end(&mut data).unwrap();
    data
}

#[test]
fn every_byte_arrives_and_each_direction_ends_by_itself() {
    let world = World::new("delay=1ms");
    for ip in world.addresses() {
        for bytes in [0, 1, 100_000, 20_000_000] {
            let listener = world.listen(ip);
            let sent = random(bytes);
            let server = thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                // All of one direction, to its end, before the first byte of the other.
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
fn a_server_that_refuses_and_one_that_resets_are_resets_to_the_client() {
    let world = World::new("delay=5ms");
    let ip = world.addresses()[0];
    let ends_by_reset = |mut client: TcpStream| {
        let error = client.read(&mut [0; 10]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    };
    // Accepted early, so that the refusal comes as a reset; or before the connection is there.
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
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "and the other way: {error}");
}

/// When the first TCP packet that `is` what is looked for passes a tap.
fn when_seen(tap: &mut Ring, is: impl Fn(u8) -> bool) -> Instant {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        while let Some(frame) = tap.next() {
            if frame.len() >= 40 && frame[0] >> 4 == 4 && frame[9] == 6 && is(frame[33]) {
                return Instant::now();
            }
        }
        assert!(Instant::now() < deadline, "nothing seen");
        thread::sleep(Duration::from_micros(500));
    }
}

#[test]
fn the_syn_goes_on_before_the_clients_handshake_is_done() {
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
    assert!(ahead > Duration::from_millis(40), "by a round trip to the client: {ahead:?}");
}

#[test]
fn a_proxy_that_is_killed_is_passed_by_and_its_next_start_splits_again() {
    let mut world = World::new("delay=1ms");
    let ip = world.addresses()[0];
    let listener = world.listen(ip);
    let peer = |world: &World| {
        let _client = world.connect(ip).unwrap();
        listener.accept().unwrap().1.ip()
    };
    let client: IpAddr = world.chain.client().v4().into();
    assert_ne!(peer(&world), client, "the proxy connects with its own address");
    let pid = Pid::from_raw(world.proxy.process().id().cast_signed()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    world.proxy.process().wait().unwrap();
    assert_eq!(peer(&world), client, "what would be split goes by");
    let before = world.hop().run("nft", &["list", "ruleset"]).unwrap();
    assert!(before.contains("tproxy"), "{before}");
    let mut again = Proxy::on_path(world.hop()).unwrap();
    assert_ne!(peer(&world), client);
    let pid = Pid::from_raw(again.process().id().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    again.process().wait().unwrap();
    let after = world.hop().run("nft", &["list", "ruleset"]).unwrap();
    assert!(!after.contains("tproxy"), "put back: {after}");
    assert_eq!(peer(&world), client);
}

#[test]
fn a_port_is_one_proxys_and_so_is_what_it_changes() {
    let mut world = World::new("delay=1ms");
    let ip = world.addresses()[0];
    let client: IpAddr = world.chain.client().v4().into();
    let listener = world.listen(ip);
    let is_split = |world: &World| {
        let _client = world.connect(ip).unwrap();
        listener.accept().unwrap().1.ip() != client
    };
    let rules = |world: &World| world.hop().run("nft", &["list", "ruleset"]).unwrap();
    let another = |world: &World| Proxy::on_path(world.hop()).map_err(|error| error.to_string());
    for ports in [["[::]:7000", "[::]:7000"], ["[::]:7001", "[::]:7001"]] {
        let twice = ["--listen", ports[0], "--listen", ports[1], "--to", "10.2.0.2:1"];
        let refused = Proxy::start(world.hop(), &twice).unwrap_err().to_string();
        assert!(refused.contains("Address already in use"), "{refused}");
    }
    let refused = another(&world).unwrap_err();
    assert!(refused.contains("viaduct_proxy_7000 is another process's"), "{refused}");
    assert!(rules(&world).contains("tproxy") && is_split(&world), "the first goes on");

    // One that lets its flows end listens no more, but its rules are its own yet.
    let mut flow = world.connect(ip).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let pid = Pid::from_raw(world.proxy.process().id().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    thread::sleep(Duration::from_millis(300));
    let refused = another(&world).unwrap_err();
    assert!(refused.contains("still ends its flows"), "{refused}");
    echo(&mut flow, &mut server);
    assert!(!is_split(&world));
    drop((flow, server));
    world.proxy.process().wait().unwrap();
    let _second = another(&world).unwrap();
    assert!(is_split(&world) && rules(&world).contains("tproxy"));
}

/// A connection from the client's `port` to the server's, its address used already or not.
fn connect_from(chain: &Chain, port: u16, to: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};
    let from: IpAddr = match to {
        SocketAddr::V4(_) => chain.client().v4().into(),
        SocketAddr::V6(_) => chain.client().addresses().find(IpAddr::is_ipv6).unwrap(),
    };
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let connect = || {
        let socket = socket(family, SocketType::STREAM, None).unwrap();
        sockopt::set_socket_reuseaddr(&socket, true).unwrap();
        bind(&socket, &SocketAddr::new(from, port)).unwrap();
        connect(&socket, &to).unwrap();
        TcpStream::from(socket)
    };
    let stream = chain.client().netns().enter(connect).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream
}

#[test]
fn connections_of_before_pass_on_though_their_port_goes_elsewhere_too() {
    let chain = chain("delay=1ms");
    for ip in chain.server().addresses().collect::<Vec<_>>() {
        let listen = |port| TcpListener::bind(SocketAddr::new(ip, port)).unwrap();
        let listen = |port| chain.server().netns().enter(|| listen(port)).unwrap();
        let (one, other) = (listen(PORT), listen(PORT + 1));
        let mut before = connect_from(&chain, 45_000, SocketAddr::new(ip, PORT));
        let (mut server, _) = one.accept().unwrap();
        server.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let _proxy = Proxy::on_path(&chain.hops()[0]).unwrap();
        let _after = connect_from(&chain, 45_000, SocketAddr::new(ip, PORT + 1));
        let _ = other.accept().unwrap();
        echo(&mut before, &mut server);
    }
}

#[test]
fn a_name_is_one_services_in_its_directory() {
    let world = World::new("delay=1ms");
    let directory = world.proxy.directory().display().to_string();
    let another = ["--listen", "[::]:7001", "--to", "10.2.0.2:1", "--run-dir", &directory];
    let start = |name| Proxy::start(world.hop(), &[&another[..], &["--name", name]].concat());
    let refused = start("proxy-7000").unwrap_err().to_string();
    assert!(refused.contains("a service of this name runs"), "{refused}");
    assert!(world.proxy.directory().join("proxy-7000.sock").exists());
    start("proxy-7001").unwrap();
}

#[test]
fn who_connects_to_the_listener_itself_is_refused_at_once() {
    let chain = chain("delay=1ms");
    let path = ["--listen", "[::]:7000", "--intercept", "0.0.0.0/0,::/0", "--keep-client"];
    let world = World { proxy: Proxy::start(&chain.hops()[0], &path).unwrap(), chain };
    let to: SocketAddr = "10.1.0.2:7000".parse().unwrap();
    let connect = || TcpStream::connect_timeout(&to, Duration::from_secs(5));
    for n in 1..=3 {
        let client = world.chain.client().netns().enter(connect).unwrap();
        let ended = client.and_then(|mut client| {
            client.set_read_timeout(Some(Duration::from_secs(5)))?;
            client.read(&mut [0])
        });
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::ConnectionReset);
        let counters = &status(&world.proxy)["counters"];
        assert_eq!((&counters["refused"]["denied"], &counters["open"]), (&n.into(), &0.into()));
    }
}

/// What a proxy says of itself.
fn status(proxy: &Proxy) -> Value {
    let mut status = Command::new(env!("CARGO_BIN_EXE_viaduct"));
    status.args(["status", "--json", "--run-dir"]).arg(proxy.directory());
    serde_json::from_slice(&status.output().unwrap().stdout).unwrap()
}

#[test]
fn what_a_killed_proxy_left_is_put_back_by_the_next_of_its_name_whatever_that_does() {
    let mut world = World::new("delay=1ms");
    let pid = Pid::from_raw(world.proxy.process().id().cast_signed()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    world.proxy.process().wait().unwrap();
    let rules = || {
        let tables = world.hop().run("nft", &["list", "tables"]).unwrap();
        tables + &world.hop().run("ip", &["rule", "list", "priority", "118"]).unwrap()
    };
    let journal = world.proxy.directory().join("proxy-7000.changes.json");
    assert!(journal.exists() && rules().contains("viaduct_proxy_7000"));
    let directory = world.proxy.directory().display().to_string();
    let to = ["--listen", "[::]:7000", "--to", "10.2.0.2:9000", "--run-dir", &directory];
    let _next = Proxy::start(world.hop(), &to).unwrap();
    assert_eq!((rules().as_str(), journal.exists()), ("", false));
}

fn eventually(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn rules_that_somebody_takes_away_are_put_back() {
    let world = World::new("delay=1ms");
    for (n, taken) in
        ["nft flush ruleset", "ip rule del priority 118", "ip -6 rule del priority 118"]
            .iter()
            .enumerate()
    {
        let words: Vec<_> = taken.split(' ').collect();
        world.hop().run(words[0], &words[1..]).unwrap();
        let restored = || status(&world.proxy)["restored"] == n + 1;
        eventually(taken, restored);
        for ip in world.addresses() {
            let listener = world.listen(ip);
            let client = world.connect(ip).unwrap();
            let peer = listener.accept().unwrap().1.ip();
            assert_ne!(peer, client.local_addr().unwrap().ip(), "split again after {taken}");
        }
    }
    assert_eq!(world.proxy.log().matches("are back").count(), 3, "{}", world.proxy.log());
}

#[test]
fn no_syn_goes_on_early_while_rules_cannot_be_put_back() {
    let world = World::new("delay=1ms");
    let ip = world.addresses()[0];
    let listener = world.listen(ip);
    // Nobody else may touch the table while its owner is there.
    let robber = || {
        let mut command = Command::new("nft");
        command.arg("-i").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
    };
    let mut robber = world.hop().netns().enter(robber).unwrap();
    let mut orders = robber.stdin.take().unwrap();
    writeln!(orders, "flush ruleset; add table inet viaduct_proxy_7000 {{ flags owner; }}")
        .unwrap();
    eventually("missed", || status(&world.proxy)["missing"] == true);
    let client = world.connect(ip).unwrap();
    assert_eq!(listener.accept().unwrap().1, client.local_addr().unwrap(), "it passes by");
    listener.set_nonblocking(true).unwrap();
    thread::sleep(Duration::from_millis(300));
    assert!(listener.accept().is_err(), "and its SYN went out once");
    drop(orders);
    robber.wait().unwrap();
    eventually("put back", || status(&world.proxy)["restored"] == 1);
    listener.set_nonblocking(false).unwrap();
    let client = world.connect(ip).unwrap();
    assert_ne!(listener.accept().unwrap().1, client.local_addr().unwrap());
    assert_eq!(status(&world.proxy)["missing"], false);
}

/// What curl gets from a web server, through what `options` say.
fn curl(chain: &Chain, options: &str) -> Result<String, String> {
    let url = format!("http://{}:8080/file", chain.server().v4());
    let arguments = format!("--silent --show-error --fail --max-time 10 {options} {url}");
    let arguments: Vec<&str> = arguments.split_whitespace().collect();
    chain.client().run("curl", &arguments).map_err(|error| error.to_string())
}

#[test]
fn clients_that_say_where_to_are_served_in_each_language_and_others_refused() {
    let chain = chain("delay=1ms");
    let web = WebServer::start(chain.server(), 50_000, 1).unwrap();
    // The longest way: a hop that is told by PROXY behind one that hears SOCKS5 and CONNECT.
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
    let (_second, _first) = (start(second), start(first));
    let direct = web.download(chain.client(), Duration::from_secs(10)).unwrap();
    assert_eq!(direct.bytes, 50_000);
    for options in ["--socks5 10.1.0.2:7001", "--proxytunnel --proxy http://10.1.0.2:7001"] {
        let write = format!("{options} --output /dev/null --write-out %{{size_download}}");
        assert_eq!(curl(&chain, &write).unwrap(), "50000", "{options}");
    }
    let elsewhere = "--proxytunnel --proxy http://10.1.0.2:7001 --connect-to ::10.1.0.2:7001";
    assert!(curl(&chain, elsewhere).unwrap_err().contains("403"), "a server that is not allowed");
    let unheard = "--proxytunnel --proxy http://10.1.0.2:7002";
    assert!(curl(&chain, unheard).is_err(), "a client that is not allowed");
}

/// Sends a few bytes and gets them back.
fn echo(client: &mut TcpStream, server: &mut TcpStream) {
    let mut got = [0; 5];
    client.write_all(b"there").unwrap();
    server.read_exact(&mut got).unwrap();
    server.write_all(&got).unwrap();
    client.read_exact(&mut got).unwrap();
}

#[test]
fn several_loops_accept_those_whose_syns_they_have_seen_and_are_one_proxy() {
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
    let mut status = Command::new(env!("CARGO_BIN_EXE_viaduct"));
    status.args(["status", "--json", "--run-dir"]).arg(world.proxy.directory());
    let status: Value = serde_json::from_slice(&status.output().unwrap().stdout).unwrap();
    let counters = &status["counters"];
    for what in ["open", "accepted", "opened"] {
        assert_eq!(counters[what], 2 * EACH, "{what} in {counters}");
    }
    assert_eq!(counters["early"]["matched"], 2 * EACH, "by the right loop: {counters}");
    assert_eq!(counters["bytes"], serde_json::json!([2 * EACH * 5, 2 * EACH * 5]));

    let second = Proxy::start(
        world.hop(),
        &["--listen", "[::]:7000", "--to", "10.2.0.2:1", "--workers", "2"],
    );
    assert!(second.unwrap_err().to_string().contains("alone"), "their turns would be mixed up");
    let pid = Pid::from_raw(world.proxy.process().id().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    thread::sleep(Duration::from_millis(300));
    for (client, server) in &mut open {
        echo(client, server);
    }
    drop(open);
    assert!(world.proxy.process().wait().unwrap().success(), "all loops have ended");
}

#[test]
fn a_listener_that_takes_nothing_of_what_is_intercepted_is_refused() {
    let check = |listen: &str, intercept: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_viaduct"));
        command.args(["proxy", "--check", "--listen", listen, "--intercept", intercept]);
        String::from_utf8(command.output().unwrap().stderr).unwrap()
    };
    assert_eq!(check("[::]:7000", "10.2.0.0/16,fd02::/16"), "");
    assert_eq!(check("0.0.0.0:7000", "10.2.0.0/16"), "");
    for (listen, intercept) in [
        ("127.0.0.1:7000", "10.2.0.0/16"),
        ("0.0.0.0:7000", "10.2.0.0/16,fd02::/16"),
        ("[fd01::1]:7000", "fd02::/16"),
    ] {
        let said = check(listen, intercept);
        assert!(
            said.contains("intercept") && said.contains(&format!("listen is {listen}")),
            "{said}"
        );
    }
}

#[test]
fn what_only_one_loop_can_do_is_refused_to_several() {
    let check = |more: &str| {
        let options = "proxy --check --listen 127.0.0.1:7000 --to 127.0.0.1:1 --workers 2";
        let mut command = Command::new(env!("CARGO_BIN_EXE_viaduct"));
        let output = command.args(options.split(' ').chain(more.split_whitespace())).output();
        String::from_utf8(output.unwrap().stderr).unwrap()
    };
    assert_eq!(check(""), "");
    for (more, what) in [
        ("--on-demand", "on-demand"),
        ("--idle-exit 9s", "idle-exit"),
        ("--accept after-connect", "accept after-connect"),
    ] {
        let said = check(more);
        assert!(said.contains(&format!("workers: 2 cannot be had with {what}")), "{said}");
    }
}

#[test]
fn what_makes_no_sense_or_has_no_effect_is_refused_in_one_line() {
    const TO: &str = "--listen 127.0.0.1:7000 --to 127.0.0.1:1";
    const PATH: &str = "--listen [::]:7000 --intercept 10.2.0.0/16";
    const ASKED: &str = "--listen [::]:7000 --allow-from ::/0 --allow-to ::/0 --expect";
    let scratch = Scratch::new().unwrap();
    let password = |text: &str| {
        let file = scratch.write(&format!("password-{}", text.len()), text).unwrap();
        format!("{ASKED} socks --password-file {}", file.display())
    };
    let check = |options: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_viaduct"));
        let output = command.args(["proxy", "--check"]).args(options.split_whitespace()).output();
        let output = output.unwrap();
        let said = [output.stderr, output.stdout].concat();
        (output.status.success(), String::from_utf8(said).unwrap())
    };
    for right in [TO, PATH, &format!("{PATH} --ports 80,8000-8010"), &format!("{ASKED} socks")] {
        assert!(check(right).0, "{right}: {}", check(right).1);
    }
    let (_, said) = check(&password("me:pw\n"));
    assert!(said.contains("mode 644: others can read it; 600 is right"), "{said}");
    let wrong = [
        ("", "give listen, and to, intercept or expect; or tunnel-listen"),
        ("--listen [::]:7000", "give listen, and to, intercept or expect; or tunnel-listen"),
        ("--to 127.0.0.1:1", "listen: it is not said"),
        ("--listen [::]:7000 --to host.example:80", "names of hosts are not looked up"),
        ("--listen [::]:7000 --to 127.0.0.1:0", "a port from 1 to 65535"),
        ("--listen [::]:0 --to 127.0.0.1:1", "a port from 1 to 65535"),
        ("--listen [::]:7000 --intercept 10.2.0.5/16", "10.2.0.0/16 is expected"),
        (&format!("{TO} --flows 0"), "a number from 1"),
        (&format!("{TO} --flows 300 --early-most 151"), "more than half of flows, 150"),
        (&format!("{TO} --rate 5"), "1k at least"),
        (&format!("{TO} --connect-timeout 0s"), "a time above 0s"),
        (&format!("{TO} --chain-buffer 0"), "4096 at least"),
        (&format!("{TO} --receive-buffer 1"), "4096 at least"),
        (&format!("{TO} --tunnel-buffer 0"), "65536"),
        (&format!("{TO} --ports 80"), "ports: they are intercept's"),
        (&format!("{TO} --keep-client"), "keep-client: it is intercept's"),
        (&format!("{TO} --links 3"), "links: the end that dials"),
        (&format!("{TO} --tell proxy"), "tell: no hop"),
        (&format!("{PATH} --ports 0"), "a port or a range"),
        (&format!("{PATH} --ports 1-200"), "128 are possible"),
        (&format!("{ASKED} proxy --password-file x"), "only SOCKS and CONNECT"),
        (&password("me:pw\nyou:pw\n"), "one line, NAME:PASSWORD"),
        (&password(":\n"), "1 to 255 bytes"),
        (&password(&format!("me:{}\n", "x".repeat(256))), "1 to 255 bytes"),
    ];
    for (options, expected) in wrong {
        let (right, said) = check(options);
        assert!(!right && said.contains(expected), "{options}: {said}");
    }
}

#[test]
fn there_are_no_more_flows_than_descriptors_for_them() {
    let mut command = Command::new("sh");
    let script = "ulimit -n 64; exec \"$0\" proxy --check --listen [::]:7000 --to 127.0.0.1:1";
    let output = command.args(["-c", script, env!("CARGO_BIN_EXE_viaduct")]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && said.contains("enough for 16 flows"), "{said}");
}

#[test]
fn a_tunnel_with_a_congestion_control_that_is_not_there_is_refused() {
    let scratch = Scratch::new().unwrap();
    let key = scratch.write("key", SecretKey::from_bytes([1; 32]).to_text()).unwrap();
    let peer = SecretKey::from_bytes([2; 32]).public();
    let check = |more: &str| {
        let options = format!("--key {} --peer {peer} --link-congestion {more}", key.display());
        let mut command = Command::new(env!("CARGO_BIN_EXE_viaduct"));
        let command = command.args(["proxy", "--check"]).args(options.split_whitespace());
        String::from_utf8(command.output().unwrap().stderr).unwrap()
    };
    let near = "--listen 127.0.0.1:7000 --to 127.0.0.1:1 --tunnel 127.0.0.1:7100";
    let far = "--tunnel-listen 127.0.0.1:7100 --allow-to 127.0.0.1";
    for end in [near, far] {
        let said = check(&format!("nosuch {end}"));
        assert!(said.contains("link-congestion: \"nosuch\" is unknown here; there are"), "{said}");
        let said = check(&format!("reno {end}"));
        assert!(!said.contains("link-congestion"), "{said}");
    }
    let said = check(&format!("nosuch {near} --carrier quic"));
    assert!(said.contains("QUIC has cubic, bbr and reno"), "{said}");
}
