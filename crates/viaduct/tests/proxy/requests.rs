//! Clients that name their destination by SOCKS5 or HTTP CONNECT: resolution of host names, and the
//! proxy's replies.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use viaduct_lab::binary::use_binary;
use viaduct_lab::proxies::Proxy;
use viaduct_lab::topology::{Chain, Journal, Node, Scratch};
use viaduct_proto::keys::SecretKey;
use viaduct_proto::link::LinkConfig;

use crate::rules;

const PORT: u16 = 9000;
const TIMEOUT: Duration = Duration::from_secs(10);

/// A client, two routers, a server: 10.1.0.1, 10.1.0.2, 10.2.0.2, 10.3.0.2.
struct World {
    chain: Chain,
    keys: Scratch,
}

impl World {
    fn new() -> World {
        use_binary(env!("CARGO_BIN_EXE_viaduct"));
        let link: LinkConfig = "delay=1ms".parse().unwrap();
        let links = [link.clone(), link.clone(), link];
        let chain = Chain::build(&links, 1, &Journal::new()).unwrap();
        World { chain, keys: Scratch::new().unwrap() }
    }

    /// Adds to `options` the keys of a tunnel's end and of its peer, which are made of these bytes.
    fn keyed(&self, options: &str, [own, peer]: [u8; 2]) -> String {
        let key = SecretKey::from_bytes([own; 32]).to_text();
        let file = self.keys.write(&format!("{own}.key"), key).unwrap();
        let peer = SecretKey::from_bytes([peer; 32]).public();
        format!("{options} --key {} --peer {peer}", file.display())
    }

    fn near(&self) -> &Node {
        &self.chain.hops()[0]
    }

    fn far(&self) -> &Node {
        &self.chain.hops()[1]
    }

    /// Starts a server that echoes until the test ends.
    fn echo(&self) {
        let listen = || TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).unwrap();
        let listener = self.chain.server().netns().enter(listen).unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut data = Vec::new();
                let _ = stream.read_to_end(&mut data);
                let _ = stream.write_all(&data);
            }
        });
    }

    /// Connects from the client to the proxy at `at`.
    fn connect(&self, at: &str) -> TcpStream {
        let at: SocketAddr = at.parse().unwrap();
        let connect = || TcpStream::connect_timeout(&at, TIMEOUT).unwrap();
        let stream = self.chain.client().netns().enter(connect).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    }

    /// Requests a flow to the host name `host` from the proxy at `at`, by SOCKS5. Returns the reply
    /// code and the flow.
    fn socks(&self, at: &str, host: &str, port: u16) -> (u8, TcpStream) {
        let mut stream = self.connect(at);
        stream.write_all(&[5, 1, 0]).unwrap();
        stream.read_exact(&mut [0; 2]).unwrap();
        let length = [u8::try_from(host.len()).unwrap()];
        let request = [&[5, 1, 0, 3], &length[..], host.as_bytes(), &port.to_be_bytes()].concat();
        stream.write_all(&request).unwrap();
        let mut reply = [0; 10];
        stream.read_exact(&mut reply).unwrap();
        (reply[1], stream)
    }

    /// Requests a flow to `host` by HTTP CONNECT. Returns the head of the answer, and the stream
    /// with what follows: the flow, or the reason for an error.
    fn http(&self, at: &str, host: &str, port: u16) -> (String, TcpStream) {
        let mut stream = self.connect(at);
        stream.write_all(format!("CONNECT {host}:{port} HTTP/1.1\r\n\r\n").as_bytes()).unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.extend(byte);
        }
        (String::from_utf8(head).unwrap(), stream)
    }
}

fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

/// Returns whether the flow echoes what is sent on it.
fn echoes(mut flow: TcpStream) -> bool {
    flow.write_all(b"these words return").unwrap();
    flow.shutdown(Shutdown::Write).unwrap();
    let mut back = Vec::new();
    flow.read_to_end(&mut back).is_ok() && back == b"these words return"
}

#[test]
fn a_tunnel_carries_names_and_the_far_end_resolves_them() {
    let world = World::new();
    world.echo();
    let far = "--tunnel-listen 10.2.0.2:7100 --allow-to 10.3.0.2/32";
    // The first address of the name is not allowed, and must be skipped.
    let hosts = "10.3.0.1 only.there\n10.3.0.2 only.there\n10.2.0.2 not.allowed\n";
    let files = [("/etc/hosts", hosts), ("/etc/resolv.conf", "nameserver 127.0.0.1\n")];
    let far = world.keyed(far, [2, 1]);
    let _far = Proxy::with_files(world.far(), &files, &words(&far)).unwrap();
    let dns = world.far().netns().enter(|| UdpSocket::bind("10.2.0.2:53").unwrap()).unwrap();
    let near = |port: u16, allowed: &str| {
        let options = format!(
            "--listen 10.1.0.2:{port} --expect socks,connect --allow-from 10.1.0.1/32 \
             --allow-to {allowed} --tunnel 10.2.0.2:7100"
        );
        let files = [("/etc/hosts", ""), ("/etc/resolv.conf", "nameserver 10.2.0.2\n")];
        Proxy::with_files(world.near(), &files, &words(&world.keyed(&options, [1, 2]))).unwrap()
    };
    let _near = near(7000, "0.0.0.0/0,::/0");
    let (reply, flow) = world.socks("10.1.0.2:7000", "only.there", PORT);
    assert!(reply == 0 && echoes(flow), "by SOCKS: {reply}");
    let (head, flow) = world.http("10.1.0.2:7000", "only.there", PORT);
    assert!(head.starts_with("HTTP/1.1 200 ") && echoes(flow), "by CONNECT: {head}");
    for name in ["not.allowed", "un.known"] {
        let (_, flow) = world.socks("10.1.0.2:7000", name, PORT);
        assert!(!echoes(flow), "{name}");
    }
    dns.set_nonblocking(true).unwrap();
    let asked = dns.recv(&mut [0; 512]).map_err(|error| error.kind());
    assert_eq!(asked, Err(ErrorKind::WouldBlock), "the near end has sent a query");

    // A near end that allows only some addresses resolves names itself.
    let _particular = near(7001, "10.0.0.0/8");
    let mut stream = world.connect("10.1.0.2:7001");
    stream.write_all(b"CONNECT only.there:9000 HTTP/1.1\r\n\r\n").unwrap();
    dns.set_nonblocking(false).unwrap();
    dns.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut query = [0; 512];
    let length = dns.recv(&mut query).unwrap();
    assert!(query[..length].windows(10).any(|part| part == b"\x04only\x05ther"), "{query:?}");
}

/// Servers (host and port), with the expected replies: SOCKS5 code, HTTP status, and a word of the
/// status line.
const ANSWERS: [(&str, u16, u8, &str, &str); 5] = [
    ("10.3.0.2", PORT, 0, "200 ", ""),
    ("10.3.0.2", 9001, 5, "502 ", "refuses"),
    ("10.77.0.1", PORT, 4, "502 ", "no route"),
    ("10.3.0.2", 9002, 6, "504 ", "not answer"),
    ("192.0.2.1", PORT, 2, "403 ", "not allowed"),
];

#[test]
fn clients_get_the_same_replies_through_every_next_hop() {
    let world = World::new();
    world.echo();
    let deaf = "add table inet deaf; \
                add chain inet deaf input { type filter hook input priority 0; }; \
                add rule inet deaf input tcp dport 9002 drop";
    world.chain.server().run("nft", &[deaf]).unwrap();
    for node in [world.near(), world.far()] {
        node.ip(&["route add unreachable 10.77.0.0/16".into()]).unwrap();
    }
    let start = |node: &Node, options: &str| Proxy::start(node, &words(options)).unwrap();
    let hop = |port: u16, language: &str| {
        let allowed = "--allow-from 10.2.0.1/32 --allow-to 10.0.0.0/8";
        let listen = format!("--listen 10.2.0.2:{port} --expect {language}");
        start(world.far(), &format!("{listen} {allowed} --accept after-connect"))
    };
    let _hops = [hop(7001, "option"), hop(7002, "option,proxy")];
    let far = "--tunnel-listen 10.2.0.2:7100 --allow-to 10.0.0.0/8";
    let _far = start(world.far(), &world.keyed(far, [2, 1]));
    let some = "--allow-to 10.0.0.0/8";
    let ways = [
        some.to_owned(),
        format!("{some} --next 10.2.0.2:7001 --tell option"),
        format!("{some} --next 10.2.0.2:7002 --tell proxy-tfo"),
        // Here the far end, not the near end, refuses the last destination.
        world.keyed("--allow-to 0.0.0.0/0,::/0 --tunnel 10.2.0.2:7100", [1, 2]),
    ];
    for way in ways {
        let options = "--listen 10.1.0.2:7000 --expect socks,connect --allow-from 10.1.0.1/32 \
                       --accept after-connect --connect-timeout 1s";
        let _near = start(world.near(), &format!("{options} {way}"));
        for (host, port, code, status, why) in ANSWERS {
            let (reply, flow) = world.socks("10.1.0.2:7000", host, port);
            assert_eq!(reply, code, "{host}:{port} {way}");
            assert!(code != 0 || echoes(flow), "{host}:{port} {way}");
            let (head, mut flow) = world.http("10.1.0.2:7000", host, port);
            assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{host}:{port} {way}: {head}");
            if code == 0 {
                assert!(echoes(flow), "{host}:{port} {way}");
                continue;
            }
            let mut said = String::new();
            flow.read_to_string(&mut said).unwrap();
            assert!(said.contains(why), "{host}:{port} {way}: {said}");
        }
    }
}

#[test]
fn bytes_that_arrive_with_the_request_are_counted() {
    let world = World::new();
    world.echo();
    let any = "0.0.0.0/0";
    let options = ["--listen", "10.1.0.2:7000", "--expect", "socks", "--allow-from", any];
    let proxy = Proxy::start(world.near(), &[&options[..], &["--allow-to", any]].concat()).unwrap();
    let mut stream = world.connect("10.1.0.2:7000");
    let request = [&[5, 1, 0, 5, 1, 0, 1, 10, 3, 0, 2][..], &PORT.to_be_bytes()].concat();
    stream.write_all(&[&request[..], b"hello"].concat()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut said = Vec::new();
    stream.read_to_end(&mut said).unwrap();
    assert!(said.ends_with(b"hello"), "{said:?}");
    let status = rules::status(&proxy);
    assert_eq!(status["counters"]["bytes"], serde_json::json!([5, 5]), "{status}");
}

#[test]
fn a_client_that_requests_nothing_is_not_a_failed_connect() {
    let world = World::new();
    let any = "--allow-from 0.0.0.0/0 --allow-to 0.0.0.0/0";
    let options = format!("--listen 10.1.0.2:7000 --expect connect --connect-timeout 1s {any}");
    let proxy = Proxy::start(world.near(), &words(&options)).unwrap();
    let mut client = world.connect("10.1.0.2:7000");
    client.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut said = Vec::new();
    // The refusal may be a reset.
    let _ = client.read_to_end(&mut said);
    let status = rules::status(&proxy);
    assert_eq!(status["counters"]["refused"]["timed_out"], 1, "{status}");
    assert_eq!(status["counters"]["hops"], serde_json::json!([]), "{status}");
}

#[test]
fn the_unspecified_address_does_not_bypass_rules_for_local_addresses() {
    let world = World::new();
    // Services on loopback, which only the proxy's own machine may reach.
    let own = |node: &Node| {
        let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, PORT)).unwrap();
        node.netns().enter(listen).unwrap()
    };
    let listeners = [own(world.near()), own(world.far())];
    for listener in &listeners {
        listener.set_nonblocking(true).unwrap();
    }
    let all = "--allow-to 0.0.0.0/0,::/0";
    let far = world.keyed(&format!("--tunnel-listen 10.2.0.2:7100 {all}"), [2, 1]);
    let _far = Proxy::start(world.far(), &words(&far)).unwrap();
    let expect = format!("--expect proxy,socks,connect --allow-from 10.1.0.1/32 {all}");
    let direct = format!("--listen 10.1.0.2:7000 {expect}");
    let tunnel = format!("--listen 10.1.0.2:7001 {expect} --tunnel 10.2.0.2:7100");
    let _direct = Proxy::start(world.near(), &words(&direct)).unwrap();
    let _tunnel = Proxy::start(world.near(), &words(&world.keyed(&tunnel, [1, 2]))).unwrap();
    for at in ["10.1.0.2:7000", "10.1.0.2:7001"] {
        for host in ["0.0.0.0", "::", "::ffff:0.0.0.0", "0", "0x0"] {
            let (_, flow) = world.socks(at, host, PORT);
            assert!(!echoes(flow), "{host} by SOCKS at {at}");
        }
        let (_, flow) = world.http(at, "0.0.0.0", PORT);
        assert!(!echoes(flow), "by CONNECT at {at}");
        // PROXY protocol version 2: IPv4, TCP, from 192.0.2.1:7 to 0.0.0.0.
        let mut stream = world.connect(at);
        let addresses = [&[192, 0, 2, 1, 0, 0, 0, 0, 0, 7][..], &PORT.to_be_bytes()].concat();
        let head = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c";
        stream.write_all(&[&head[..], &addresses].concat()).unwrap();
        let _ = stream.read(&mut [0]);
    }
    for listener in &listeners {
        let error = listener.accept().expect_err("the proxy has connected to 127.0.0.1").kind();
        assert_eq!(error, ErrorKind::WouldBlock);
    }
}

#[test]
fn unanswered_dns_queries_do_not_delay_other_names() {
    let world = World::new();
    world.echo();
    // A name server that never answers.
    let _deaf = world.near().netns().enter(|| UdpSocket::bind("127.0.0.1:53").unwrap()).unwrap();
    let files =
        [("/etc/hosts", "10.3.0.2 known.here\n"), ("/etc/resolv.conf", "nameserver 127.0.0.1\n")];
    let options = "--listen 10.1.0.2:7000 --expect socks --allow-from 10.1.0.1/32 \
                   --allow-to 10.0.0.0/8";
    let _proxy = Proxy::with_files(world.near(), &files, &words(options)).unwrap();
    let waiting: Vec<TcpStream> = (0..20u8)
        .map(|n| {
            let mut stream = world.connect("10.1.0.2:7000");
            stream.write_all(&[5, 1, 0]).unwrap();
            stream.read_exact(&mut [0; 2]).unwrap();
            let name = format!("unknown-{n:02}.there");
            let length = [u8::try_from(name.len()).unwrap()];
            let to = [&[5, 1, 0, 3], &length[..], name.as_bytes(), &PORT.to_be_bytes()].concat();
            stream.write_all(&to).unwrap();
            stream
        })
        .collect();
    let begun = std::time::Instant::now();
    let (reply, flow) = world.socks("10.1.0.2:7000", "known.here", PORT);
    assert!(reply == 0 && echoes(flow));
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    drop(waiting);
}
