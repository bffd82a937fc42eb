//! Limits of connections whose ends have not shown a key: a stranger's, which does all that QUIC lets
//! it do.

use std::net::TcpListener;
use std::thread;

use mio::Poll;
use quinn_proto::{Dir, SendStream, Side, StreamId, WriteError};
use viaduct_proto::keys::SecretKey;
use viaduct_proto::tunnel::Settings;

use super::*;
use crate::proxy::tunnels::Tunnels;
use crate::proxy::tunnels::settings::{CarrierKind, Dial};
use crate::proxy::tunnels::strangers::StrangerMemory;

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
        stranger_memory: StrangerMemory { source: 2 << 20, all: 8 << 20 },
        core: Settings::default(),
    }
}

/// A far end, and a stranger's socket with its connections.
struct World {
    far: Tunnels,
    _poll: Poll,
    at: SocketAddr,
    stranger: Endpoint,
    links: Vec<QuicLink>,
    /// Whether it writes.
    writes: bool,
    written: usize,
    streams: usize,
}

impl World {
    fn new(writes: bool) -> World {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = free.local_addr().unwrap();
        drop(free);
        let poll = Poll::new().unwrap();
        let registry = poll.registry().try_clone().unwrap();
        let far = Tunnels::new(settings(Some(at), Vec::new()), registry, time()).unwrap();
        let peer = SecretKey::from_bytes([2; 32]).public();
        let dial = Dial { name: "".into(), to: at, peer, links: 1 };
        let stranger = Endpoint::new(&settings(None, vec![dial]), time()).unwrap();
        World { far, _poll: poll, at, stranger, links: Vec::new(), writes, written: 0, streams: 0 }
    }

    fn dial(&mut self) {
        let link = self.stranger.dial(self.at, time()).unwrap();
        self.stranger.insert(&link, self.links.len());
        self.links.push(link);
    }

    /// Lets both ends do what they can, and the stranger write what it may.
    fn turn(&mut self) {
        self.far.receive(time());
        self.far.handle_timeout(time());
        for arrived in self.stranger.receive(false) {
            if let Arrived::For(key, event) = arrived {
                self.links[key].handle_event(*event);
            }
        }
        for link in &mut self.links {
            link.run(&mut self.stranger);
            while link.connection.streams().open(Dir::Bi).is_some() {
                self.streams += 1;
            }
            let open = if self.writes { link.connection.streams().send_streams() } else { 0 };
            for index in 0..open as u64 {
                let id = StreamId::new(Side::Client, Dir::Bi, index);
                self.written += fill(link.connection.send_stream(id));
            }
            link.flush(&mut self.stranger, time()).unwrap();
        }
        thread::yield_now();
    }
}

impl QuicLink {
    /// Goes through what has happened, and never shows a key.
    fn run(&mut self, endpoint: &mut Endpoint) {
        let theirs = endpoint.clock.theirs(time());
        if self.connection.poll_timeout().is_some_and(|at| at <= theirs) {
            self.connection.handle_timeout(theirs);
        }
        while self.connection.poll().is_some() {}
        self.tell(endpoint);
    }
}

/// Writes as much as the stream takes, a megabyte at most.
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
fn a_stranger_has_one_stream_and_a_few_kilobytes() {
    let mut world = World::new(true);
    world.dial();
    while world.streams == 0 {
        world.turn();
    }
    for _ in 0..100 {
        world.turn();
        assert!(world.written <= UNTRUSTED_WINDOW as usize, "{} bytes", world.written);
        assert!(world.streams <= 1, "{} streams", world.streams);
    }
}

#[test]
fn a_stranger_has_a_bounded_number_of_connections_however_often_it_dials() {
    let mut world = World::new(false);
    for _ in 0..100 {
        world.dial();
        let before = world.streams;
        while world.streams == before {
            world.turn();
        }
        assert!(world.far.strangers_held() <= 32, "{}", world.far.strangers_held());
    }
    assert!(world.far.strangers_dropped() > 0);
}
