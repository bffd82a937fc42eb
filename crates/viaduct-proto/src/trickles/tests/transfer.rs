//! Complete transfers, under various network conditions.

use crate::link::LinkConfig;
use crate::sim::Sim;
use crate::sim::trickles::Receiver;
use crate::sim::trickles::world::{End, Fetch};
use crate::time::Instant;
use crate::trickles::server::{Settings, Stats};

fn link(text: &str) -> LinkConfig {
    text.parse().unwrap()
}

fn at(seconds: f64) -> Instant {
    Instant::from_nanos((seconds * 1e9) as u64)
}

/// Fetches `length` bytes over two links. Returns the client, and the server's counters at the end.
fn fetch(length: u64, up: &str, down: &str, seed: u64, end: Instant) -> (Fetch, Stats) {
    let mut sim = Sim::new();
    let client = sim.add(End::Client(Box::new(Fetch::new(length, Instant::ZERO))));
    let server = sim.add(End::server(Settings::default(), length));
    sim.connect((client, 0), (server, 0), link(up), seed);
    sim.connect((server, 0), (client, 0), link(down), seed + 1);
    sim.run_until(end);
    let stats = sim.node(server).as_server().stats();
    let End::Client(fetch) =
        std::mem::replace(sim.node_mut(client), End::Receiver(Receiver::default()))
    else {
        panic!("no client")
    };
    (*fetch, stats)
}

#[test]
fn a_stream_arrives_complete_over_a_clean_link() {
    for length in [1, 100, 1_000, 10_000, 1_000_000, 20_000_000] {
        let text = "rate=100M,delay=10ms,queue=1MB";
        let (fetch, _) = fetch(length, text, text, 1, at(10.0));
        let done = fetch.done.unwrap_or_else(|| panic!("{length} bytes: {fetch:?}"));
        // The first slow start of a long stream ends when the queue is full.
        assert!(fetch.client.stats().restarts == 0 || length > 1_000_000);
        assert!(done < at(0.13 + length as f64 * 8.0 / 70e6), "{length} bytes took {done:?}");
    }
}

#[test]
fn a_stream_arrives_complete_under_any_loss() {
    for (seed, loss) in ["1%", "5%", "20%", "1%x8", "1%x16"].into_iter().enumerate() {
        let text = format!("rate=20M,delay=10ms,queue=200kB,loss={loss}");
        let (fetch, stats) = fetch(1_000_000, &text, &text, seed as u64, at(300.0));
        assert!(fetch.done.is_some(), "{loss}: at {} of\n{fetch:?}", fetch.position());
        assert_eq!(stats.unproven + stats.inconsistent + stats.invalid, 0, "{stats:?}");
    }
}

/// A restart has a dozen attempts, most of which fail. With the last attempt the client asks for an
/// address token.
#[test]
fn a_stream_arrives_if_two_of_three_packets_are_lost() {
    for seed in 0..8 {
        let text = "rate=20M,delay=10ms,queue=200kB,loss=66%";
        let (fetch, _) = fetch(20_000, text, text, 10 * seed, at(20_000.0));
        assert!(fetch.done.is_some(), "seed {seed}: at {} of\n{fetch:?}", fetch.position());
    }
}

#[test]
fn a_round_trip_of_more_than_a_second_does_not_count_as_loss() {
    for (delay, trips) in [("700ms", 12.0), ("1500ms", 14.0)] {
        let text = format!("rate=20M,delay={delay},queue=1MB");
        let (fetch, _) = fetch(300_000, &text, &text, 1, at(120.0));
        let trip = 2.0 * delay.trim_end_matches("ms").parse::<f64>().unwrap() / 1e3;
        let done = fetch.done.unwrap_or_else(|| panic!("{delay}: {fetch:?}"));
        assert!(done < at(trips * trip), "{delay}: {done:?}, {:?}", fetch.client.stats());
    }
}

#[test]
fn a_delay_that_grows_forty_times_is_measured() {
    let mut sim = Sim::new();
    let length = 20_000_000;
    let client = sim.add(End::Client(Box::new(Fetch::new(length, Instant::ZERO))));
    let server = sim.add(End::server(Settings::default(), length));
    let (near, far) = ("rate=20M,delay=10ms,queue=500kB", "rate=20M,delay=400ms,queue=500kB");
    let up = sim.connect((client, 0), (server, 0), link(near), 1);
    let down = sim.connect((server, 0), (client, 0), link(near), 2);
    sim.run_until(at(3.0));
    for direction in [up, down] {
        sim.set_link(direction, link(far));
    }
    sim.run_until(at(10.0));
    let position = |sim: &Sim<End>| {
        let End::Client(fetch) = sim.node(client) else { panic!("no client") };
        (fetch.position(), fetch.client.stats())
    };
    let (before, had) = position(&sim);
    sim.run_until(at(18.0));
    let (after, has) = position(&sim);
    assert!(
        after > before + 300_000 || after == length,
        "{} bytes in ten round trips",
        after - before
    );
    assert!(has.restarts <= had.restarts, "the client restarts again and again: {has:?}");
}
