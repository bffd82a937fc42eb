//! Section 4.4: a transfer survives a change of its client's address and a period without network.
//!
//! ```text
//!   a1 fetch ── +migrate ══ 100 Mb/s, 10 ms each way ══ +migrate ── serve b1
//!      half way: eth0 goes down … and comes back with another address
//! ```

use super::programs::{CommandPrefix, bench_anywhere, output, run as under, serve};
use crate::experiments::prelude::*;

const LINK: &str = "rate=100M,delay=10ms,queue=50ms";
const RTT: Duration = Duration::from_millis(20);
const CONGESTION_CONTROL: &str = "cubic";
const PORT: u16 = 9000;
/// New address of the client, in the same network as before, in which the gateway has 10.1.1.1.
const MOVED: &str = "10.1.1.77/24";

pub(in crate::experiments) const ABOUT: About = About {
    name: "tesla/migrate",
    title: "A transfer across a change of address and an outage",
    figure: "TESLA, section 4.4",
    finding: "Migrate preserves a flow across changes of address and periods of disconnection, \
              without the program's knowledge.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let bytes: u64 = run.choose(100_000_000, 10_000_000);
    let outage = Duration::from_secs(run.choose(30, 5));
    run.param("bytes", bytes);
    run.param("outage_s", outage.as_secs());
    run.congestion_control(CONGESTION_CONTROL);
    run.steps(2);
    run.step("the plain transfer")?;
    let seed = run.seed();
    let plain = Transfer { bytes, outage: None, under: Vec::new(), seed }.run(run.journal())?;
    let whole = plain.end.context("the plain transfer broke without an outage")?;
    run.step("an outage half way: with migrate, and concurrently a plain transfer")?;
    let gone = Some((whole / 2, outage));
    let migrate = Transfer { bytes, outage: gone, under: under(&["+migrate"])?, seed };
    let concurrent = Transfer { bytes, outage: gone, under: Vec::new(), seed };
    let journal = run.journal().clone();
    let found = parallel([migrate, concurrent], |one| one.run(&journal))?;
    let [migrate, concurrent] = &found[..] else { bail!("two transfers are expected") };
    let traces = [("plain, no outage", &plain), ("migrate", migrate), ("plain", concurrent)];
    for (name, traced) in traces {
        draw(run, name, &traced.trace);
    }
    let took = migrate.end.map_or(f64::INFINITY, |end| end.as_secs_f64());
    let beyond = took - (whole + outage).as_secs_f64();
    let name = "migrate: time beyond the plain transfer and the outage, s";
    run.at_most(name, beyond, (3 * RTT).as_secs_f64() + 1.0);
    let name = "migrate: all bytes arrived unaltered";
    run.at_least(name, f64::from(migrate.end.is_some()), 1.0);
    let name = "plain: concurrent transfers that completed";
    run.at_most(name, f64::from(concurrent.end.is_some()), 0.0);
    Ok(())
}

/// Draws the throughput of each half second.
pub(super) fn draw(run: &mut Run, name: &str, trace: &[(f64, f64)]) {
    let plot = Plot::line("Throughput", ("time", "s"), ("throughput", "Mb/s"));
    let series = run.series(&plot, name);
    for pair in trace.windows(2) {
        let [(from, before), (to, after)] = *pair else { continue };
        run.point(series, to, (after - before) * 8.0 / 1e6 / (to - from));
    }
}

struct Transfer {
    bytes: u64,
    /// Start and length of the network outage.
    outage: Option<(Duration, Duration)>,
    under: CommandPrefix,
    seed: u64,
}

/// Result of a transfer.
pub(super) struct Traced {
    /// Points (seconds, bytes received by then): every half second, and at the end.
    pub(super) trace: Vec<(f64, f64)>,
    /// Trace with a point every 100 ms.
    pub(super) all: Vec<(f64, f64)>,
    /// Time of completion, if the transfer completed.
    end: Option<Duration>,
}

impl Transfer {
    fn run(&self, journal: &Journal) -> Result<Traced> {
        let world = Dumbbell::over(link(LINK), 1, self.seed, journal)?;
        world.set_congestion_control(CONGESTION_CONTROL)?;
        let (client, server) = (world.a1(), world.b1());
        let _server = serve(server, PORT, &self.under)?;
        let at = format!("{}:{PORT}", server.v4());
        let bytes = self.bytes.to_string();
        let fetch = bench_anywhere(client, &self.under, &["fetch", &at, "--bytes", &bytes])?;
        thread::scope(|scope| {
            let outage = self.outage.map(|outage| scope.spawn(move || interrupt(client, outage)));
            let output = output(client, fetch, self.limit());
            if let Some(outage) = outage {
                join(outage)?;
            }
            stop::check()?;
            // A transfer that broke or hangs has no end.
            let Ok(output) = output else {
                return Ok(Traced { trace: Vec::new(), all: Vec::new(), end: None });
            };
            Ok(traced(&output))
        })
    }

    /// Returns the time limit: the time needed at half of the link's rate, plus a few seconds.
    fn limit(&self) -> Duration {
        let outage = self.outage.map_or(Duration::ZERO, |(_, outage)| outage);
        outage + Duration::from_secs_f64(self.bytes as f64 * 8.0 / 50e6 + 5.0)
    }
}

/// Takes `host` off the network, and brings it back with another address.
fn interrupt(host: &Host, (at, outage): (Duration, Duration)) -> Result<()> {
    thread::sleep(at);
    let line = |text: &str| text.to_owned();
    host.ip(&[line("link set eth0 down"), line("addr flush dev eth0")])?;
    thread::sleep(outage);
    let route = format!("route add default via 10.1.1.1 congctl {CONGESTION_CONTROL}");
    Ok(host.ip(&[format!("addr add {MOVED} dev eth0"), line("link set eth0 up"), route])?)
}

/// Parses the output of a fetch; the last line is the end.
pub(super) fn traced(output: &str) -> Traced {
    let pair = |line: &str| {
        let (ms, bytes) = line.split_once(' ')?;
        Some((ms.parse::<f64>().ok()? / 1e3, bytes.parse().ok()?))
    };
    let all: Vec<(f64, f64)> = output.lines().filter_map(pair).collect();
    let end = all.last().map(|(seconds, _)| Duration::from_secs_f64(*seconds));
    // Keeps the points at half seconds and the last one.
    let kept = |n: &usize| n.is_multiple_of(5) || n + 1 == all.len();
    let trace = (0..all.len()).filter(kept).map(|n| all[n]).collect();
    Traced { trace, all, end }
}
