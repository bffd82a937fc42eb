//! Two ends, the simulator's links between them, and a trivial twin: the bytes that each session
//! was given, in order.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::flow::{Address, Failure};
use crate::link::{Link, LinkConfig};
use crate::rng::Rng;
use crate::time::{Duration, Instant};

/// What a link carries in one direction.
type Wire = Link<(Lane, Vec<u8>)>;

/// A tunnel's two ends and what joins them.
struct World {
    now: Instant,
    ends: [Tunnel; 2],
    /// By number: there, and back.
    links: BTreeMap<u32, [Wire; 2]>,
    config: LinkConfig,
    carrier: Carrier,
    sessions: BTreeMap<SessionId, Twin>,
    events: [Vec<Event>; 2],
    rng: Rng,
}

/// What became of a session, at each end.
#[derive(Default)]
struct Twin {
    written: [Vec<u8>; 2],
    read: [Vec<u8>; 2],
    shut: [bool; 2],
    finished: [bool; 2],
    /// Bytes that were read and are kept.
    kept: [usize; 2],
    stopped: [bool; 2],
    /// Whether the end knows of it.
    known: [bool; 2],
    reset: bool,
}

/// Bytes that a link's socket takes before it is full.
const SOCKET: u64 = 64 << 10;

impl World {
    fn new(settings: &Settings, link: &str, carrier: Carrier, links: usize) -> World {
        let mut world = World {
            now: Instant::ZERO,
            ends: [1, 2].map(|instance| Tunnel::new(settings.clone(), instance)),
            links: BTreeMap::new(),
            config: link.parse().unwrap(),
            carrier,
            sessions: BTreeMap::new(),
            events: Default::default(),
            rng: Rng::from_seed(5),
        };
        (0..links).for_each(|_| world.dial());
        world.run(Duration::from_secs(1));
        world
    }

    fn dial(&mut self) {
        let number = self.ends[0].dial(self.now, self.carrier);
        assert!(self.ends[1].accept_link(self.now, number, self.carrier));
        let link = || Link::new(self.config.clone(), 1, self.now);
        self.links.insert(number, [link(), link()]);
    }

    /// The link breaks; each end learns of it when it likes.
    fn cut(&mut self, link: u32) {
        self.links.remove(&link);
        for twin in self.sessions.iter_mut().filter(|(id, _)| id.link == link) {
            twin.1.reset = true;
        }
    }

    fn open(&mut self, end: usize) -> Option<SessionId> {
        let to = Address::Name("server".to_owned(), 80);
        let id = self.ends[end].open(to, None)?;
        let known = [end == 0, end == 1];
        // This end may not know yet that the link is cut.
        let reset = !self.links.contains_key(&id.link);
        self.sessions.insert(id, Twin { known, reset, ..Twin::default() });
        Some(id)
    }

    fn write(&mut self, end: usize, id: SessionId, count: usize) {
        let mut bytes = vec![0; count];
        self.rng.fill(&mut bytes);
        let twin = self.sessions.get_mut(&id).unwrap();
        if !twin.shut[end] && self.ends[end].may_write(id) {
            twin.written[end].extend_from_slice(&bytes);
            let taken = self.ends[end].write(self.now, id, Bytes::from(bytes));
            assert!(taken || twin.reset || count == 0);
        }
    }

    fn shutdown(&mut self, end: usize, id: SessionId) {
        self.sessions.get_mut(&id).unwrap().shut[end] = true;
        self.ends[end].shutdown(id);
    }

    fn reset(&mut self, end: usize, id: SessionId) {
        self.sessions.get_mut(&id).unwrap().reset = true;
        self.ends[end].reset(id, Failure::Denied);
    }

    /// Reads all that there is at `end`, unless the reader has stopped.
    fn read(&mut self, end: usize, id: SessionId) {
        let Some(twin) = self.sessions.get_mut(&id) else { return };
        while !twin.stopped[end]
            && let Some(bytes) = self.ends[end].read(id)
        {
            twin.read[end].extend_from_slice(&bytes);
            let kept = bytes.len() / 3;
            twin.kept[end] += kept;
            self.ends[end].consumed(self.now, id, bytes.len() - kept);
        }
        if !twin.stopped[end] {
            self.ends[end].consumed(self.now, id, std::mem::take(&mut twin.kept[end]));
        }
    }

    fn handle_events(&mut self) {
        for end in 0..2 {
            while let Some(event) = self.ends[end].poll_event() {
                self.events[end].push(event.clone());
                match event {
                    Event::Opened { id, .. } => {
                        self.ends[end].accept(id);
                        self.sessions.get_mut(&id).unwrap().known[end] = true;
                        self.read(end, id);
                    }
                    Event::Readable(id) => self.read(end, id),
                    Event::Finished(id) => {
                        let twin = self.sessions.get_mut(&id).unwrap();
                        assert!(!std::mem::replace(&mut twin.finished[end], true), "once");
                    }
                    Event::LinkDown(link, why) => {
                        // GONE may have been sent on a link that was cut as well.
                        let silent = matches!(why, LinkError::Silent(_));
                        assert!(silent || why == LinkError::Gone, "{link}: {why}");
                        assert!(!self.links.contains_key(&link), "{link}: {why}");
                    }
                    _ => {}
                }
            }
        }
    }

    /// Hands what each end has to send to the links, as far as their sockets take it.
    fn transmit(&mut self) {
        for end in 0..2 {
            for (&link, wires) in &self.links {
                self.ends[end].set_room(link, wires[end].backlog() < SOCKET);
            }
            let mut out = Vec::new();
            while let Some((link, lane)) = self.ends[end].poll_transmit(self.now, &mut out) {
                let bytes = std::mem::take(&mut out);
                let len = bytes.len();
                let Some(wires) = self.links.get_mut(&link) else { continue };
                let _ = wires[end].push(self.now, (lane, bytes), len);
                self.ends[end].set_room(link, wires[end].backlog() < SOCKET);
            }
        }
    }

    /// One step of time; false if nothing will happen before `until`.
    fn step(&mut self, until: Instant) -> bool {
        self.handle_events();
        self.transmit();
        let wires = self.links.values().flatten();
        let arrivals = wires.filter_map(Link::poll_timeout);
        let timers = self.ends.iter().filter_map(Tunnel::poll_timeout);
        let Some(next) = arrivals.chain(timers).min().filter(|at| *at <= until) else {
            self.now = until;
            return false;
        };
        self.now = self.now.max(next);
        for (&link, wires) in &mut self.links {
            for (from, wire) in wires.iter_mut().enumerate() {
                while let Some(delivery) = wire.poll(self.now) {
                    let (lane, bytes) = delivery.item;
                    let cut = self.rng.below(bytes.len() as u64 + 1) as usize;
                    for piece in [&bytes[..cut], &bytes[cut..]] {
                        self.ends[1 - from].handle_bytes(self.now, link, lane, piece);
                    }
                }
            }
        }
        for end in &mut self.ends {
            if end.poll_timeout().is_some_and(|at| at <= self.now) {
                end.handle_timeout(self.now);
            }
        }
        true
    }

    fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while self.step(until) {}
        self.ends.iter_mut().for_each(Tunnel::check);
    }

    /// Every reader reads on; all that was written must then have come.
    fn settle(&mut self) {
        for _ in 0..3 {
            for id in self.sessions.keys().copied().collect::<Vec<_>>() {
                for end in 0..2 {
                    self.sessions.get_mut(&id).unwrap().stopped[end] = false;
                    self.read(end, id);
                }
            }
            self.run(Duration::from_secs(20));
        }
        for (id, twin) in &self.sessions {
            for (from, to) in [(0, 1), (1, 0)] {
                let (written, read) = (&twin.written[from], &twin.read[to]);
                assert!(written.starts_with(read), "{id:?}: no byte is another");
                if !twin.reset {
                    assert_eq!(written.len(), read.len(), "{id:?} from {from}");
                    assert_eq!(twin.finished[to], twin.shut[from], "{id:?} from {from}");
                }
            }
        }
        for end in &mut self.ends {
            let stats = end.stats();
            assert_eq!((stats.held, stats.active), (0, 0), "all is read and acknowledged");
            assert_eq!(stats.tokens_left + stats.tokens_stranded, stats.tokens);
        }
    }

    fn rate(&self, end: usize, id: SessionId, before: usize, time: Duration) -> f64 {
        (self.sessions[&id].read[end].len() - before) as f64 / time.as_secs_f64()
    }

    /// Writes as much as may be for `time`, and returns bytes per second that came.
    fn bulk(&mut self, ids: &[SessionId], time: Duration) -> Vec<f64> {
        let before: Vec<usize> = ids.iter().map(|id| self.sessions[id].read[1].len()).collect();
        let until = self.now + time;
        loop {
            for &id in ids {
                while self.ends[0].may_write(id) {
                    self.write(0, id, 65_536);
                }
            }
            if !self.step(until) {
                break;
            }
        }
        self.ends.iter_mut().for_each(Tunnel::check);
        ids.iter().zip(before).map(|(&id, before)| self.rate(1, id, before, time)).collect()
    }
}

fn small() -> Settings {
    Settings {
        initial: 40_000,
        limit: 200_000,
        floor: 1_000,
        mss: 1_400,
        queue: 20_000,
        sessions: 50,
        ..Settings::default()
    }
}

const LINK: &str = "rate=100M,delay=10ms";

#[test]
fn a_session_opens_without_a_round_trip_and_each_direction_ends_by_itself() {
    let mut world = World::new(&small(), LINK, Carrier::Stream, 1);
    world.run(Duration::from_millis(100));
    let start = world.now;
    let id = world.open(0).unwrap();
    world.write(0, id, 500);
    world.shutdown(0, id);
    while world.sessions[&id].read[1].len() < 500 {
        assert!(world.step(start + Duration::from_secs(1)));
    }
    assert!(world.now - start < Duration::from_millis(11), "one way, not a round trip");
    world.run(Duration::from_millis(100));
    assert!(world.sessions[&id].finished[1] && !world.sessions[&id].finished[0]);
    world.write(1, id, 700);
    world.shutdown(1, id);
    world.settle();
    assert_eq!(world.ends[0].stats().open + world.ends[1].stats().open, 0, "forgotten by both");
    let accepted = |event: &Event| matches!(event, Event::Accepted(_));
    assert_eq!(world.events[0].iter().filter(|event| accepted(event)).count(), 1);
}

#[test]
fn a_reset_reaches_the_other_end_once_and_frees_all() {
    for both in [false, true] {
        let mut world = World::new(&small(), LINK, Carrier::Stream, 1);
        let id = world.open(0).unwrap();
        world.write(0, id, 20_000);
        world.run(Duration::from_millis(100));
        world.sessions.get_mut(&id).unwrap().stopped[1] = true;
        world.write(0, id, 20_000);
        world.run(Duration::from_millis(100));
        assert!(world.ends[1].stats().held > 0);
        world.reset(1, id);
        if both {
            world.reset(0, id);
        }
        world.settle();
        let told = |end: usize| {
            let is = |e: &&Event| matches!(e, Event::Reset(_, Failure::Denied));
            world.events[end].iter().filter(is).count()
        };
        assert_eq!((told(0), told(1)), (usize::from(!both), 0));
        assert_eq!(world.ends[0].stats().open + world.ends[1].stats().open, 0);
    }
}

#[test]
fn a_session_alone_fills_the_path_whatever_its_length() {
    for (link, rate) in [
        ("rate=200M,delay=50ms", 200e6),
        ("rate=1G,delay=30ms", 1e9),
        ("rate=10M,delay=300ms", 10e6),
    ] {
        for carrier in [Carrier::Stream, Carrier::Streams] {
            let mut world = World::new(&Settings::default(), link, carrier, 1);
            let id = world.open(0).unwrap();
            world.bulk(&[id], Duration::from_secs(3));
            let carried = world.bulk(&[id], Duration::from_secs(2))[0] * 8.0;
            assert!(carried > 0.98 * rate, "{link}, {carrier:?}: {carried:.0}");
            let product = rate / 8.0 * world.config.delay.as_secs_f64() * 2.0;
            let ratio = world.ends[1].stats().room as f64 / product;
            assert!((2.0..10.0).contains(&ratio), "{link}: {ratio} products");
        }
    }
}

#[test]
fn sessions_share_a_link_evenly_and_links_share_the_tokens() {
    let mut world = World::new(&Settings::default(), "rate=50M,delay=20ms", Carrier::Stream, 3);
    let ids: Vec<_> = (0..9).map(|_| world.open(0).unwrap()).collect();
    for link in 1..=3 {
        assert_eq!(ids.iter().filter(|id| id.link == link).count(), 3, "least loaded first");
    }
    world.bulk(&ids, Duration::from_secs(2));
    let rates = world.bulk(&ids, Duration::from_secs(4));
    let (least, most) = rates.iter().fold((f64::MAX, 0.0_f64), |(l, m), &r| (l.min(r), m.max(r)));
    assert!(least > 0.9 * most, "{rates:?}");
    assert!(rates.iter().sum::<f64>() * 8.0 > 0.95 * 150e6, "{rates:?}");
}

#[test]
fn readers_that_have_stopped_do_not_slow_the_others() {
    let settings = Settings { limit: 4 << 20, ..Settings::default() };
    let mut world = World::new(&settings, "rate=50M,delay=20ms", Carrier::Stream, 1);
    let alone = world.open(0).unwrap();
    let before = world.bulk(&[alone], Duration::from_secs(3))[0];
    let stopped = world.open(0).unwrap();
    world.sessions.get_mut(&stopped).unwrap().stopped[1] = true;
    let beside = world.bulk(&[stopped, alone], Duration::from_secs(3))[1];
    assert!(beside > 0.95 * before, "one: {beside} of {before}");
    // More of them than the whole buffer has shares for: each other session still moves.
    for _ in 0..20 {
        let stopped = world.open(0).unwrap();
        world.sessions.get_mut(&stopped).unwrap().stopped[1] = true;
        world.bulk(&[stopped], Duration::from_secs(1));
    }
    let late = world.open(0).unwrap();
    let rate = world.bulk(&[late], Duration::from_secs(2))[0];
    let floor = f64::from(settings.floor) / 0.045;
    assert!(rate > 0.8 * floor, "{rate} of at least {floor} a second");
    world.settle();
}

#[test]
fn a_small_session_does_not_wait_behind_a_large_one() {
    let mut world = World::new(&Settings::default(), "rate=20M,delay=50ms", Carrier::Stream, 1);
    let large = world.open(0).unwrap();
    world.bulk(&[large], Duration::from_secs(5));
    for _ in 0..5 {
        let small = world.open(0).unwrap();
        world.write(0, small, 100);
        let start = world.now;
        while world.sessions[&small].read[1].is_empty() {
            world.bulk(&[large], Duration::from_millis(1));
        }
        // One way, and what the socket holds already: 64 KiB.
        assert!(world.now - start < Duration::from_millis(50 + 27 + 10), "{:?}", world.now - start);
    }
}

#[test]
fn sessions_of_a_broken_link_are_reset_and_its_tokens_come_back() {
    let mut world = World::new(&small(), LINK, Carrier::Stream, 2);
    let ids: Vec<_> = (0..6).map(|_| world.open(0).unwrap()).collect();
    world.bulk(&ids, Duration::from_millis(500));
    world.cut(1);
    // This end knows, and the other does not yet.
    world.ends[0].remove_link(1);
    let stranded = world.ends[0].stats().tokens_stranded;
    assert!(stranded > 0);
    world.bulk(&ids, Duration::from_millis(300));
    assert_eq!(world.ends[1].stats().links, 1, "told by GONE on the other link");
    world.dial();
    world.run(Duration::from_millis(100));
    let late = world.open(0).unwrap();
    assert_eq!(late.link, 3, "the least loaded one");
    world.write(0, late, 5_000);
    world.settle();
    let resets = |end: usize| {
        world.events[end]
            .iter()
            .filter(|e| matches!(e, Event::Reset(id, _) if id.link == 1))
            .count()
    };
    assert_eq!((resets(0), resets(1)), (3, 3));
    assert_eq!(world.ends[0].stats().tokens_stranded, 0);
}

#[test]
fn a_peer_that_was_started_again_is_served_anew() {
    let mut world = World::new(&small(), LINK, Carrier::Stream, 1);
    let id = world.open(0).unwrap();
    world.bulk(&[id], Duration::from_millis(300));
    world.cut(1);
    world.ends[0].remove_link(1);
    world.ends[1] = Tunnel::new(small(), 77);
    world.dial();
    world.run(Duration::from_millis(100));
    let id = world.open(0).unwrap();
    world.write(0, id, 20_000);
    world.settle();
    assert_eq!(world.sessions[&id].read[1].len(), 20_000);
    assert_eq!(world.ends[0].stats().tokens_stranded, 0);
}

#[test]
fn a_link_that_is_left_ends_when_its_sessions_have() {
    let mut world = World::new(&small(), LINK, Carrier::Stream, 2);
    world.run(Duration::from_millis(100));
    let first = world.open(0).unwrap();
    world.write(0, first, 3_000);
    world.ends[0].leave(first.link);
    world.run(Duration::from_millis(100));
    for _ in 0..3 {
        assert_ne!(world.open(0).unwrap().link, first.link);
        assert_ne!(world.open(1).unwrap().link, first.link, "the peer has left too");
    }
    assert!(!world.ends[0].is_over(first.link));
    world.shutdown(0, first);
    world.shutdown(1, first);
    world.settle();
    assert!((0..2).all(|end| world.ends[end].is_over(first.link)));
}

#[test]
fn a_link_on_which_nothing_is_heard_is_given_up() {
    let mut world = World::new(&small(), LINK, Carrier::Stream, 1);
    let id = world.open(0).unwrap();
    world.write(0, id, 100);
    world.run(Duration::from_secs(60));
    assert_eq!(world.ends[0].stats().links, 1, "pings keep it up");
    world.links.clear();
    let silent = world.now;
    while world.ends[0].links().next().is_some() {
        world.now = world.ends[0].poll_timeout().unwrap();
        world.ends[0].handle_timeout(world.now);
    }
    assert!(world.now - silent <= small().silence + small().ping);
    let events: Vec<_> = std::iter::from_fn(|| world.ends[0].poll_event()).collect();
    assert!(events.contains(&Event::Reset(id, Failure::Reset)));
    assert!(events.contains(&Event::LinkDown(1, LinkError::Silent(small().silence))));
}

#[derive(Clone, Debug)]
enum Op {
    Open { end: usize },
    Write { end: usize, which: usize, count: usize },
    Shutdown { end: usize, which: usize },
    Reset { end: usize, which: usize },
    Stop { end: usize, which: usize, stopped: bool },
    Run { millis: u64 },
    Dial,
    Cut { which: usize, first: usize },
}

fn op() -> impl Strategy<Value = Op> {
    let (end, which) = (0..2_usize, 0..1_000_usize);
    let at = (end.clone(), which.clone());
    prop_oneof![
        3 => end.clone().prop_map(|end| Op::Open { end }),
        8 => (at.clone(), 0..30_000_usize)
            .prop_map(|((end, which), count)| Op::Write { end, which, count }),
        2 => at.clone().prop_map(|(end, which)| Op::Shutdown { end, which }),
        1 => at.clone().prop_map(|(end, which)| Op::Reset { end, which }),
        2 => (at, any::<bool>())
            .prop_map(|((end, which), stopped)| Op::Stop { end, which, stopped }),
        6 => (0..200_u64).prop_map(|millis| Op::Run { millis }),
        1 => Just(Op::Dial),
        1 => (which, end).prop_map(|(which, first)| Op::Cut { which, first }),
    ]
}

impl World {
    /// One of the sessions that `end` knows.
    fn pick(&self, end: usize, which: usize) -> Option<SessionId> {
        let known = || self.sessions.iter().filter(|(_, twin)| twin.known[end]);
        known().nth(which % known().count().max(1)).map(|(id, _)| *id)
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Open { end } => drop(self.open(end)),
            Op::Write { end, which, count } => {
                if let Some(id) = self.pick(end, which) {
                    self.write(end, id, count);
                }
            }
            Op::Shutdown { end, which } => {
                if let Some(id) = self.pick(end, which) {
                    self.shutdown(end, id);
                }
            }
            Op::Reset { end, which } => {
                if let Some(id) = self.pick(end, which) {
                    self.reset(end, id);
                }
            }
            Op::Stop { end, which, stopped } => {
                if let Some(id) = self.pick(end, which) {
                    self.sessions.get_mut(&id).unwrap().stopped[end] = stopped;
                    self.read(end, id);
                }
            }
            Op::Run { millis } => self.run(Duration::from_millis(millis)),
            Op::Dial => {
                if self.links.len() < 4 {
                    self.dial();
                }
            }
            Op::Cut { which, first } => self.cut_any(which, first),
        }
    }

    /// Cuts a link while there are others; one end knows at once, the other when told.
    fn cut_any(&mut self, which: usize, first: usize) {
        if self.links.len() > 1 {
            let link = *self.links.keys().nth(which % self.links.len()).unwrap();
            self.cut(link);
            self.ends[first].remove_link(link);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_sequence_no_byte_is_lost_repeated_or_reordered(
        ops in prop::collection::vec(op(), 1..80),
        streams in any::<bool>(),
        links in 1..3_usize,
    ) {
        let carrier = if streams { Carrier::Streams } else { Carrier::Stream };
        let mut world = World::new(&small(), "rate=20M,delay=5ms,jitter=2ms", carrier, links);
        for op in &ops {
            world.apply(op);
            world.ends.iter_mut().for_each(Tunnel::check);
        }
        world.settle();
    }
}
