//! Repairs that adapt to losses: gain of a flow on a lossy link, and its cost on a clean one.

use viaduct_proto::repair::stats::{LATENCY_BOUNDS, ReceiverStats};

use super::{describe, overhead, without_and_with, world};
use crate::experiments::prelude::*;

/// Loss process, and the requirements for a protected cubic flow under it. The fields are: the
/// name and the configuration of the process, the minimum throughput relative to the plain flow
/// without loss, the maximum bytes of repairs and names per data byte, and whether a quick run
/// includes the process.
type Case = (&'static str, &'static str, Option<f64>, Option<f64>, bool);

/// Alternating counts of packets delivered and lost, as in a busy wireless network: mostly
/// single losses, sometimes long bursts.
const WIRELESS: &str =
    "trace:120:1:310:2:45:1:890:6:60:1:1400:1:75:14:500:1:230:3:660:1:1900:22:90:1:410:1:1250:8";

const CASES: [Case; 9] = [
    ("no loss", "0", None, Some(0.005), true),
    ("0.1 % single", "0.1%", None, None, false),
    ("1 % single", "1%", Some(0.96), Some(0.04), true),
    ("2 % single", "2%", None, None, false),
    ("5 % single", "5%", Some(0.88), None, false),
    ("1 %, bursts of 8", "1%x8", Some(0.94), Some(0.06), false),
    ("1 %, bursts of 30", "1%x30", Some(0.9), Some(0.1), true),
    ("Gilbert-Elliott", "ge:0.2%:10%:0.01%:50%", None, None, false),
    ("wireless", WIRELESS, None, None, false),
];

/// Minimum throughput of a cubic flow without loss, relative to the plain flow.
const CLEAN: f64 = 0.995;
/// Minimum throughput of a bbr flow at any loss, relative to the plain flow at the same loss.
const BBR: f64 = 0.98;
/// Time limit for 99 % of recoveries of single losses at 1 %, in milliseconds.
const IN_TIME: f64 = 15.0;

#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    /// Mb/s without gateways.
    plain: f64,
    /// Mb/s with gateways.
    with: f64,
    /// Bytes of repairs and names per data byte.
    bytes: f64,
    /// Upper bound of the 99th percentile of recovery times, in milliseconds; 0 if nothing was
    /// recovered.
    p99: f64,
}

pub(in crate::experiments) const ABOUT: About = About {
    name: "maelstrom/adaptive",
    title: "One flow through gateways that adapt to the losses",
    figure: "beyond Maelstrom: its section 5.3 without a code that an operator has chosen",
    finding: "With fixed codes, repairs take 27 % of a clean link, and bursts longer than the code \
              can repair make flows collapse.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let (seconds, warm_up) = run.choose((20, 10), (10, 8));
    let rounds = run.choose(5, 1);
    let quick = run.quick();
    let cases: Vec<&Case> = CASES.iter().filter(|(.., in_quick)| !quick || *in_quick).collect();
    let congestions: &[&str] = run.choose(&["cubic", "bbr"], &["cubic"]);
    describe(run, (seconds, warm_up), rounds);
    run.param("code", "auto");
    run.steps(2 * rounds * cases.len() * congestions.len());
    for congestion in congestions {
        let iperf = Iperf::tcp(congestion, seconds, warm_up);
        let mut flows: Vec<Vec<Flow>> = vec![Vec::new(); cases.len()];
        for round in 0..rounds {
            for ((name, loss, ..), flows) in cases.iter().zip(&mut flows) {
                let mut world = world(run, loss, round)?;
                let (what, auto) = (format!("{congestion}, {name}"), GatewaySpec::default());
                let (plain, with) = without_and_with(run, &mut world, &iperf, &auto, &what)?;
                let bytes = overhead(&SenderStats::default(), &world.sender()?);
                flows.push(Flow { plain, with, bytes, p99: p99(&world.receiver()?) });
            }
        }
        let medians = flows.iter().map(|flows| Flow {
            plain: median_of(flows, |flow| flow.plain),
            with: median_of(flows, |flow| flow.with),
            bytes: median_of(flows, |flow| flow.bytes),
            p99: median_of(flows, |flow| flow.p99),
        });
        report(run, congestion, &cases, &medians.collect::<Vec<_>>());
    }
    Ok(())
}

/// Draws and checks the medians of one congestion control; shares are relative to the plain flow
/// without loss.
fn report(run: &mut Run, congestion: &str, cases: &[&Case], flows: &[Flow]) {
    let lossless = flows[0].plain;
    for (x, ((case, loss, share, bytes, _), flow)) in cases.iter().zip(flows).enumerate() {
        for ((what, unit), series, y) in [
            (("throughput", "Mb/s"), "plain kernel", flow.plain),
            (("throughput", "Mb/s"), "with gateways", flow.with),
            (("repair bytes", "%"), "with gateways", 100.0 * flow.bytes),
            (("99 % of recoveries within", "ms"), "with gateways", flow.p99),
        ] {
            let title = format!("One {congestion} flow: {what}");
            let plot = Plot::histogram(&title, ("loss", ""), (what, unit));
            run.plot_bar(&plot, series, (x, case), y);
        }
        let name = |what: &str| format!("{congestion}, {case}: {what}");
        if congestion == "bbr" {
            run.at_least(&name("with gateways, relative to plain"), flow.with / flow.plain, BBR);
            continue;
        }
        if x == 0 {
            run.at_least(&name("with gateways, relative to plain"), flow.with / flow.plain, CLEAN);
        }
        if let Some(share) = *share {
            run.at_least(
                &name("with gateways, relative to plain without loss"),
                flow.with / lossless,
                share,
            );
        }
        if let Some(bytes) = *bytes {
            run.at_most(&name("repair bytes per data byte"), flow.bytes, bytes);
        }
        if *loss == "1%" {
            run.at_most(&name("99 % of recoveries within, ms"), flow.p99, IN_TIME);
        }
    }
}

/// Returns the smallest bucket bound that covers 99 % of the recoveries, in milliseconds; 0 if
/// there are none.
fn p99(receiver: &ReceiverStats) -> f64 {
    let all: u64 = receiver.latency.iter().sum();
    let mut sum = 0;
    let within = receiver.latency.iter().position(|count| {
        sum += count;
        sum * 100 >= all * 99
    });
    let bound = within.map_or(0, |at| LATENCY_BOUNDS.get(at).copied().unwrap_or(u64::MAX));
    if all == 0 { 0.0 } else { bound as f64 / 1e3 }
}
