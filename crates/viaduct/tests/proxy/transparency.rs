//! Transparency: two programs that talk over TCP see the same with and without Viaduct between
//! them. Each scenario runs over a direct connection first, and then over each kind of proxy.

use std::hash::{DefaultHasher, Hasher as _};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;
use viaduct_lab::binary::use_binary;
use viaduct_lab::proxies::Proxy;
use viaduct_lab::topology::{Chain, Journal, Scratch};
use viaduct_proto::keys::SecretKey;
use viaduct_proto::link::LinkConfig;
use viaduct_proto::rng::Rng;
use viaduct_sys::socket::tcp;

use crate::common;

/// Port of the server, and a port without a listener.
const OPEN: u16 = 9000;
const CLOSED: u16 = 9001;
/// Ports of the near proxy that forward to `OPEN`, to `CLOSED`, and to a host that does not exist.
const TO_OPEN: u16 = 7000;
const TO_CLOSED: u16 = 7001;
const TO_NOWHERE: u16 = 7002;

/// Observation of one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Saw {
    /// This many bytes with this hash, and then the end of the stream.
    End(usize, u64),
    /// This many bytes before a reset.
    Reset(usize),
}

/// Observations of the client and the server; `None` if there was no flow.
type Outcome = Option<(Saw, Saw)>;

fn data(bytes: usize, seed: u64) -> Vec<u8> {
    let mut data = vec![0; bytes];
    Rng::from_seed(seed).fill(&mut data);
    data
}

/// Reads to the end, and sleeps for `nap` after each `every` bytes.
fn read(stream: &mut TcpStream, every: usize, nap: Duration) -> Saw {
    let (mut hash, mut sum, mut since) = (DefaultHasher::new(), 0, 0);
    let mut chunk = vec![0; 256 << 10];
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => return Saw::End(sum, hash.finish()),
            Ok(count) => {
                chunk[..count].iter().for_each(|&byte| hash.write_u8(byte));
                (sum, since) = (sum + count, since + count);
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Saw::Reset(sum),
            Err(error) => panic!("after {sum} bytes: {error}"),
        }
        if since >= every {
            thread::sleep(nap);
            since = 0;
        }
    }
}

fn read_all(stream: &mut TcpStream) -> Saw {
    read(stream, usize::MAX, Duration::ZERO)
}

fn write(mut stream: &TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
}

/// Makes the drop of the stream send a reset.
fn reset(stream: &TcpStream) {
    set_socket_linger(stream, Some(Duration::ZERO)).unwrap();
}

type Program = fn(TcpStream) -> Saw;

/// Scenarios: name, client, server.
const SCENARIOS: &[(&str, Program, Program)] = &[
    ("no data", quiet, quiet),
    ("one byte at a time", single_bytes, echo_bytes),
    (
        "the client ends first",
        |mut s| {
            write(&s, b"a question");
            read_all(&mut s)
        },
        |mut s| {
            let saw = read_all(&mut s);
            write(&s, &data(1_000_000, 1));
            saw
        },
    ),
    (
        "the server ends first",
        |mut s| {
            let saw = read_all(&mut s);
            write(&s, &data(1_000_000, 2));
            saw
        },
        |mut s| {
            write(&s, b"a greeting");
            read_all(&mut s)
        },
    ),
    ("much data, both ways concurrently", |s| both_ways(s, 3), |s| both_ways(s, 4)),
    (
        "a slow reader",
        |mut s| {
            write(&s, &data(8_000_000, 5));
            read_all(&mut s)
        },
        |mut s| {
            s.shutdown(Shutdown::Write).unwrap();
            read(&mut s, 400_000, Duration::from_millis(30))
        },
    ),
    (
        "a slow writer",
        |mut s| {
            slowly(&s);
            read_all(&mut s)
        },
        |mut s| {
            let saw = read_all(&mut s);
            s.shutdown(Shutdown::Write).unwrap();
            saw
        },
    ),
    (
        "a reset by the client",
        |mut s| {
            s.read_exact(&mut [0; 5]).unwrap();
            reset(&s);
            Saw::Reset(5)
        },
        |mut s| {
            s.write_all(b"hello").unwrap();
            read_all(&mut s)
        },
    ),
    (
        "a reset by the server",
        |mut s| {
            s.write_all(b"hello").unwrap();
            read_all(&mut s)
        },
        |mut s| {
            s.read_exact(&mut [0; 5]).unwrap();
            reset(&s);
            Saw::Reset(5)
        },
    ),
    (
        "a reset before any data",
        |mut s| read_all(&mut s),
        |s| {
            reset(&s);
            Saw::Reset(0)
        },
    ),
    (
        "some data, and a reset",
        |mut s| read_all(&mut s),
        |mut s| {
            s.write_all(b"a word").unwrap();
            until_acknowledged(&s);
            reset(&s);
            Saw::Reset(0)
        },
    ),
    // Like a server that answers without reading the complete request.
    ("a short answer, and a reset", half_heard, |s| answer_unheard(s, 200, |_| {})),
    ("a long answer, and a reset", half_heard, |s| answer_unheard(s, 200_000, until_acknowledged)),
    (
        "the last data of a client, and a reset",
        |s| {
            (&s).write_all(&data(50_000, 8)).unwrap();
            until_acknowledged(&s);
            reset(&s);
            Saw::Reset(0)
        },
        |mut s| read(&mut s, 10_000, Duration::from_millis(5)),
    ),
];

/// Waits until all sent data is acknowledged, because a reset would discard the rest.
fn until_acknowledged(stream: &TcpStream) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while tcp::sending(stream).unwrap().held > 0 {
        assert!(Instant::now() < deadline, "the data is not acknowledged");
        thread::sleep(Duration::from_millis(1));
    }
}

fn half_heard(mut stream: TcpStream) -> Saw {
    stream.write_all(&data(3_000, 9)).unwrap();
    read_all(&mut stream)
}

fn answer_unheard(mut stream: TcpStream, bytes: usize, then: fn(&TcpStream)) -> Saw {
    stream.read_exact(&mut [0]).unwrap();
    stream.write_all(&data(bytes, 10)).unwrap();
    then(&stream);
    Saw::Reset(1)
}

fn quiet(mut stream: TcpStream) -> Saw {
    stream.shutdown(Shutdown::Write).unwrap();
    read_all(&mut stream)
}

fn single_bytes(mut stream: TcpStream) -> Saw {
    stream.set_nodelay(true).unwrap();
    for byte in data(100, 6) {
        stream.write_all(&[byte]).unwrap();
        let mut back = [0];
        stream.read_exact(&mut back).unwrap();
        assert_eq!(back, [byte]);
    }
    quiet(stream)
}

fn echo_bytes(mut stream: TcpStream) -> Saw {
    stream.set_nodelay(true).unwrap();
    let mut byte = [0];
    while stream.read(&mut byte).unwrap() == 1 {
        stream.write_all(&byte).unwrap();
    }
    quiet(stream)
}

fn both_ways(mut stream: TcpStream, seed: u64) -> Saw {
    let writer = stream.try_clone().unwrap();
    let writes = thread::spawn(move || write(&writer, &data(size(), seed)));
    let saw = read_all(&mut stream);
    writes.join().unwrap();
    saw
}

fn slowly(mut stream: &TcpStream) {
    for chunk in data(100_000, 7).chunks(1_000) {
        stream.write_all(chunk).unwrap();
        thread::sleep(Duration::from_millis(3));
    }
    stream.shutdown(Shutdown::Write).unwrap();
}

/// Bytes of a large transfer: 16 MB, or 1 GB if `VIADUCT_LARGE` is set.
fn size() -> usize {
    if std::env::var_os("VIADUCT_LARGE").is_some() { 1_000_000_000 } else { 16_000_000 }
}

/// A client, two hops and a server, and the proxies on the hops.
struct World {
    _proxies: Vec<Proxy>,
    chain: Chain,
    /// Addresses to which the client connects instead of the server.
    by: Option<[IpAddr; 2]>,
}

impl World {
    /// Builds the world with proxies that `start` starts on the hops.
    fn new(start: impl FnOnce(&Chain) -> Vec<Proxy>) -> World {
        use_binary(env!("CARGO_BIN_EXE_viaduct"));
        // The client is farther away than the server, so the server's answer may arrive before the
        // client's handshake ends.
        let links = ["delay=5ms", "delay=1ms", "delay=1ms"];
        let links = links.map(|link| link.parse::<LinkConfig>().unwrap());
        let chain = Chain::build(&links, 1, &Journal::new()).unwrap();
        // The hops refuse these destinations, like a router without a route.
        for hop in chain.hops() {
            let absent = ["10.99.0.0/16", "fd99::/64"];
            hop.ip(&absent.map(|net| format!("route add unreachable {net}"))).unwrap();
        }
        let proxies = start(&chain);
        let near = [IpAddr::from(Ipv4Addr::new(10, 1, 0, 2)), "fd00:1::2".parse().unwrap()];
        World { by: (!proxies.is_empty()).then_some(near), _proxies: proxies, chain }
    }

    /// Runs a scenario in one address family.
    fn run(&self, v6: bool, (client, server): (Program, Program)) -> Outcome {
        let ip = self.chain.server().addresses().find(|ip| ip.is_ipv6() == v6).unwrap();
        // A child process of another test may hold an earlier listener at this port open for a
        // moment.
        let bind = || TcpListener::bind(SocketAddr::new(ip, OPEN)).ok();
        let listen = || common::within_some(Duration::from_secs(5), bind).unwrap();
        let listener = self.chain.server().netns().enter(listen).unwrap();
        let server = thread::spawn(move || server(patient(listener.accept().unwrap().0)));
        let stream = self.connect(v6, ip, OPEN).expect("the flow is refused");
        let saw = client(stream);
        Some((saw, server.join().unwrap()))
    }

    fn connect(&self, v6: bool, ip: IpAddr, port: u16) -> std::io::Result<TcpStream> {
        let to = match self.by {
            None => SocketAddr::new(ip, port),
            Some(near) => {
                let by = match port {
                    OPEN => TO_OPEN,
                    CLOSED => TO_CLOSED,
                    _ => TO_NOWHERE,
                };
                // Each family has ports of its own.
                SocketAddr::new(near[usize::from(v6)], by + 10 * u16::from(v6))
            }
        };
        let connect = || TcpStream::connect_timeout(&to, Duration::from_secs(10));
        Ok(patient(self.chain.client().netns().enter(connect).unwrap()?))
    }

    /// Returns the outcome of a connection to a closed port or an absent host.
    fn absent(&self, v6: bool, port: u16) -> Outcome {
        let ip = match (port, v6) {
            (CLOSED, _) => self.chain.server().addresses().find(|ip| ip.is_ipv6() == v6).unwrap(),
            (_, false) => NOWHERE.0.into(),
            (_, true) => NOWHERE.1.into(),
        };
        let refusals: &[ErrorKind] = match port {
            CLOSED => &[ErrorKind::ConnectionRefused],
            _ => &[ErrorKind::HostUnreachable, ErrorKind::NetworkUnreachable],
        };
        match self.connect(v6, ip, port) {
            Err(error) => {
                assert!(refusals.contains(&error.kind()), "port {port}: {error}");
                None
            }
            // If the proxy accepts before it connects to the server, it must reset the client
            // without data.
            Ok(mut stream) => match read_all(&mut stream) {
                Saw::Reset(0) => None,
                saw => panic!("a flow without a server: {saw:?}"),
            },
        }
    }
}

/// Addresses without a host. The hops have only an `unreachable` route to them.
const NOWHERE: (Ipv4Addr, Ipv6Addr) =
    (Ipv4Addr::new(10, 99, 0, 1), Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 1));

fn patient(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

/// Targets of the near hop: port of the hop and destination. Each family has ports of its own.
fn targets(chain: &Chain) -> Vec<(u16, SocketAddr)> {
    let mut targets = Vec::new();
    for to in chain.server().addresses() {
        let nowhere: IpAddr = if to.is_ipv6() { NOWHERE.1.into() } else { NOWHERE.0.into() };
        let own = 10 * u16::from(to.is_ipv6());
        targets.push((TO_OPEN + own, SocketAddr::new(to, OPEN)));
        targets.push((TO_CLOSED + own, SocketAddr::new(to, CLOSED)));
        targets.push((TO_NOWHERE + own, SocketAddr::new(nowhere, OPEN)));
    }
    targets
}

/// Starts proxies at the near hop, one for each target, with further arguments.
fn near(chain: &Chain, arguments: &[&str]) -> Vec<Proxy> {
    let start = |(port, to): (u16, SocketAddr)| {
        let words = [&["--listen", &format!("[::]:{port}"), "--to", &to.to_string()], arguments];
        Proxy::start(&chain.hops()[0], &words.concat()).unwrap()
    };
    targets(chain).into_iter().map(start).collect()
}

/// Starts proxies as [`near`] does, but each forwards through a tunnel to the second hop.
fn tunnels(chain: &Chain, carrier: &str, keys: &Scratch) -> Vec<Proxy> {
    let key = |name: &str, byte: u8| {
        let secret = SecretKey::from_bytes([byte; 32]);
        let file = keys.write_secret(name, secret.to_text()).unwrap();
        (file.display().to_string(), secret.public().to_string())
    };
    let ((ours, our_name), (theirs, their_name)) = (key("near.key", 1), key("far.key", 2));
    let mut proxies = Vec::new();
    for (port, to) in targets(chain) {
        let meet = 100 + port;
        let far = format!(
            "--tunnel-listen [::]:{meet} --allow-to 0.0.0.0/0,::/0 --key {theirs} --peer {our_name}"
        );
        let near = format!(
            "--listen [::]:{port} --to {to} --tunnel 10.2.0.2:{meet} --carrier {carrier} \
             --key {ours} --peer {their_name}"
        );
        for (hop, words) in [(1, far), (0, near)] {
            let words: Vec<_> = words.split_whitespace().collect();
            proxies.push(Proxy::start(&chain.hops()[hop], &words).unwrap());
        }
    }
    proxies
}

/// Compares all scenarios in both families with a direct connection.
fn compare(start: impl FnOnce(&Chain) -> Vec<Proxy>) {
    let (direct, through) = (World::new(|_| Vec::new()), World::new(start));
    for v6 in [false, true] {
        for &(name, client, server) in SCENARIOS {
            let expected = direct.run(v6, (client, server));
            assert_eq!(through.run(v6, (client, server)), expected, "{name}, IPv6: {v6}");
        }
        for port in [CLOSED, 0] {
            assert_eq!((direct.absent(v6, port), through.absent(v6, port)), (None, None), "{port}");
        }
    }
}

#[test]
fn a_relay_is_transparent() {
    compare(|chain| near(chain, &[]));
}

#[test]
fn two_hops_are_transparent() {
    compare(|chain| {
        let second =
            ["--listen", "[::]:7100", "--expect", "proxy", "--allow-from", "::/0,0.0.0.0/0"];
        let allow = ["--allow-to", "::/0,0.0.0.0/0"];
        let mut proxies = near(chain, &["--next", "10.2.0.2:7100"]);
        proxies.push(Proxy::start(&chain.hops()[1], &[&second[..], &allow].concat()).unwrap());
        proxies
    });
}

#[test]
fn handlers_are_transparent() {
    compare(|chain| near(chain, &["--handler", "count", "--handler", "latency:delay=3ms"]));
}

#[test]
fn a_tunnel_over_tcp_is_transparent() {
    let keys = Scratch::new().unwrap();
    compare(|chain| tunnels(chain, "tcp", &keys));
}

#[test]
fn a_tunnel_over_quic_is_transparent() {
    let keys = Scratch::new().unwrap();
    compare(|chain| tunnels(chain, "quic", &keys));
}
