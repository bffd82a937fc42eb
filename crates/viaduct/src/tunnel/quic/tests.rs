//! Tests of the limits of unauthenticated connections, against a client (stranger) that sends as
//! much as QUIC permits; and of the names of congestion controls.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::thread;

use mio::Poll;
use quinn_proto::{Dir, SendStream, Side, StreamId, WriteError};
use viaduct_proto::keys::SecretKey;
use viaduct_proto::tunnel::Settings;

use super::*;
use crate::tunnel::Tunnels;
use crate::tunnel::settings::Dial;
use crate::tunnel::strangers::StrangerMemory;

fn settings(listen: Option<SocketAddr>, dials: Vec<Dial>) -> TunnelSettings {
    TunnelSettings {
        secret: SecretKey::from_bytes([2; 32]),
        peers: vec![SecretKey::from_bytes([1; 32]).public()],
        listen,
        dials,
        carrier: CarrierKind::Quic,
        congestion: None,
        waits: false,
        allow_to: Vec::new(),
        clients: Vec::new(),
        stranger_memory: StrangerMemory { source: 2 << 20, all: 8 << 20 },
        core: Settings::default(),
    }
}

fn dial(to: SocketAddr) -> Dial {
    let peer = SecretKey::from_bytes([2; 32]).public();
    Dial { name: "".into(), to, peer, links: 1, server_name: None, is_fallback: false }
}

/// A stranger's socket with its connections.
struct Stranger {
    at: SocketAddr,
    endpoint: Endpoint,
    links: Vec<QuicLink>,
    /// True if the stranger writes.
    writes: bool,
    written: usize,
    streams: usize,
}

impl Stranger {
    fn new(at: SocketAddr, writes: bool) -> Stranger {
        let endpoint = Endpoint::new(&settings(None, vec![dial(at)]), None, time()).unwrap();
        Stranger { at, endpoint, links: Vec::new(), writes, written: 0, streams: 0 }
    }

    fn dial(&mut self) {
        let link = self.endpoint.dial(self.at, time()).unwrap();
        self.endpoint.insert(&link, self.links.len());
        self.links.push(link);
    }

    /// Drives the connections, and writes as much as permitted.
    fn turn(&mut self) {
        for arrived in self.endpoint.receive(false) {
            if let Arrived::For(key, event) = arrived {
                self.links[key].handle_event(*event);
            }
        }
        for link in &mut self.links {
            link.run(&mut self.endpoint);
            while link.connection.streams().open(Dir::Bi).is_some() {
                self.streams += 1;
            }
            let open = if self.writes { link.connection.streams().send_streams() } else { 0 };
            for index in 0..open as u64 {
                let id = StreamId::new(Side::Client, Dir::Bi, index);
                self.written += fill(link.connection.send_stream(id));
            }
            link.flush(&mut self.endpoint, time()).unwrap();
        }
        thread::yield_now();
    }
}

/// A far end.
struct Far {
    tunnels: Tunnels,
    _poll: Poll,
}

impl Far {
    /// Returns a far end that listens at a free port, and its address.
    fn new() -> (Far, SocketAddr) {
        let poll = Poll::new().unwrap();
        // Another test may bind the free port before this one does.
        let listen = |_| {
            let free = TcpListener::bind("127.0.0.1:0").unwrap();
            let at = free.local_addr().unwrap();
            drop(free);
            let registry = poll.registry().try_clone().unwrap();
            let tunnels = Tunnels::new(settings(Some(at), Vec::new()), None, registry, time());
            Some((tunnels.ok()?, at))
        };
        let (tunnels, at) = (0..100).find_map(listen).expect("a port is free");
        (Far { tunnels, _poll: poll }, at)
    }

    /// Drives the far end.
    fn turn(&mut self) {
        self.tunnels.receive(time());
        self.tunnels.handle_timeout(time());
    }
}

/// Returns a far end, and a stranger that can dial it.
fn world(writes: bool) -> (Far, Stranger) {
    let (far, at) = Far::new();
    (far, Stranger::new(at, writes))
}

impl QuicLink {
    /// Handles all events without ever authenticating.
    fn run(&mut self, endpoint: &mut Endpoint) {
        let theirs = endpoint.clock.theirs(time());
        if self.connection.poll_timeout().is_some_and(|at| at <= theirs) {
            self.connection.handle_timeout(theirs);
        }
        while self.connection.poll().is_some() {}
        self.exchange_events(endpoint);
    }
}

/// Writes as much as the stream accepts, a megabyte at most.
fn fill(mut stream: SendStream<'_>) -> usize {
    let mut written = 0;
    while written < 1 << 20 {
        match stream.write(&[0; 4_096]) {
            Ok(count) => written += count,
            Err(WriteError::Blocked) => break,
            Err(error) => panic!("{error}"),
        }
    }
    written
}

#[test]
fn a_stranger_may_send_a_few_kilobytes_in_one_stream() {
    let (mut far, mut stranger) = world(true);
    stranger.dial();
    while stranger.streams == 0 {
        far.turn();
        stranger.turn();
    }
    for _ in 0..100 {
        far.turn();
        stranger.turn();
        assert!(stranger.written <= UNTRUSTED_WINDOW as usize, "{} bytes", stranger.written);
        assert!(stranger.streams <= 1, "{} streams", stranger.streams);
    }
}

#[test]
fn a_stranger_has_a_bounded_number_of_connections_however_often_it_dials() {
    let (mut far, mut stranger) = world(false);
    for _ in 0..100 {
        stranger.dial();
        let before = stranger.streams;
        while stranger.streams == before {
            far.turn();
            stranger.turn();
        }
        let held = far.tunnels.strangers_held();
        assert!(held <= 32, "{held}");
    }
    assert!(far.tunnels.strangers_dropped() > 0);
}

/// Runs the far end of [`a_stranger_makes_a_far_end_hold_two_megabytes_at_most`] in its own
/// process: prints its address, and exits when its input ends.
#[test]
#[ignore = "the test of a stranger's memory starts this process"]
fn far_end_in_a_process() {
    let (mut far, at) = Far::new();
    eprintln!("at {at}");
    let ended = thread::spawn(|| io::stdin().read(&mut [0]));
    while !ended.is_finished() {
        far.turn();
        thread::sleep(Duration::from_micros(200));
    }
}

/// Private memory of a process, in bytes.
fn private_memory(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    let kilobytes: usize = line.trim().trim_end_matches(" kB").parse().unwrap();
    kilobytes << 10
}

#[test]
fn a_stranger_makes_a_far_end_hold_two_megabytes_at_most() {
    let name = module_path!().split_once("::").unwrap().1;
    let mut far = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("{name}::far_end_in_a_process"), "--ignored", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(far.stderr.take().unwrap()).lines().map(Result::unwrap);
    let at = lines.find_map(|line| line.strip_prefix("at ")?.parse().ok()).unwrap();
    // A first connection, so that one-time allocations of the far end do not count.
    let mut stranger = Stranger::new(at, true);
    stranger.dial();
    while stranger.streams == 0 {
        stranger.turn();
    }
    let before = private_memory(far.id());
    let (until, mut most) = (time() + Duration::from_secs(3), 0);
    while time() < until {
        if stranger.links.len() < 200 {
            stranger.dial();
        }
        stranger.turn();
        most = most.max(private_memory(far.id()).saturating_sub(before));
    }
    assert!(stranger.streams > 30, "{} streams", stranger.streams);
    assert!(most <= 2 << 20, "{most} bytes");
    drop(far.stdin.take());
    assert!(far.wait().unwrap().success());
}

#[test]
fn a_listening_end_that_does_not_dial_quic_may_name_a_congestion_control_that_quic_lacks() {
    let at = ([127, 0, 0, 1], 7100).into();
    let is_accepted = |carrier, dials| {
        let congestion = Some("htcp".to_owned());
        controller(&TunnelSettings { carrier, congestion, ..settings(Some(at), dials) }).is_ok()
    };
    assert!(is_accepted(CarrierKind::Tcp, vec![dial(at)]));
    assert!(is_accepted(CarrierKind::Quic, Vec::new()));
    assert!(!is_accepted(CarrierKind::Quic, vec![dial(at)]));
}
