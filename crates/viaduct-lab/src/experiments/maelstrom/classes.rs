//! Delay-sensitive messages, with and without a concurrent bulk flow.

use super::{Case, cases, medians, overhead};
use crate::experiments::prelude::*;
use crate::topology::programs::{Carrier, Message, TimedMessages};

const CASES: [Case; 3] = [
    ("1 % single", "1%", true),
    ("1 %, bursts of 8", "1%x8", false),
    ("1 %, bursts of 30", "1%x30", true),
];
/// Delay of the link, one way, in milliseconds.
const ONE_WAY: f64 = 50.0;
/// Maximum by which the 99th percentile of deliveries may exceed [`ONE_WAY`], in milliseconds.
const BEYOND: f64 = 10.0;
/// Maximum length of the queue in milliseconds; a message may wait in it behind a bulk flow.
const QUEUE: f64 = 5.0;
const HEADERS: usize = 28;

/// Named stream of messages.
struct Stream {
    name: &'static str,
    /// Bytes per packet, IP and UDP headers included.
    length: usize,
    /// Packets per second.
    pace: f64,
    /// True if a bulk flow runs concurrently.
    concurrent: bool,
}

const STREAMS: [Stream; 3] = [
    Stream { name: "50 packets a second during bulk", length: 84, pace: 50.0, concurrent: true },
    Stream { name: "5 Mb/s during bulk", length: 200, pace: 3_125.0, concurrent: true },
    Stream { name: "50 packets a second alone", length: 84, pace: 50.0, concurrent: false },
];

/// Streams of 84-byte packets: packets per second, class, and maximum repair bytes per data byte.
const COSTS: [(f64, &str, f64); 3] = [
    (50.0, "repairs = \"copies\"", 2.2),
    (5_000.0, "repairs = \"copies\"", 1.2),
    (5_000.0, "repairs = \"window\"\ndeadline = \"100ms\"", 0.15),
];

pub(in crate::experiments) const ABOUT: About = About {
    name: "maelstrom/classes",
    title: "Delay of messages under loss, and the cost of repairs for small packets",
    figure: "beyond Maelstrom, which has one code for all packets",
    finding: "No code has both the lowest overhead and the lowest delay, and classes of traffic \
              differ in which of the two they need.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let seconds = run.choose(60, 15);
    let rounds = run.choose(5, 1);
    run.param("link", "200 Mb/s, 50 ms one way, queue 5 ms");
    run.param("mtu", "hosts 1200, WAN 1500");
    run.param("code", "auto");
    run.param("beside", "iperf3, one cubic flow limited to 150 Mb/s");
    run.param("seconds", seconds);
    run.param("rounds", rounds);
    run.congestion_control("cubic");
    let cases = cases(run, &CASES);
    run.steps(rounds * (cases.len() * STREAMS.len() + COSTS.len()));
    for (x, (case, loss, _)) in cases.into_iter().enumerate() {
        for stream in &STREAMS {
            let [p99] = medians(rounds, |round| {
                run.step(&format!("{case}, {}", stream.name))?;
                let mut world = world(run, loss, round)?;
                world.protect(&GatewaySpec::default())?;
                Ok([quantile(&send(&world, stream, seconds)?, 0.99)])
            })?;
            let plot = Plot::histogram("99 % of messages within", ("loss", ""), ("", "ms"));
            run.plot_bar(&plot, stream.name, (x, case), p99);
            let bound = ONE_WAY + BEYOND + if stream.concurrent { QUEUE } else { 0.0 };
            run.at_most(&format!("{case}: {}, p99, ms", stream.name), p99, bound);
        }
    }
    for (pace, repairs, most) in COSTS {
        let [bytes] = medians(rounds, |round| {
            run.step(&format!("{pace} packets a second, {repairs}"))?;
            let mut world = world(run, "1%", round)?;
            let class = format!("max_overhead = 1.0\n[[peer.class]]\nname = \"all\"\n{repairs}\n");
            world.protect(&GatewaySpec::fec(&class))?;
            let stream = Stream { name: "small", length: 84, pace, concurrent: false };
            send(&world, &stream, seconds)?;
            Ok([overhead(&SenderStats::default(), &world.sender()?)])
        })?;
        let kind = repairs.replace('\n', ", ").replace('"', "");
        let name =
            format!("{pace} packets of 84 bytes a second, {kind}: repair bytes per data byte");
        run.at_most(&name, bytes, most);
    }
    Ok(())
}

fn world(run: &Run, loss: &str, round: usize) -> Result<World> {
    let config = format!("rate=200M,delay=50ms,queue=5ms,loss={loss}");
    World::new((1200, 1500), &link(&config), run.seed() + round as u64, run.journal())
}

/// Sends the stream, with a concurrent bulk flow if `stream.concurrent` is set. Returns the
/// delivery times in milliseconds, infinity for messages that never arrived.
fn send(world: &World, stream: &Stream, seconds: u32) -> Result<Vec<f64>> {
    let size = stream.length - HEADERS;
    let messages = TimedMessages {
        size,
        bits_per_second: stream.pace * 8.0 * size as f64,
        timeout: Duration::from_secs(2),
        ..TimedMessages::paper(Carrier::Udp, Duration::from_secs(seconds.into()))
    };
    thread::scope(|scope| {
        let concurrent = stream.concurrent.then(|| {
            let bulk = Iperf::tcp("cubic", seconds + 3, 0).paced(150_000_000, 16_384);
            scope.spawn(move || bulk.run(world.a1(), world.b1()))
        });
        if concurrent.is_some() {
            thread::sleep(Duration::from_secs(3));
        }
        let sent = messages.run(world.a1(), world.b1())?;
        concurrent.map(join).transpose()?;
        Ok(sent.iter().map(Message::milliseconds).collect())
    })
}
