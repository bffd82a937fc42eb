//! Figure 10: transfer time of a single client by object size, in round trips.
//!
//! ```text
//!   TCP        SYN ─▶ ◀─ SYN-ACK    GET ─▶ ◀─ 10 packets     ◀─ 20 …
//!   Trickles   SYN, padded, with GET ─▶ ◀─ as many bytes     echo ─▶ ◀─ 10 packets     ◀─ 20 …
//! ```

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use viaduct_proto::trickles::standard::MAIN;
use viaduct_proto::trickles::stream::{Config, State};
use viaduct_sys::poll::{Waker, wait};

use super::served::{CONGESTION_CONTROL, Served, at, get};
use crate::experiments::prelude::*;
use crate::load::{Counted, Trickles};

const LINK: &str = "rate=100M,delay=50ms,queue=2MB";
const RTT: Duration = Duration::from_millis(100);
/// Object sizes in bytes: those that fit into the answer to a padded SYN, then a window and more.
const SIZES: [usize; 14] = [
    100, 300, 600, 800, 1_000, 1_200, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 250_000,
    1_000_000,
];
const QUICK: [usize; 4] = [100, 800, 10_000, 100_000];
/// Same number of rounds as the paper, whose error bars are 95 % confidence intervals.
const ROUNDS: usize = 6;
/// Minimum size, in bytes, of the largest object that fits into the answer to a SYN of 1,460 bytes.
/// The answer also contains continuations (about 300 bytes) and the response's head (about 200).
const MIN_AT_ONCE: f64 = 800.0;
/// Tolerance in round trips, for the time of programs, timers and the link's rate.
const SLACK: f64 = 0.15;
const LIMIT: Duration = Duration::from_secs(20);

pub(in crate::experiments) const ABOUT: About = About {
    name: "trickles/object-size",
    title: "Time for an object by its size, in round trips",
    figure: "Trickles, Figure 10",
    finding: "Small objects arrive much sooner than by TCP: data in the SYN are answered \
              immediately, and there are fewer control packets.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let sizes: &[usize] = run.choose(&SIZES, &QUICK);
    let rounds = run.choose(ROUNDS, 1);
    run.param("rtt_ms", RTT.as_millis() as u64);
    run.param("link", LINK);
    run.param("rounds", rounds);
    run.param("trickles_client", "a client core in the lab's process, on the host of TCP's client");
    run.congestion_control(CONGESTION_CONTROL);
    let world = Dumbbell::over(link(LINK), 1, run.seed(), run.journal())?;
    let served = Served::start(world.b1(), &[])?;
    let to = at(world.b1());
    let mut clients = Trickles::open(&world, to, run.seed())?;
    let plot = Plot::line("Time for an object", ("size", "bytes"), ("time", "round trips"));
    let plot = plot.log_x().confidence();
    let mut found = Vec::new();
    run.steps(sizes.len());
    for &size in sizes {
        run.step(&format!("{size} bytes"))?;
        let content = served.file(&size.to_string(), size, run.seed())?;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            ours.push(by_trickles(&mut clients, &content)?);
            theirs.push(by_tcp(world.a1(), to, &content)?);
        }
        let trips = |time: &Duration| time.as_secs_f64() / RTT.as_secs_f64();
        let amplified = ours.iter().map(|one| one.amplified).fold(0.0, f64::max);
        let ours: Vec<f64> = ours.iter().map(|one| trips(&one.time)).collect();
        let theirs: Vec<f64> = theirs.iter().map(trips).collect();
        for (name, values) in [("Trickles", &ours), ("TCP reno", &theirs)] {
            run.plot_points(&plot, name, values.iter().map(|value| (size as f64, *value)));
        }
        found.push((size, median(&ours), median(&theirs), amplified));
    }
    check(run, &found);
    Ok(())
}

/// Checks `found`: object size, round trips with Trickles and with TCP, and size of the first
/// answer relative to the SYN.
fn check(run: &mut Run, found: &[(usize, f64, f64, f64)]) {
    let at_once = found.iter().filter(|one| one.1 < 1.0 + SLACK).map(|one| one.0);
    let at_once = at_once.max().unwrap_or(0);
    run.at_least("largest object received in one round trip, bytes", at_once as f64, MIN_AT_ONCE);
    let small = found.iter().filter(|one| one.0 <= at_once);
    // If no object was received in one round trip, no round trip is saved.
    let gain = small.map(|one| one.2 - one.1).reduce(f64::min).unwrap_or(0.0);
    run.at_least("round trips saved by such objects, minimum", gain, 1.0 - SLACK);
    let beyond = found.iter().map(|one| one.1 - one.2).fold(f64::NEG_INFINITY, f64::max);
    run.at_most("round trips in excess of TCP, maximum over sizes", beyond, SLACK);
    let most = found.iter().map(|one| one.3).fold(0.0, f64::max);
    run.at_most("bytes of the first answer relative to the SYN, maximum", most, 1.0);
}

struct Fetch {
    time: Duration,
    /// Bytes of the first packet received, relative to the bytes sent before it.
    amplified: f64,
}

/// Fetches the object over Trickles, timed from the first packet to the last byte, and compares
/// it with `content`.
fn by_trickles(clients: &mut Trickles, content: &[u8]) -> Result<Fetch> {
    let (waker, mut changed) = (Waker::new()?, Vec::new());
    // Late packets of the previous fetch are drained first.
    while clients.turn(&mut changed)? {}
    let (begin, before) = (Instant::now(), clients.counted());
    let client = clients.connect(Config::default());
    let request = get(&content.len().to_string());
    let stream = clients.stream(client).context("no such connection")?;
    stream.write(MAIN, &request);
    stream.shutdown(MAIN);
    let (mut got, mut amplified) = (Vec::new(), None);
    clients.flush(&mut changed);
    let asked = clients.counted();
    while begin.elapsed() < LIMIT {
        wait(&[&*clients], &waker, clients.poll_timeout().unwrap_or(LIMIT).min(LIMIT));
        clients.turn(&mut changed)?;
        if amplified.is_none() && clients.counted().received != asked.received {
            amplified = Some(ratio(before, asked, clients.counted()));
        }
        let stream = clients.stream(client).context("no such connection")?;
        while let Some(data) = stream.read(MAIN) {
            got.extend_from_slice(&data);
        }
        match stream.state(MAIN) {
            State::Open => {}
            State::Failed(why) => bail!("a fetch of {} bytes: {why}", content.len()),
            State::Finished => {
                let time = begin.elapsed();
                clients.forget(client);
                ensure!(got.ends_with(content), "wrong content among {} bytes", content.len());
                return Ok(Fetch { time, amplified: amplified.unwrap_or(f64::NAN) });
            }
        }
    }
    bail!("{} bytes did not arrive within {LIMIT:?}", content.len())
}

fn ratio(before: Counted, asked: Counted, answered: Counted) -> f64 {
    let sent = asked.sent.1 - before.sent.1;
    (answered.received.1 - asked.received.1) as f64 / sent as f64
}

fn by_tcp(host: &Host, to: SocketAddr, content: &[u8]) -> Result<Duration> {
    let fetch = || -> Result<Duration> {
        let begin = Instant::now();
        let mut stream = TcpStream::connect(to)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.write_all(&get(&content.len().to_string()))?;
        let (mut got, mut buffer, mut last) = (Vec::new(), vec![0; 256 << 10], begin.elapsed());
        loop {
            match stream.read(&mut buffer)? {
                0 => break,
                read => got.extend_from_slice(&buffer[..read]),
            }
            last = begin.elapsed();
        }
        ensure!(got.ends_with(content), "wrong content among {} bytes by TCP", content.len());
        Ok(last)
    };
    host.netns().enter(fetch)?
}
