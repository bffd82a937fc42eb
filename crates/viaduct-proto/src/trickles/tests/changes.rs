//! Changes during a transfer: packet order, client address, secrets, and the server that answers.
//!
//! ```text
//!   client ── requests ──▶ delay ± jitter, outages ──▶ servers, in turn
//!          ◀── packets ───
//! ```

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;

use crate::rng::Rng;
use crate::sim::Machine;
use crate::sim::trickles::world::{End, Fetch, address, serve, server};
use crate::time::{Duration, Instant};
use crate::trickles::replay::Replay;
use crate::trickles::server::{Server, Settings};
use crate::trickles::wire::{Form, Response};

const LENGTH: u64 = 3_000_000;
const DELAY: Duration = Duration::from_millis(20);

/// Arrival time, sequence number, direction (true: to the server), message.
type Flying = (Instant, u64, bool, Vec<u8>);

/// A client, servers that answer it in turn, and the path between them.
struct Net {
    now: Instant,
    client: End,
    servers: Vec<Server>,
    turn: usize,
    /// Replay window that all servers share; `None` if each has its own.
    shared: Option<Replay>,
    flying: BinaryHeap<Reverse<Flying>>,
    sent: u64,
    from: SocketAddr,
    delay: Duration,
    /// Maximum additional delay of a packet.
    jitter: Duration,
    /// If set, all packets are lost.
    down: bool,
    /// If set, all repairs are lost.
    drops_repairs: bool,
    rng: Rng,
}

impl Net {
    fn new(replicas: usize, settings: Settings) -> Self {
        Net {
            now: Instant::ZERO,
            client: End::Client(Box::new(Fetch::new(LENGTH, Instant::ZERO))),
            servers: (0..replicas).map(|_| server(settings, Instant::ZERO)).collect(),
            turn: 0,
            shared: None,
            flying: BinaryHeap::new(),
            sent: 0,
            from: address(),
            delay: DELAY,
            jitter: Duration::ZERO,
            down: false,
            drops_repairs: false,
            rng: Rng::from_seed(5),
        }
    }

    fn send(&mut self, up: bool, message: Vec<u8>) {
        if !self.down {
            let late = self.jitter.mul_f64(self.rng.unit());
            self.sent += 1;
            self.flying.push(Reverse((self.now + self.delay + late, self.sent, up, message)));
        }
    }

    fn arrive(&mut self, up: bool, message: Vec<u8>) {
        if !up {
            self.client.handle_packet(self.now, 0, message);
            return;
        }
        self.turn = (self.turn + 1) % self.servers.len();
        let server = &mut self.servers[self.turn];
        if let Some(shared) = &mut self.shared {
            std::mem::swap(shared, server.replay_mut());
        }
        let answers = serve(server, self.now, self.from, LENGTH, &message);
        if let Some(shared) = &mut self.shared {
            std::mem::swap(shared, server.replay_mut());
        }
        for answer in answers {
            let is_repair = Response::parse(&answer).is_ok_and(|r| matches!(r.form, Form::Again));
            if !(is_repair && self.drops_repairs) {
                self.send(false, answer);
            }
        }
    }

    /// Runs until `end`, or until the transfer is done.
    fn run(&mut self, end: Instant) {
        loop {
            while let Some((_, message)) = self.client.poll_transmit() {
                self.send(true, message);
            }
            let arrival = self.flying.peek().map(|Reverse(first)| first.0);
            let timer = self.client.poll_timeout();
            let due = arrival.into_iter().chain(timer).min();
            let Some(due) = due.filter(|due| *due <= end && !self.is_done()) else { break };
            self.now = self.now.max(due);
            match self.flying.pop() {
                Some(Reverse((at, _, up, message))) if at <= due => self.arrive(up, message),
                later => {
                    self.flying.extend(later);
                    self.client.handle_timeout(self.now);
                }
            }
        }
        if !self.is_done() {
            self.now = end;
        }
    }

    fn finish(&mut self) {
        self.run(self.now + Duration::from_secs(60));
        assert!(self.is_done(), "at {} of {LENGTH}", self.client.as_fetch().position());
        for server in &self.servers {
            let stats = server.stats();
            assert_eq!(stats.unproven + stats.inconsistent + stats.malformed, 0, "{stats:?}");
        }
    }

    fn is_done(&self) -> bool {
        self.client.as_fetch().done.is_some()
    }

    fn restarts(&self) -> u64 {
        self.client.as_fetch().client.stats().restarts
    }
}

fn at(millis: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(millis)
}

fn alone() -> Settings {
    Settings { make_up: 0, ..Settings::default() }
}

#[test]
fn packets_may_overtake_each_other() {
    // Packets take no time on the wire, so even 1 ms of jitter reorders entire windows.
    for (jitter, restarts, seconds) in [(1, 0, 8), (5, 2, 8), (20, 8, 16)] {
        let mut ends = Vec::new();
        for settings in [alone(), Settings::default()] {
            let mut net = Net::new(1, settings);
            net.jitter = Duration::from_millis(jitter);
            net.finish();
            let ended =
                format!("{:?}, {} restarts, {jitter} ms of jitter", net.now, net.restarts());
            assert!(net.restarts() <= restarts && net.now < at(1_000 * seconds), "{ended}");
            ends.push(net.now.since(Instant::ZERO));
        }
        // Late requests that count as lost cost additional packets, which take time on a full path.
        assert!(2 * ends[1] < 3 * ends[0] + ends[0] / 4, "{ends:?} at {jitter} ms");
    }
}

#[test]
fn a_client_continues_from_another_address() {
    let mut net = Net::new(1, Settings::default());
    for (millis, port) in [(150, 5_000), (400, 6_000), (700, 5_000)] {
        net.run(at(millis));
        assert!(!net.is_done(), "too early to move");
        net.from.set_port(port);
    }
    net.finish();
    assert!(net.servers[0].stats().moved >= 3, "{:?}", net.servers[0].stats());
    assert_eq!(net.restarts(), 0, "the server detects the move, not a timer");
}

#[test]
fn a_client_that_was_cut_off_for_an_hour_resumes() {
    let mut net = Net::new(1, Settings::default());
    net.run(at(200));
    net.down = true;
    net.run(at(3_600_000));
    net.down = false;
    net.from.set_port(7_000);
    let back = net.now;
    net.run(net.now + Duration::from_secs(62));
    assert!(net.is_done(), "{:?} after the path is back", net.now.since(back));
}

#[test]
fn secrets_are_rotated_during_a_transfer() {
    let mut net = Net::new(2, alone());
    for number in 2..10 {
        net.run(at(u64::from(number) * 60));
        for server in &mut net.servers {
            server.ring_mut().rotate(number, &[number; 32], 10);
        }
    }
    net.finish();
    assert_eq!(net.restarts(), 0);
    assert!(net.servers.iter().all(|server| server.stats().invalid == 0));
}

#[test]
fn replicas_answer_in_turn() {
    let mut single = Net::new(1, alone());
    single.finish();
    for replicas in [2, 3] {
        for shared in [false, true] {
            let mut net = Net::new(replicas, if shared { Settings::default() } else { alone() });
            net.shared = shared.then(|| {
                Replay::new(1 << 22, Duration::from_secs(30), [5, 6, 7, 8], Instant::ZERO)
            });
            net.finish();
            assert_eq!((net.now, net.restarts()), (single.now, 0), "like a single server");
            let stats: Vec<_> = net.servers.iter().map(Server::stats).collect();
            let least = stats.iter().map(|stats| stats.answered).min().unwrap_or(0);
            let total: u64 = stats.iter().map(|stats| stats.answered).sum();
            assert!(least * replicas as u64 + 10 > total, "{stats:?}");
            assert!(stats.iter().all(|stats| stats.refused() == 0 && stats.made_up == 0));
        }
    }
}

/// To a replica with a replay window of its own, requests that other replicas have answered seem
/// lost. This costs packets, but breaks nothing.
#[test]
fn replicas_without_a_shared_window_needlessly_make_up_for_each_other() {
    let mut net = Net::new(2, Settings::default());
    net.finish();
    assert_eq!(net.restarts(), 0);
    assert!(net.servers.iter().all(|server| server.stats().made_up > 0));
}

#[test]
fn another_server_continues_after_a_server_is_killed() {
    let mut net = Net::new(1, Settings::default());
    net.run(at(250));
    assert!(!net.is_done());
    net.servers = vec![server(Settings::default(), net.now)];
    net.finish();
    assert_eq!(net.restarts(), 0, "no packet is lost");
}

#[test]
fn a_server_that_takes_over_needs_no_timeout() {
    let mut net = Net::new(1, Settings::default());
    net.run(at(300));
    // The server dies, and all packets on the path to it are lost. 100 ms later another server
    // takes over its address.
    net.flying.retain(|Reverse((.., up, _))| !up);
    net.down = true;
    net.run(at(400));
    net.down = false;
    net.servers[0] = server(Settings::default(), net.now);
    let before = net.client.as_fetch().position();
    net.run(at(600));
    let came = net.client.as_fetch().position() - before;
    assert!(came > 100_000, "{came} bytes in two tenths of a second");
    net.finish();
    let stats = net.client.as_fetch().client.stats();
    assert!(stats.restarts == 0 && stats.repeats >= 1, "{stats:?}");
}

#[test]
fn a_longer_delay_is_measured_and_causes_few_repetitions() {
    let mut net = Net::new(1, Settings::default());
    net.delay = Duration::from_millis(2);
    net.run(at(30));
    // The delay grows by far more than a factor of two, but stays below a timeout.
    net.delay = Duration::from_millis(60);
    net.finish();
    let stats = net.client.as_fetch().client.stats();
    assert!(stats.repeats < 20 && stats.restarts == 0, "{stats:?} at {:?}", net.now);
}

#[test]
fn a_lost_repair_costs_less_than_a_timeout_if_no_other_packet_is_expected() {
    let mut net = Net::new(1, Settings::default());
    net.run(at(250));
    let answers = |net: &Net| net.flying.iter().filter(|Reverse((.., up, _))| !up).count();
    while answers(&net) < 10 {
        net.run(net.now + Duration::from_millis(1));
    }
    let first = net.flying.iter().filter(|Reverse((.., up, _))| !up).map(|flying| flying.0.1).min();
    net.flying.retain(|Reverse((_, number, ..))| Some(*number) != first);
    net.drops_repairs = true;
    // One round trip until the repair is sent, one until nothing is in flight, and two of silence.
    net.run(net.now + Duration::from_millis(200));
    let stats = net.client.as_fetch().client.stats();
    assert_eq!((stats.lost, stats.restarts, stats.repeats), (1, 1, 0), "{stats:?}");
    net.drops_repairs = false;
    net.finish();
}
