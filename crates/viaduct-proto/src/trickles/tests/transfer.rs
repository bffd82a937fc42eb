//! Whole transfers, whatever happens on the way.

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

/// A fetch of `length` bytes over two links; the client and the server at the end.
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
fn a_stream_comes_whole_over_a_clean_link() {
    for length in [1, 100, 1_000, 10_000, 1_000_000, 20_000_000] {
        let text = "rate=100M,delay=10ms,queue=1MB";
        let (fetch, _) = fetch(length, text, text, 1, at(10.0));
        let done = fetch.done.unwrap_or_else(|| panic!("{length} bytes: {fetch:?}"));
        // The first slow start of a long stream ends where the queue is full.
        assert!(fetch.client.stats().restarts == 0 || length > 1_000_000);
        assert!(done < at(0.13 + length as f64 * 8.0 / 70e6), "{length} bytes took {done:?}");
    }
}

#[test]
fn a_stream_comes_whole_whatever_is_lost() {
    for (seed, loss) in ["1%", "5%", "20%", "1%x8", "1%x16"].into_iter().enumerate() {
        let text = format!("rate=20M,delay=10ms,queue=200kB,loss={loss}");
        let (fetch, stats) = fetch(1_000_000, &text, &text, seed as u64, at(300.0));
        assert!(fetch.done.is_some(), "{loss}: at {} of\n{fetch:?}", fetch.position());
        assert_eq!(stats.unproven + stats.inconsistent + stats.invalid, 0, "{stats:?}");
    }
}

/// Most attempts fail, and a restart has a dozen of them: whoever has used them up asks for a ticket.
#[test]
fn a_stream_comes_where_two_of_three_packets_are_lost() {
    for seed in 0..8 {
        let text = "rate=20M,delay=10ms,queue=200kB,loss=66%";
        let (fetch, _) = fetch(20_000, text, text, 10 * seed, at(20_000.0));
        assert!(fetch.done.is_some(), "seed {seed}: at {} of\n{fetch:?}", fetch.position());
    }
}
