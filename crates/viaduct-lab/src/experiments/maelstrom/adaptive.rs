//! Repairs that adapt to losses: gain of a flow on a lossy link, and its cost on a clean one.

use anyhow::Result;
use viaduct_proto::repair::stats::{LATENCY_BOUNDS, PeerStats};

use super::super::statistics::median;
use super::link;
use crate::experiment::{About, Bound, Plot, Run};
use crate::gateways::GatewaySpec;
use crate::topology::programs::Iperf;
use crate::world::World;

/// Loss process, and the requirements for a protected cubic flow under it.
struct Case {
    name: &'static str,
    loss: &'static str,
    /// Minimum throughput relative to the plain flow without loss.
    share: Option<f64>,
    /// Maximum bytes of repairs and names per data byte.
    bytes: Option<f64>,
    /// True if a quick run includes it.
    quick: bool,
}

/// Alternating counts of packets delivered and lost, as in a busy wireless network: mostly
/// single losses, sometimes long bursts.
const WIRELESS: &str =
    "trace:120:1:310:2:45:1:890:6:60:1:1400:1:75:14:500:1:230:3:660:1:1900:22:90:1:410:1:1250:8";

const CASES: [Case; 9] = [
    Case { name: "no loss", loss: "0", share: None, bytes: Some(0.005), quick: true },
    Case { name: "0.1 % single", loss: "0.1%", share: None, bytes: None, quick: false },
    Case { name: "1 % single", loss: "1%", share: Some(0.96), bytes: Some(0.04), quick: true },
    Case { name: "2 % single", loss: "2%", share: None, bytes: None, quick: false },
    Case { name: "5 % single", loss: "5%", share: Some(0.88), bytes: None, quick: false },
    Case {
        name: "1 %, bursts of 8",
        loss: "1%x8",
        share: Some(0.94),
        bytes: Some(0.06),
        quick: false,
    },
    Case {
        name: "1 %, bursts of 30",
        loss: "1%x30",
        share: Some(0.9),
        bytes: Some(0.1),
        quick: true,
    },
    Case {
        name: "Gilbert-Elliott",
        loss: "ge:0.2%:10%:0.01%:50%",
        share: None,
        bytes: None,
        quick: false,
    },
    Case { name: "wireless", loss: WIRELESS, share: None, bytes: None, quick: false },
];

/// Minimum throughput relative to the plain flow: of a flow without loss, and of a bbr flow at
/// any loss.
const CLEAN: f64 = 0.995;
const BBR: f64 = 0.98;
/// Time limit for 99 % of recoveries of single losses at 1 %, in microseconds.
const IN_TIME: u64 = 15_000;

/// Results of one flow.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    plain: f64,
    with: f64,
    /// Bytes of repairs and names per data byte.
    bytes: f64,
    /// Upper bound of the 99th percentile of recovery times, in microseconds.
    p99: f64,
}

pub(in crate::experiments) const ABOUT: About = About {
    name: "maelstrom/adaptive",
    title: "One flow through gateways that follow the losses",
    figure: "beyond Maelstrom: its section 5.3 without a code that an operator has chosen",
    finding: "With fixed codes a clean link loses 27 % to repairs, and bursts beyond the code's \
              reach make flows collapse.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let (seconds, warm_up) = run.choose((20, 10), (10, 8));
    let rounds = run.choose(5, 1);
    let quick = run.quick();
    let cases: Vec<&Case> = CASES.iter().filter(|case| !quick || case.quick).collect();
    let congestions: &[&str] = run.choose(&["cubic", "bbr"], &["cubic"]);
    run.param("link", "200 Mb/s, 50 ms one way, queue 100 ms");
    run.param("mtu", "hosts 1200, WAN 1500");
    run.param("code", "auto");
    run.param("seconds", seconds);
    run.param("warm_up", warm_up);
    run.param("rounds", rounds);
    run.steps(2 * rounds * cases.len() * congestions.len());
    for congestion in congestions {
        let mut flows: Vec<Vec<Flow>> = vec![Vec::new(); cases.len()];
        for round in 0..rounds {
            for (case, flows) in cases.iter().zip(&mut flows) {
                let config = format!("rate=200M,delay=50ms,queue=100ms,loss={}", case.loss);
                let seed = run.seed() + round as u64;
                let mut world = World::new((1200, 1500), &link(&config), seed, run.journal())?;
                let iperf = Iperf::tcp(congestion, seconds, warm_up);
                run.step(&format!("{congestion}, {}, plain", case.name))?;
                let plain = iperf.run(world.a1(), world.b1())?.received / 1e6;
                world.protect(&GatewaySpec::default())?;
                run.step(&format!("{congestion}, {}, with gateways", case.name))?;
                let with = iperf.run(world.a1(), world.b1())?.received / 1e6;
                let gateways = world.gateways().expect("they were just started");
                let [a, b] = [gateways.a.status()?.peer(), gateways.b.status()?.peer()];
                flows.push(Flow {
                    plain,
                    with,
                    bytes: a.sender.repair_bytes as f64 / a.sender.bytes.max(1) as f64,
                    p99: p99(&b),
                });
            }
        }
        let of = |case: usize, what: fn(&Flow) -> f64| {
            median(&flows[case].iter().map(what).collect::<Vec<_>>())
        };
        let medians = (0..cases.len()).map(|case| Flow {
            plain: of(case, |flow| flow.plain),
            with: of(case, |flow| flow.with),
            bytes: of(case, |flow| flow.bytes),
            p99: of(case, |flow| flow.p99),
        });
        judge(run, congestion, &cases, &medians.collect::<Vec<_>>());
    }
    Ok(())
}

/// Draws and checks the medians of one congestion control. Shares are relative to the plain
/// flow without loss.
fn judge(run: &mut Run, congestion: &str, cases: &[&Case], flows: &[Flow]) {
    let lossless = flows[0].plain;
    for (x, (case, flow)) in cases.iter().zip(flows).enumerate() {
        let at = (x, case.name);
        draw(run, congestion, ("throughput", "Mb/s"), "plain kernel", at, flow.plain);
        draw(run, congestion, ("throughput", "Mb/s"), "with gateways", at, flow.with);
        draw(run, congestion, ("bytes of repairs", "%"), "with gateways", at, 100.0 * flow.bytes);
        let p99 = flow.p99 / 1e3;
        draw(run, congestion, ("99 of 100 recoveries within", "ms"), "with gateways", at, p99);
        let name = |what: &str| format!("{congestion}, {}: {what}", case.name);
        if congestion == "bbr" {
            run.at_least(&name("with over plain"), flow.with / flow.plain, BBR);
            continue;
        }
        if x == 0 {
            run.at_least(&name("with over plain"), flow.with / flow.plain, CLEAN);
        }
        if let Some(share) = case.share {
            let share = Bound::AtLeast(share);
            run.check(&name("with over plain without loss"), flow.with / lossless, share);
        }
        if let Some(bytes) = case.bytes {
            run.at_most(&name("bytes of repairs a byte"), flow.bytes, bytes);
        }
        if case.loss == "1%" {
            let bound = Bound::AtMost(IN_TIME as f64 / 1e3);
            run.check(&name("99 of 100 recoveries within, ms"), flow.p99 / 1e3, bound);
        }
    }
}

fn draw(
    run: &mut Run,
    congestion: &str,
    (what, unit): (&str, &str),
    series: &str,
    (x, label): (usize, &str),
    y: f64,
) {
    let title = format!("One {congestion} flow: {what}");
    let plot = Plot::histogram(&title, ("loss", ""), (what, unit));
    let series = run.series(&plot, series);
    run.labelled_point(series, x as f64, y, label);
}

/// Returns the smallest bucket bound that covers 99 % of the recoveries; 0 if there are none.
fn p99(stats: &PeerStats) -> f64 {
    let latency = &stats.receiver.latency;
    let all: u64 = latency.iter().sum();
    let mut sum = 0;
    let within = latency.iter().position(|count| {
        sum += count;
        sum * 100 >= all * 99
    });
    let bound = within.map_or(0, |at| LATENCY_BOUNDS.get(at).copied().unwrap_or(u64::MAX));
    if all == 0 { 0.0 } else { bound as f64 }
}
