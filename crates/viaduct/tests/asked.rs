//! Clients that say where they want to go by SOCKS5 or HTTP CONNECT: hosts that they name, and what
//! they are told of their flows.
#![allow(clippy::unwrap_used)] // a test may panic

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use viaduct_lab::binary::use_binary;
use viaduct_lab::proxies::Proxy;
use viaduct_lab::topology::{Chain, Journal, Node, Scratch};
use viaduct_proto::keys::SecretKey;
use viaduct_proto::link::LinkConfig;

const PORT: u16 = 9000;
const SECONDS: Duration = Duration::from_secs(10);

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

    /// The options of a tunnel's end whose key, and whose peer's, are made of these bytes.
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

    /// A server that sends back what it gets, for as long as the test runs.
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

    /// A connection from the client to the proxy at `at`.
    fn connect(&self, at: &str) -> TcpStream {
        let at: SocketAddr = at.parse().unwrap();
        let connect = || TcpStream::connect_timeout(&at, SECONDS).unwrap();
        let stream = self.chain.client().netns().enter(connect).unwrap();
        stream.set_read_timeout(Some(SECONDS)).unwrap();
        stream
    }

    /// Asks the proxy at `at` by SOCKS5 for `host`, as a name; its reply, and the flow.
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

    /// The same by HTTP CONNECT; the head of its answer.
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

/// Whether what is said to a flow comes back.
fn echoes(mut flow: TcpStream) -> bool {
    flow.write_all(b"is anybody there").unwrap();
    flow.shutdown(Shutdown::Write).unwrap();
    let mut back = Vec::new();
    flow.read_to_end(&mut back).is_ok() && back == b"is anybody there"
}

#[test]
fn a_name_goes_through_a_tunnel_as_it_is_and_the_far_end_alone_looks_it_up() {
    let world = World::new();
    world.echo();
    let far = "--tunnel-listen 10.2.0.2:7100 --allow-to 10.3.0.2/32";
    // The first of a name's addresses may be one that is not allowed.
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
    assert_eq!(asked, Err(ErrorKind::WouldBlock), "the near end has asked nobody");

    // Where the near end has to know addresses, it asks.
    let _particular = near(7001, "10.0.0.0/8");
    let mut stream = world.connect("10.1.0.2:7001");
    stream.write_all(b"CONNECT only.there:9000 HTTP/1.1\r\n\r\n").unwrap();
    dns.set_nonblocking(false).unwrap();
    dns.set_read_timeout(Some(SECONDS)).unwrap();
    let mut query = [0; 512];
    let length = dns.recv(&mut query).unwrap();
    assert!(query[..length].windows(10).any(|part| part == b"\x04only\x05ther"), "{query:?}");
}
