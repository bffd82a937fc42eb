//! Tests of a client's streams and a server's events, in virtual time.

mod events;
mod lack;
mod rotation;
mod web;
mod world;

use super::{Config, Failure, State};
use crate::link::LinkConfig;
use crate::rng::Rng;
use crate::sim::{self, Sim};
use crate::time::{Duration, Instant};
use crate::trickles::standard::MAIN;
use world::{Behaviour, Browser, Node, digest, endpoint, object};

const DEFAULT_BEHAVIOUR: Behaviour = Behaviour {
    max_consumed: usize::MAX,
    knows_length: true,
    longest: [usize::MAX; 2],
    fits: false,
    detaches: false,
};

fn at(seconds: f64) -> Instant {
    Instant::from_nanos((seconds * 1e9) as u64)
}

struct World {
    sim: Sim<Node>,
    client: sim::Node,
    server: sim::Node,
}

impl World {
    fn new(browser: Browser, behaviour: Behaviour, link: &str, seed: u64) -> World {
        let mut sim = Sim::new();
        let client = sim.add(Node::Client(Box::new(browser)));
        let (endpoint, out) = (Box::new(endpoint(Instant::ZERO)), Default::default());
        let server = sim.add(Node::Server { endpoint, behaviour, now: Instant::ZERO, out });
        let link: LinkConfig = link.parse().unwrap();
        sim.connect_both((client, 0), (server, 0), &link, seed);
        World { sim, client, server }
    }

    fn browser(&mut self) -> &mut Browser {
        self.sim.node_mut(self.client).browser()
    }

    /// Runs until all streams are finished, and returns the time.
    fn finish(&mut self, streams: u32, limit: f64) -> Instant {
        let all = |browser: &mut Browser| {
            (0..=streams).all(|stream| browser.stream.state(stream) == State::Finished)
        };
        let mut step = 0;
        while !all(self.browser()) {
            step += 1;
            self.sim.run_until(at(f64::from(step) * 0.01));
            let now = self.sim.now();
            self.browser().pump();
            let done: Vec<usize> = self.browser().read.iter().map(Vec::len).collect();
            let stats = self.browser().stream.stats();
            assert!(now < at(limit), "after {limit} s: {done:?}, {stats:?}");
        }
        let stats = self.sim.node(self.server).endpoint().server().stats();
        assert_eq!(stats.unproven + stats.inconsistent + stats.invalid + stats.malformed, 0);
        assert_eq!(self.sim.node(self.server).endpoint().waiting(), 0);
        self.sim.now()
    }
}

const LINKS: [&str; 5] = [
    "rate=100M,delay=10ms,queue=1MB",
    "rate=20M,delay=10ms,queue=200kB,loss=1%",
    "rate=20M,delay=10ms,queue=200kB,loss=5%",
    "rate=20M,delay=10ms,queue=200kB,loss=20%",
    "rate=20M,delay=10ms,queue=200kB,loss=1%x8",
];

#[test]
fn the_main_stream_answers_lines_with_objects_in_order() {
    for (n, link) in LINKS.into_iter().enumerate() {
        let mut rng = Rng::from_seed(n as u64);
        let (mut lines, mut expected) = (b"G".to_vec(), Vec::new());
        for seed in 0..20 {
            let length = [0, 1, 700, 20_000, 150_000][rng.below(5) as usize];
            lines.extend(format!("{length} {seed}\n").bytes());
            expected.extend(object(length, seed));
        }
        let behaviour = Behaviour { max_consumed: 40, ..DEFAULT_BEHAVIOUR };
        let mut world = World::new(Browser::new(Config::default()), behaviour, link, n as u64);
        world.browser().write(MAIN, lines);
        world.finish(MAIN, 200.0);
        assert!(world.browser().read[0] == expected, "{link}");
    }
}

#[test]
fn an_upload_arrives_complete_and_is_answered_with_its_digest() {
    for (n, link) in LINKS.into_iter().enumerate() {
        let mut data = vec![b'U'];
        data.extend(object(1_000 + 60_000 / (n as u64 + 1), 5));
        for max_consumed in [usize::MAX, 300] {
            let behaviour = Behaviour { max_consumed, ..DEFAULT_BEHAVIOUR };
            let mut world = World::new(Browser::new(Config::default()), behaviour, link, n as u64);
            world.browser().write(MAIN, data.clone());
            world.finish(MAIN, 400.0);
            let said = digest(&data[1..], [0; 2]).map(u64::to_be_bytes).concat();
            assert!(world.browser().read[0] == said, "{link}, {max_consumed} at a time");
        }
    }
}

/// At one packet per round trip the upload would take 15 s.
#[test]
fn a_long_upload_has_many_packets_in_flight() {
    let data = [b"U".to_vec(), object(400_000, 5)].concat();
    let said = digest(&data[1..], [0; 2]).map(u64::to_be_bytes).concat();
    for (link, most) in [
        ("rate=20M,delay=25ms,queue=400kB", 2.0),
        ("rate=20M,delay=25ms,queue=400kB,loss=1%", 8.0),
        ("rate=20M,delay=25ms,queue=400kB,reorder=5%:10ms", 15.0),
    ] {
        let mut world = World::new(Browser::new(Config::default()), DEFAULT_BEHAVIOUR, link, 3);
        world.browser().write(MAIN, data.clone());
        let took = world.finish(MAIN, 60.0).as_secs_f64();
        assert!(world.browser().read[0] == said, "{link}");
        println!("400 kB up, {link}: {took:.2} s");
        assert!(took < most, "{link}: {took}");
    }
}

#[test]
fn several_inputs_and_many_requests_share_a_connection() {
    for knows_length in [true, false] {
        for (n, link) in LINKS.into_iter().enumerate() {
            let mut rng = Rng::from_seed(n as u64);
            let behaviour = Behaviour { max_consumed: 400, knows_length, ..DEFAULT_BEHAVIOUR };
            let mut world = World::new(Browser::new(Config::default()), behaviour, link, n as u64);
            let browser = world.browser();
            browser.write(MAIN, b"G".to_vec());
            let upload: Vec<u8> = [b"U".to_vec(), object(8_000, 9)].concat();
            let mut expected = vec![Vec::new()];
            for seed in 1..=3 {
                let stream = browser.stream.begin(100).unwrap();
                assert_eq!(u64::from(stream), seed);
                browser.write(stream, upload.clone());
                expected.push(digest(&upload[1..], [0; 2]).map(u64::to_be_bytes).concat());
            }
            for seed in 4..=30 {
                let length = [0, 1, 1_300, 20_000, 60_000][rng.below(5) as usize];
                let line = format!("G{length} {seed}\n");
                // Every third request reserves exactly the length of its object.
                let reserve = if seed % 3 == 0 { length } else { 1 << 40 };
                let stream = browser.stream.request(line.as_bytes(), reserve).unwrap();
                assert_eq!(u64::from(stream), seed);
                expected.push(object(length, seed));
            }
            world.finish(30, 400.0);
            for (stream, expected) in expected.iter().enumerate() {
                let read = world.browser().read.get(stream).cloned().unwrap_or_default();
                assert!(read == *expected, "{link}, stream {stream}");
            }
        }
    }
}

/// Ten outstanding objects of 20 kB fill the link, although each is smaller than the window.
#[test]
fn parallel_requests_fill_a_link_that_serial_requests_do_not() {
    let took = |parallel: bool| {
        let link = "rate=20M,delay=25ms,queue=400kB";
        let mut world = World::new(Browser::new(Config::default()), DEFAULT_BEHAVIOUR, link, 3);
        let mut lines = b"G".to_vec();
        for seed in 1..=100 {
            if parallel {
                let line = format!("G20000 {seed}\n");
                world.browser().stream.request(line.as_bytes(), 1 << 20).unwrap();
            } else {
                lines.extend(format!("20000 {seed}\n").bytes());
            }
        }
        world.browser().write(MAIN, lines);
        let streams = if parallel { 100 } else { 0 };
        let done = world.finish(streams, 60.0);
        let read: usize = world.browser().read.iter().map(Vec::len).sum();
        assert_eq!(read, 2_000_000);
        done.as_secs_f64()
    };
    let (parallel, serial) = (took(true), took(false));
    println!("2 MB in objects of 20 kB: {parallel:.2} s in parallel, {serial:.2} s one at a time");
    // The link takes 0.8 s; slow start takes the rest.
    assert!(parallel < 1.8 && parallel < serial / 2.0, "{parallel} {serial}");
}

#[test]
fn a_small_object_arrives_with_the_first_answer() {
    let link = "delay=50ms";
    let mut world = World::new(Browser::new(Config::default()), DEFAULT_BEHAVIOUR, link, 3);
    world.browser().write(MAIN, b"G1000 7\n".to_vec());
    world.sim.run_until(at(0.105));
    world.browser().pump();
    assert_eq!(world.browser().read[0], object(1_000, 7));
    world.finish(MAIN, 1.0);
}

/// Once an earlier transfer has opened the window, the client repeats the input of a new request in
/// further requests, each of which asks for another part of the output. So the object arrives in
/// one round trip, before the client has an output continuation.
#[test]
fn with_an_open_window_an_object_arrives_once_and_in_one_round_trip() {
    let mut world =
        World::new(Browser::new(Config::default()), DEFAULT_BEHAVIOUR, "rate=100M,delay=50ms", 3);
    world.browser().write(MAIN, b"G400000 7\n".to_vec());
    world.finish(MAIN, 5.0);
    // Wait until the transfer that opened the window has ended.
    world.sim.run_until(at(6.0));
    let packets = |world: &mut World| {
        let stats = world.sim.node(world.server).endpoint().stats();
        (stats.packets, stats.bytes)
    };
    for (length, reserve) in [(20_000, 24_000), (20_000, 20_000), (300, 1 << 20)] {
        let (begun, before) = (world.sim.now(), packets(&mut world));
        world.browser().now = begun;
        let line = format!("G{length} 8\n");
        let stream = world.browser().stream.request(line.as_bytes(), reserve).unwrap();
        let took = world.finish(stream, 20.0) - begun;
        assert!(took < Duration::from_millis(130), "{length} of {reserve}: {took:?}");
        assert!(world.browser().read[stream as usize] == object(length, 8));
        world.sim.run_until(world.sim.now() + Duration::from_millis(500));
        let after = packets(&mut world);
        let (sent, bytes) = (after.0 - before.0, after.1 - before.1);
        println!("{length} of {reserve}: {took:?}, {sent} packets, {bytes} bytes");
        assert!(bytes < length + length / 20 + 200, "{bytes} bytes for {length}");
        assert!(sent < 32, "{sent} packets for {length}");
    }
}

/// The throughput must be close to that of TCP with ten outstanding requests per connection.
#[test]
fn ten_outstanding_requests_fill_a_link_or_deliver_ten_objects_per_round_trip() {
    for (delay, least) in [(5, 0.85), (20, 0.85)] {
        let link = format!("rate=100M,delay={delay}ms,queue=1250kB");
        let mut world = World::new(Browser::new(Config::default()), DEFAULT_BEHAVIOUR, &link, 3);
        let (mut asked, mut done, mut open) = (0_u64, 0_u64, Vec::new());
        let mut early = 0;
        for tick in 1..=3_000 {
            let now = at(f64::from(tick) * 1e-3);
            world.sim.run_until(now);
            let browser = world.browser();
            browser.now = now;
            browser.pump();
            open.retain(|&stream| browser.stream.state(stream) == State::Open);
            done = asked - open.len() as u64;
            while open.len() < 10 {
                asked += 1;
                let line = format!("G20000 {asked}\n");
                open.push(browser.stream.request(line.as_bytes(), 24_000).unwrap());
            }
            if tick == 1_000 {
                early = done;
            }
        }
        let rate = (done - early) as f64 * 20_000.0 * 8.0 / 2.0;
        // The tick adds half a millisecond to each round trip.
        let most = f64::min(95e6, 10.0 * 20_000.0 * 8.0 / (f64::from(2 * delay) * 1e-3 + 5e-4));
        let stats = world.browser().stream.stats();
        println!("{delay} ms: {:.1} Mb/s, at most {:.1}: {stats:?}", rate / 1e6, most / 1e6);
        assert!(rate > least * most, "{delay} ms: {rate}, {stats:?}");
    }
}

#[test]
fn unread_data_stops_further_requests() {
    let config = Config { window: 100_000, ..Config::default() };
    let mut browser = Browser::new(config);
    browser.slow = Some(Rng::from_seed(4));
    let mut world = World::new(browser, DEFAULT_BEHAVIOUR, LINKS[0], 3);
    world.browser().write(MAIN, b"G3000000 7\n".to_vec());
    let mut sent = 0;
    for step in 1..=20 {
        world.sim.run_until(at(f64::from(step) * 0.1));
        let bytes = world.sim.node(world.server).endpoint().stats().bytes;
        let read = world.browser().read[0].len() as u64;
        assert!(bytes <= read + 150_000, "{bytes} sent, {read} read");
        sent = bytes;
    }
    assert!(sent > 100_000);
    world.browser().slow = None;
    world.finish(MAIN, 60.0);
    assert!(world.browser().read[0] == object(3_000_000, 7));
}

#[test]
fn an_output_longer_than_its_reservation_fails_with_too_long() {
    let mut world = World::new(Browser::new(Config::default()), DEFAULT_BEHAVIOUR, LINKS[0], 3);
    let stream = world.browser().stream.request(b"G5000 7\n", 3_000).unwrap();
    world.sim.run_until(at(1.0));
    world.browser().pump();
    assert_eq!(world.browser().read[stream as usize], object(3_000, 7));
    assert_eq!(world.browser().stream.state(stream), State::Failed(Failure::TooLong(3_000)));
}

#[test]
fn a_connection_to_an_unresponsive_server_times_out() {
    let config = Config { give_up: Duration::from_secs(20), ..Config::default() };
    let mut world = World::new(Browser::new(config), DEFAULT_BEHAVIOUR, "loss=100%", 3);
    world.browser().write(MAIN, b"G5000 7\n".to_vec());
    world.sim.run_until(at(19.0));
    assert_eq!(world.browser().stream.state(MAIN), State::Open);
    world.sim.run_until(at(60.0));
    assert_eq!(world.browser().stream.state(MAIN), State::Failed(Failure::TimedOut));
}

#[test]
fn an_mtu_black_hole_is_detected_within_two_seconds() {
    for longest in [[1_100, 1_100], [1_100, usize::MAX], [usize::MAX, 1_100]] {
        let behaviour = Behaviour { longest, ..DEFAULT_BEHAVIOUR };
        let mut world = World::new(Browser::new(Config::default()), behaviour, LINKS[0], 1);
        world.browser().write(MAIN, b"G100000 1\n".to_vec());
        let took = world.finish(MAIN, 2.5);
        assert!(world.browser().read[0] == object(100_000, 1), "{longest:?}");
        println!("{longest:?}: {took:?}");
    }
}

#[test]
fn answers_fit_a_return_path_whose_mtu_the_server_knows() {
    for back in [1_390, 1_100, 500] {
        let behaviour = Behaviour { longest: [usize::MAX, back], fits: true, ..DEFAULT_BEHAVIOUR };
        let mut world = World::new(Browser::new(Config::default()), behaviour, LINKS[0], 1);
        world.browser().write(MAIN, b"G100000 1\n".to_vec());
        world.finish(MAIN, 1.0);
        assert!(world.browser().read[0] == object(100_000, 1), "{back}");
        assert_eq!(world.browser().stream.stats().restarts, 0, "{back}: nothing was lost");
    }
}

#[test]
fn an_mtu_black_hole_that_begins_during_a_transfer_is_detected() {
    let mut world = World::new(Browser::new(Config::default()), DEFAULT_BEHAVIOUR, LINKS[0], 1);
    world.browser().write(MAIN, b"G10000000 1\n".to_vec());
    world.sim.run_until(at(0.3));
    let Node::Server { behaviour, .. } = world.sim.node_mut(world.server) else {
        panic!("a server")
    };
    behaviour.longest = [1_100; 2];
    assert!(world.browser().read[0].len() < 9_000_000);
    world.finish(MAIN, 8.0);
    assert!(world.browser().read[0] == object(10_000_000, 1));
}

#[test]
fn a_client_resumes_with_the_initial_window_after_a_silence() {
    // One silence is longer than the idle time after which a client restarts, the other far beyond
    // the replay horizon. With a first window of 10 packets, 65 packets arrive in 0.15 s; with one
    // of 1 packet, they do not.
    for silence in [15.0, 300.0] {
        let mut world = World::new(Browser::new(Config::default()), DEFAULT_BEHAVIOUR, LINKS[0], 3);
        let client = world.client;
        let first = world.browser().stream.request(b"G9000 7\n", 1 << 30).unwrap();
        world.sim.run_until(at(silence));
        let second = world.browser().stream.request(b"G90000 8\n", 1 << 30).unwrap();
        world.sim.node_mut(client).browser().pump();
        let now = world.sim.now();
        sim::Machine::handle_timeout(world.sim.node_mut(client), now);
        world.sim.run_until(at(silence + 0.15));
        world.browser().pump();
        assert_eq!(world.browser().read[first as usize], object(9_000, 7));
        assert!(world.browser().read[second as usize] == object(90_000, 8), "after {silence} s");
    }
}
