//! Real gateways: one of the two has 4,096 peers in its config, of which one exists.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use super::rounded;
use crate::experiments::prelude::*;
use crate::gateways::random_key;
use crate::topology::{Usage, cpu_time};

/// Number of peers in the config.
const PEERS: usize = 4_096;
/// Rate of the flow, in bits per second.
const RATE: u64 = 500_000_000;
/// Maximum CPU time per byte, relative to that with one peer.
const COST: f64 = 1.1;
/// Maximum seconds until the session with the peer that exists is up.
const START: f64 = 3.0;
/// Maximum bytes of resident memory for each peer.
const RESIDENT: f64 = 16.0 * 1024.0;
/// Maximum seconds of a scrape, and of `viaduct status`.
const PAGE: f64 = 1.0;
/// Address of the metrics.
const METRICS: &str = "127.0.0.1:9464";
/// Time after the start in which handshakes with the unreachable peers are most frequent.
const SETTLE: Duration = Duration::from_secs(12);

/// Measured values of a gateway.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    /// Seconds until the session is up.
    start: f64,
    /// CPU-seconds per second without traffic.
    idle: f64,
    /// CPU-seconds per GB.
    cost: f64,
    resident: f64,
    /// Seconds and bytes of a page of metrics.
    scrape: (f64, f64),
    /// Seconds of `viaduct status`.
    status: f64,
}

pub(super) fn steps(run: &Run) -> usize {
    2 * rounds(run)
}

fn rounds(run: &Run) -> usize {
    run.choose(5, 1)
}

pub(super) fn run(run: &mut Run) -> Result<()> {
    let seconds = run.choose(15, 6);
    run.param("real gateways", format!("one cubic flow of {} Mb/s", RATE / 1_000_000));
    let others = peers(PEERS - 1)?;
    let (mut one, mut many) = (Vec::new(), Vec::new());
    for round in 0..rounds(run) {
        let mut arms = [(1, "", &mut one), (PEERS, &others[..], &mut many)];
        arms.rotate_left(round % 2);
        for (count, others, found) in arms {
            run.step(&format!("{count} peers in the config of a real gateway"))?;
            found.push(measure(run, others, seconds)?);
        }
    }
    let ratios: Vec<f64> = many.iter().zip(&one).map(|(many, one)| many.cost / one.cost).collect();
    let name = "4,096 configured peers, one with traffic: CPU time per byte, relative to one peer";
    run.at_most(name, median(&ratios), COST);
    let of = |property: fn(&Found) -> f64| median_of(&many, property);
    let more = of(|found| found.resident) - median_of(&one, |found| found.resident);
    run.at_most("4,096 configured peers: seconds until the session is up", of(|f| f.start), START);
    let name = "4,096 configured peers: resident bytes per peer without traffic";
    run.at_most(name, more / (PEERS - 1) as f64, RESIDENT);
    run.at_most("4,096 configured peers: seconds of a scrape", of(|f| f.scrape.0), PAGE);
    run.at_most("4,096 configured peers: seconds of `viaduct status`", of(|f| f.status), PAGE);
    for (name, value) in [
        ("CPU-seconds a GB, one peer", median_of(&one, |found| found.cost)),
        ("CPU-seconds a GB, 4,096 peers", of(|found| found.cost)),
        ("CPU-ms a second without traffic, one peer", 1e3 * median_of(&one, |found| found.idle)),
        ("CPU-ms a second without traffic, 4,096 peers", 1e3 * of(|found| found.idle)),
        ("MB of metrics, 4,096 peers", of(|found| found.scrape.1) / 1e6),
        ("MB resident, one peer", median_of(&one, |found| found.resident) / 1e6),
        ("MB resident, 4,096 peers", of(|found| found.resident) / 1e6),
    ] {
        run.param(name, rounded(value));
    }
    Ok(())
}

fn measure(run: &Run, others: &str, seconds: u32) -> Result<Found> {
    let dumbbell = Dumbbell::build(&DumbbellSpec::default(), run.journal())?;
    let spec = GatewaySpec {
        tables: format!("[metrics]\nlisten = \"{METRICS}\""),
        others: others.to_owned(),
        ..GatewaySpec::default()
    };
    let mut gateways = crate::gateways::Gateways::prepare(&dumbbell, &spec)?;
    gateways.b.start()?;
    let begun = Instant::now();
    gateways.a.start()?;
    gateways.a.wait_until_up()?;
    let start = begun.elapsed().as_secs_f64();
    gateways.b.wait_until_up()?;
    thread::sleep(SETTLE);
    let pid = gateways.a.pid().context("the gateway runs")?.as_raw_nonzero().get().cast_unsigned();
    let (resident, before, begun) = (Usage::of(pid).resident as f64, cpu_time(pid), Instant::now());
    thread::sleep(Duration::from_secs(2));
    let idle = (cpu_time(pid) - before).as_secs_f64() / begun.elapsed().as_secs_f64();
    let flow = Iperf::tcp("cubic", seconds, 0).paced(RATE, 128 << 10);
    let before = cpu_time(pid);
    let report = flow.run(dumbbell.a1(), dumbbell.b1())?;
    let bytes = report.received / 8.0 * f64::from(seconds);
    let cost = (cpu_time(pid) - before).as_secs_f64() / bytes * 1e9;
    let begun = Instant::now();
    let length = dumbbell.gateway_a().netns().enter(scrape)??;
    let scrape = (begun.elapsed().as_secs_f64(), length as f64);
    let begun = Instant::now();
    let mut status = std::process::Command::new(binary()?);
    status.args(["status", "--name", "site-a", "--run-dir"]).arg(gateways.directory());
    let said = status.output().context("cannot run `viaduct status`")?;
    ensure!(!said.stdout.is_empty(), "`viaduct status` prints nothing");
    let status = begun.elapsed().as_secs_f64();
    gateways.a.stop()?;
    gateways.b.stop()?;
    Ok(Found { start, idle, cost, resident, scrape, status })
}

/// Returns the length of the page of metrics.
fn scrape() -> Result<usize> {
    let mut stream = TcpStream::connect(METRICS)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut page = Vec::new();
    stream.read_to_end(&mut page)?;
    ensure!(page.starts_with(b"HTTP/1.") && page.len() > 1_000, "no page of metrics");
    Ok(page.len())
}

/// Returns config tables of `count` unreachable peers. Their prefixes are not adjacent, so that the
/// taps' filters cannot merge them.
fn peers(count: usize) -> Result<String> {
    let mut tables = String::new();
    for n in 0..count {
        let key = random_key()?.public();
        let (high, low) = (16 + (n >> 8), n & 0xff);
        write!(
            tables,
            "[[peer]]\nname = \"peer-{n}\"\nkey = \"{key}\"\nendpoint = \"192.0.2.77:7400\"\n\
             prefixes = [\"172.{high}.{low}.0/25\", \"fd02:{n:x}::/64\"]\n"
        )?;
    }
    Ok(tables)
}
