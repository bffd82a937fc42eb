//! Transfers, and their throughput beside Reno's.

use super::reference::{Receiver, Sender};
use super::world::{Fetch, Node};
use crate::link::LinkConfig;
use crate::sim::Sim;
use crate::time::Instant;
use crate::trickles::server::{Settings, Stats};

const ENDLESS: u64 = 1 << 40;

fn link(text: &str) -> LinkConfig {
    text.parse().unwrap()
}

fn at(seconds: f64) -> Instant {
    Instant::from_nanos((seconds * 1e9) as u64)
}

/// A fetch of `length` bytes over two links; the client and the server at the end.
fn fetch(length: u64, up: &str, down: &str, seed: u64, end: Instant) -> (Fetch, Stats) {
    let mut sim = Sim::new();
    let client = sim.add(Node::Client(Box::new(Fetch::new(length, Instant::ZERO))));
    let server = sim.add(Node::server(Settings::default(), length));
    sim.connect((client, 0), (server, 0), link(up), seed);
    sim.connect((server, 0), (client, 0), link(down), seed + 1);
    sim.run_until(end);
    let stats = sim.node(server).as_server().stats();
    let Node::Client(fetch) =
        std::mem::replace(sim.node_mut(client), Node::Receiver(Receiver::default()))
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

/// What came of Trickles and of Reno over the same links with the same seeds.
#[derive(Clone, Copy, Debug, Default)]
struct Both {
    /// Packets that came.
    packets: [u64; 2],
    /// Bytes that came in order.
    bytes: [u64; 2],
    recoveries: [u64; 2],
    timeouts: [u64; 2],
}

fn both(up: &str, down: &str, seed: u64, seconds: f64) -> Both {
    let (fetch, stats) = fetch(ENDLESS, up, down, seed, at(seconds));
    let client = fetch.client.stats();

    let mut sim = Sim::new();
    let sender = sim.add(Node::Sender(Sender::new(1_400, 10)));
    let receiver = sim.add(Node::Receiver(Receiver::default()));
    sim.connect((receiver, 0), (sender, 0), link(up), seed);
    sim.connect((sender, 0), (receiver, 0), link(down), seed + 1);
    sim.run_until(at(seconds));
    let sender = sim.node(sender).as_sender();
    Both {
        packets: [client.received, sender.acknowledged()],
        bytes: [fetch.position(), sender.acknowledged() * 1_400],
        recoveries: [client.recoveries, sender.recoveries],
        timeouts: [stats.timeouts, sender.timeouts],
    }
}

/// Sums over a few seeds, and a line of the table in `docs/trickles.md`.
fn compare(up: &str, down: &str) -> [f64; 2] {
    let mut sum = Both::default();
    let add = |sum: &mut [u64; 2], more: [u64; 2]| (0..2).for_each(|i| sum[i] += more[i]);
    for seed in 0..2 {
        let one = both(up, down, 10 * seed, 20.0);
        add(&mut sum.packets, one.packets);
        add(&mut sum.bytes, one.bytes);
        add(&mut sum.recoveries, one.recoveries);
        add(&mut sum.timeouts, one.timeouts);
    }
    let ratios = [sum.packets, sum.bytes].map(|[ours, renos]| ours as f64 / renos as f64);
    println!(
        "{up} | {down} | packets {:.3} bytes {:.3} | recoveries {:?} timeouts {:?}",
        ratios[0], ratios[1], sum.recoveries, sum.timeouts
    );
    ratios
}

/// Random and burst losses in the direction of the data: packets come at Reno's rate; of their
/// bytes the continuations take about five in a hundred.
#[test]
fn throughput_is_renos_where_data_are_lost() {
    for (rate, delay, loss) in [
        ("20M", "10ms", "0.1%"),
        ("20M", "25ms", "1%"),
        ("20M", "20ms", "0.5%x4"),
        ("20M", "25ms", "0.2%x8"),
    ] {
        let down = format!("rate={rate},delay={delay},queue=250kB,loss={loss}");
        let [packets, _] = compare(&format!("delay={delay}"), &down);
        assert!((0.85..1.15).contains(&packets), "{down}: {packets:.3} of Reno's packets");
    }
}

/// A lost acknowledgement is made up by the next; a lost request is a lost answer (2.4). So this
/// is only reported, with a floor.
#[test]
fn lost_requests_cost_as_lost_answers_do() {
    for loss in ["0.1%", "1%"] {
        let up = format!("delay=20ms,loss={loss}");
        let [packets, _] = compare(&up, "rate=20M,delay=20ms,queue=250kB");
        assert!(packets > 0.1, "{up}: {packets:.3} of Reno's packets");
    }
}
