//! Chains of hops, which learn a flow's destination from an option in its SYN, from the SYN's data,
//! or from a preface; and the packets between them.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, bind, connect, shutdown};
use rustix::process::{Pid, Signal, kill_process};
use viaduct_lab::binary::use_binary;
use viaduct_lab::flood::{SYN, segment};
use viaduct_lab::proxies::Proxy;
use viaduct_lab::topology::programs::WebServer;
use viaduct_lab::topology::{Chain, Host, Journal, Node};
use viaduct_proto::link::LinkConfig;
use viaduct_proto::split::option;
use viaduct_proto::split::syn::Syn;
use viaduct_sys::capture::raw::RawSockets;
use viaduct_sys::capture::ring::{Ring, RingConfig};

pub(super) const SERVER: u16 = 9000;
const HOP: u16 = 7000;
const TIMEOUT: Duration = Duration::from_secs(10);

/// A client, two hops, a server: 10.1.0.1, 10.1.0.2, 10.2.0.2, 10.3.0.2.
pub(super) fn chain(link: &str) -> Chain {
    use_binary(env!("CARGO_BIN_EXE_viaduct"));
    let link: LinkConfig = link.parse().unwrap();
    Chain::build(&[link.clone(), link.clone(), link], 1, &Journal::new()).unwrap()
}

/// Starts a proxy with these arguments.
pub(super) fn proxy(node: &Node, words: &str) -> Proxy {
    Proxy::start(node, &words.split_whitespace().collect::<Vec<_>>()).unwrap()
}

/// Starts an explicit hop for clients in 10.0.0.0/8 and servers in 10.3.0.0/16, and for the same
/// sites in IPv6.
pub(super) fn hop(node: &Node, at: &str, words: &str) -> Proxy {
    let allowed = "--allow-from 10.0.0.0/8,fd00::/16 --allow-to 10.3.0.0/16,fd00:3::/32";
    proxy(node, &format!("--listen {at} {allowed} {words}"))
}

/// Checks options of a proxy by `--check`. Returns the standard output, or the error text.
pub(super) fn check(options: &str) -> Result<String, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_viaduct"));
    command.args("proxy --check --listen 10.1.0.2:7000 --to 10.3.0.2:9000".split(' '));
    let output = command.args(options.split_whitespace()).output().unwrap();
    let [said, error] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    if output.status.success() { Ok(said) } else { Err(error) }
}

/// Asserts that each of these options is refused, with an error that contains the paired text.
pub(super) fn assert_refused<const N: usize>(cases: [(&str, &str); N]) {
    for (options, expected) in cases {
        let error = check(options).unwrap_err();
        assert!(error.contains(expected), "{options}: {error}");
    }
}

pub(super) fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Starts a server that echoes one connection. When its thread has ended, its address can be bound
/// again. The thread returns the peer's address.
pub(super) fn echo(host: &Host, ip: IpAddr) -> thread::JoinHandle<IpAddr> {
    let bind = || TcpListener::bind(SocketAddr::new(ip, SERVER)).unwrap();
    let listener = host.netns().enter(bind).unwrap();
    thread::spawn(move || {
        let (mut stream, peer) = listener.accept().unwrap();
        // A child that another test has just forked holds the listener open until its `exec`.
        shutdown(&listener, rustix::net::Shutdown::Both).unwrap();
        let mut data = Vec::new();
        stream.read_to_end(&mut data).unwrap();
        stream.write_all(&data).unwrap();
        peer.ip()
    })
}

/// Sends `words` from the host `from` to `to`. Returns the answer.
pub(super) fn say(from: &Host, to: SocketAddr, words: &[u8]) -> std::io::Result<Vec<u8>> {
    let connect = || TcpStream::connect_timeout(&to, TIMEOUT);
    let mut stream = from.netns().enter(connect).unwrap()?;
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(words)?;
    stream.shutdown(Shutdown::Write)?;
    let mut data = Vec::new();
    stream.read_to_end(&mut data)?;
    Ok(data)
}

/// Tap on a device for SYNs, and for the first ACK after a SYN.
struct Tap(Ring);

impl Tap {
    fn open(node: &Node, device: &'static str) -> Tap {
        let config = RingConfig { max_packet: 1500, bytes: 1 << 20 };
        Tap(node.netns().enter(|| Ring::open(device, config).unwrap()).unwrap())
    }

    /// Waits for a packet that matches `is`. Returns the packet and its time.
    fn find(&mut self, is: impl Fn(&[u8]) -> bool) -> (Vec<u8>, Instant) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            while let Some(frame) = self.0.next() {
                if is(&frame) {
                    return (frame.to_vec(), Instant::now());
                }
            }
            assert!(Instant::now() < deadline, "no such packet");
            thread::sleep(Duration::from_micros(300));
        }
    }

    fn syn(&mut self) -> (Syn, Instant) {
        let (packet, at) = self.find(|packet| Syn::parse(packet).is_some());
        (Syn::parse(&packet).unwrap(), at)
    }
}

/// True for a TCP packet, IPv4 or IPv6, with ACK and without SYN or RST.
fn is_ack(packet: &[u8]) -> bool {
    const ACK: u8 = 0x10;
    const SYN_RST: u8 = 0x06;
    let at = if packet[0] >> 4 == 4 { 20 } else { 40 };
    packet.get(at + 13).is_some_and(|flags| flags & ACK != 0 && flags & SYN_RST == 0)
}

/// Returns the outbound SYN of each hop, and the time from that SYN to the ACK of the hop's client.
pub(super) fn ahead(hops: &[&Node], say: impl FnOnce()) -> Vec<(Syn, Duration)> {
    let tapped = hops.iter().map(|node| {
        let (mut west, mut east) = (Tap::open(node, "west"), Tap::open(node, "east"));
        (thread::spawn(move || east.syn()), thread::spawn(move || west.find(is_ack).1))
    });
    let tapped: Vec<_> = tapped.collect();
    say();
    let seen = |(syn, ack): (thread::JoinHandle<(Syn, Instant)>, thread::JoinHandle<Instant>)| {
        let ((syn, at), ack) = (syn.join().unwrap(), ack.join().unwrap());
        (syn, ack.saturating_duration_since(at))
    };
    tapped.into_iter().map(seen).collect()
}

/// Half a round trip of a link in these tests. An early SYN leaves a full round trip before the
/// client's ACK, a late SYN after it.
pub(super) const EARLY: Duration = Duration::from_millis(25);

#[test]
fn two_hops_forward_the_syn_early_by_the_option() {
    let chain = chain("delay=25ms");
    let [first, second] = chain.hops() else { panic!("two hops") };
    let _second = hop(second, "10.2.0.2:7000", "--expect option");
    let _first = hop(first, "10.1.0.2:7000", "--expect option --next 10.2.0.2:7000");
    let mut steer = Proxy::steer(chain.client(), "10.1.0.2".parse().unwrap()).unwrap();
    let server: IpAddr = chain.server().v4().into();
    let to = SocketAddr::new(server, SERVER);
    let peer = echo(chain.server(), server);
    let seen = ahead(&[first, second], || {
        assert_eq!(say(chain.client(), to, b"by the option").unwrap(), b"by the option");
    });
    let [(onward, first_ahead), (last, second_ahead)] = seen[..] else { panic!("two hops") };
    let told = onward.addresses().expect("the option for hop 2");
    assert_eq!((told.destination, told.source.ip()), (to, chain.client().v4().into()));
    assert_eq!(onward.tuple.to, socket("10.2.0.2:7000"));
    assert_eq!((last.addresses(), last.tuple.to), (None, to), "the server's SYN has the option");
    assert!(first_ahead > EARLY && second_ahead > EARLY, "{first_ahead:?} {second_ahead:?}");
    assert_eq!(peer.join().unwrap(), IpAddr::from([10, 3, 0, 1]), "hop 2 has not connected");

    let pid = Pid::from_raw(steer.process().id().cast_signed()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    steer.process().wait().unwrap();
    let peer = echo(chain.server(), server);
    assert_eq!(say(chain.client(), to, b"directly").unwrap(), b"directly");
    assert_eq!(
        peer.join().unwrap(),
        IpAddr::from(chain.client().v4()),
        "connections must be direct after the kill"
    );
}

#[test]
fn over_ipv6_the_data_of_the_syn_also_starts_the_connection_early() {
    let chain = chain("delay=25ms");
    let [first, second] = chain.hops() else { panic!("two hops") };
    // The first hop is on the path; the second is explicit, and the first is its client.
    let _second = hop(second, "[fd00:2::2]:7000", "--expect option,proxy");
    let _first = proxy(first, "--listen [::]:7000 --intercept fd00:3::/64 --next [fd00:2::2]:7000");
    let server: IpAddr = chain.server().v6().unwrap().into();
    let to = SocketAddr::new(server, SERVER);
    let peer = echo(chain.server(), server);
    let mut told = Tap::open(second, "west");
    let seen = ahead(&[second], || {
        assert_eq!(say(chain.client(), to, b"in the SYN").unwrap(), b"in the SYN");
    });
    let (syn, ahead) = seen[0];
    let (by, _) = told.syn();
    assert_eq!(by.hop, None);
    assert_eq!(by.header.expect("a PROXY header").destination, to);
    assert_eq!((syn.tuple.to, syn.addresses()), (to, None));
    assert!(ahead > EARLY, "the SYN left {ahead:?} before the ACK");
    peer.join().unwrap();
}

#[test]
fn flows_denied_or_without_the_option_are_reset() {
    let chain = chain("delay=1ms");
    let first = &chain.hops()[0];
    let to = SocketAddr::new(chain.server().v4().into(), SERVER);
    let _closed = proxy(
        first,
        "--listen 10.1.0.2:7001 --expect option --allow-from 10.9.0.0/16 --allow-to 10.3.0.0/16",
    );
    let reset = |to: &str| {
        let error = say(chain.client(), socket(to), b"bytes").unwrap_err();
        // The error depends on the client's state at the arrival of the reset.
        let kinds = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe, ErrorKind::NotConnected];
        let reset = kinds.contains(&error.kind());
        assert!(reset, "{to}: {error}");
    };
    // With late forwarding the option is not read from a tap, but from the accepted connection.
    for forward in ["early", "late"] {
        let _first = hop(first, "10.1.0.2:7000", &format!("--expect option --forward {forward}"));
        let steer = Proxy::steer(chain.client(), "10.1.0.2".parse().unwrap()).unwrap();
        let peer = echo(chain.server(), to.ip());
        assert_eq!(say(chain.client(), to, b"allowed").unwrap(), b"allowed", "{forward}");
        peer.join().unwrap();
        let mut tap = Tap::open(first, "east");
        reset("10.2.0.2:9000");
        drop(steer);
        reset(&format!("10.1.0.2:{HOP}"));
        reset("10.1.0.2:7001");
        thread::sleep(Duration::from_millis(50));
        while let Some(frame) = tap.0.next() {
            assert!(Syn::parse(&frame).is_none(), "{forward}: a SYN was forwarded");
        }
    }
}

#[test]
fn a_transparent_hop_keeps_the_option_for_the_next_hop() {
    let chain = chain("delay=1ms");
    let [first, second] = chain.hops() else { panic!("two hops") };
    let _second = hop(second, "10.2.0.2:7000", "--expect option");
    let _steer = Proxy::steer(chain.client(), "10.2.0.2".parse().unwrap()).unwrap();
    let to = SocketAddr::new(chain.server().v4().into(), SERVER);
    for forward in ["early", "late"] {
        let words = format!("--listen [::]:7000 --intercept 10.0.0.0/8 --forward {forward}");
        let _first = proxy(first, &words);
        let mut east = Tap::open(first, "east");
        let peer = echo(chain.server(), to.ip());
        assert_eq!(say(chain.client(), to, b"carried").unwrap(), b"carried", "{forward}");
        let (syn, _) = east.syn();
        assert_eq!(syn.tuple.client.ip(), IpAddr::from([10, 2, 0, 1]), "{forward}: split");
        assert_eq!(syn.addresses().expect("the option").source.ip(), chain.client().v4());
        peer.join().unwrap();
    }
}

#[test]
fn a_forged_option_does_not_divert_a_client_behind_a_transparent_hop() {
    let chain = chain("delay=1ms");
    let [first, second] = chain.hops() else { panic!("two hops") };
    let _second = hop(second, "10.2.0.2:7000", "--expect option,connect");
    let _first = proxy(first, "--listen [::]:7000 --intercept 10.0.0.0/8");
    let (from, to) = (SocketAddrV4::new(chain.client().v4(), 40_000), socket("10.2.0.2:7000"));
    let server = SocketAddrV4::new(chain.server().v4(), SERVER);
    let SocketAddr::V4(hop) = to else { panic!("an IPv4 address") };
    let closed = SocketAddrV4::new(*server.ip(), 9);
    let forged = option::Hop { source: from, destination: closed }.emit();
    let forged = segment((from, hop), (1, 0), SYN, (&forged, b""));
    let mut east = Tap::open(first, "east");
    let send = || RawSockets::open().unwrap().send(&forged, to.ip()).unwrap();
    chain.client().netns().enter(send).unwrap();
    east.syn();
    let peer = echo(chain.server(), (*server.ip()).into());
    let connected = || {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&socket, &from).unwrap();
        connect(&socket, &hop).unwrap();
        TcpStream::from(socket)
    };
    let mut client = chain.client().netns().enter(connected).unwrap();
    client.set_read_timeout(Some(TIMEOUT)).unwrap();
    client.write_all(format!("CONNECT {server} HTTP/1.1\r\n\r\nmine").as_bytes()).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    assert!(answer.ends_with(b"mine"), "{answer:?}");
    peer.join().unwrap();
}

/// Starts a server that sends its port to each client until the test ends.
fn ports(host: &Host, ip: IpAddr, port: u16) {
    let bind = || TcpListener::bind(SocketAddr::new(ip, port)).unwrap();
    let listener = host.netns().enter(bind).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut asked = [0; 1];
            let _ = stream.read_exact(&mut asked);
            let _ = stream.write_all(&port.to_be_bytes());
        }
    });
}

/// Opens many concurrent flows from the client to two servers in turn, and checks that each reaches
/// its own server.
fn all_find_their_own(chain: &Chain, ip: IpAddr) {
    thread::scope(|scope| {
        for worker in 0..12 {
            scope.spawn(move || {
                for n in 0..25 {
                    let port = SERVER + (worker + n) % 2;
                    let said = say(chain.client(), SocketAddr::new(ip, port), b"?").unwrap();
                    assert_eq!(said, port.to_be_bytes(), "{ip}, number {n} of {worker}");
                }
            });
        }
    });
}

#[test]
fn concurrent_flows_reach_their_own_servers() {
    // Without delay, a client may be accepted before its SYN is read from the tap.
    let chain = chain("delay=0us");
    let [first, second] = chain.hops() else { panic!("two hops") };
    for ip in chain.server().addresses() {
        ports(chain.server(), ip, SERVER);
        ports(chain.server(), ip, SERVER + 1);
    }
    let _second = hop(second, "[::]:7000", "--expect option,proxy");
    let _by_option = hop(first, "10.1.0.2:7000", "--expect option --next 10.2.0.2:7000");
    let _on_path =
        proxy(first, "--listen [::]:7001 --intercept fd00:3::/64 --next [fd00:2::2]:7000");
    let _steer = Proxy::steer(chain.client(), "10.1.0.2".parse().unwrap()).unwrap();
    for ip in chain.server().addresses() {
        all_find_their_own(&chain, ip);
    }
}

#[test]
fn a_mixed_chain_carries_curl() {
    let chain = chain("delay=1ms");
    let [first, second] = chain.hops() else { panic!("two hops") };
    let web = WebServer::start(chain.server(), 50_000, 1).unwrap();
    // The first hop is on the path; the second accepts the option, a PROXY header, or SOCKS.
    let _second = hop(second, "10.2.0.2:7000", "--expect option,proxy,socks");
    let _first = proxy(first, "--listen [::]:7000 --intercept 10.3.0.0/16 --next 10.2.0.2:7000");
    let direct = web.download(chain.client(), TIMEOUT).unwrap();
    assert_eq!(direct.bytes, 50_000, "on the path, then by the option");
    for tell in ["proxy", "proxy-tfo", "option"] {
        let words = format!("--expect socks,proxy --next 10.2.0.2:7000 --tell {tell}");
        let _another = hop(first, "10.1.0.2:7002", &words);
        let url = format!("http://{}:8080/file", chain.server().v4());
        let curl = "--silent --show-error --fail --max-time 10 --socks5 10.1.0.2:7002 \
                    --output /dev/null --write-out %{size_download}";
        let arguments: Vec<_> = curl.split_whitespace().chain([url.as_str()]).collect();
        let got = chain.client().run("curl", &arguments).unwrap();
        assert_eq!(got, "50000", "SOCKS, then by {tell}");
    }
}

#[test]
fn steer_names_the_missing_capabilities() {
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-all", "--inh-caps=-all", env!("CARGO_BIN_EXE_viaduct")]);
    command.args(["steer", "--next", "192.0.2.1:7000", "--to", "198.51.100.0/24"]);
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("CAP_BPF and CAP_NET_ADMIN"), "{said}");
}
