//! Loss bursts, under which existing FEC tunnels collapse: throughput of one TCP flow by code.

use super::{overhead, world};
use crate::experiments::prelude::*;

/// Code: its name, its lines in `[peer.fec]`, and whether it is checked. A quick run measures only
/// the checked ones.
type Candidate = (&'static str, &'static str, bool);

const CANDIDATES: [Candidate; 6] = [
    ("(8,3) I=(1,20,40)", "code = \"layered\"\nr = 8\ninterleave = [1, 20, 40]", false),
    (
        "(10,3) I=(1,61,127) delayed",
        "code = \"layered\"\nr = 10\ninterleave = [1, 61, 127]\ndelay_xors = true",
        false,
    ),
    ("(10,3) I=(1,61,127)", "code = \"layered\"\nr = 10\ninterleave = [1, 61, 127]", false),
    ("Reed-Solomon (190,57)", "code = \"reed-solomon\"\nr = 190\nc = 57", true),
    ("Reed-Solomon (100,36)", "code = \"reed-solomon\"\nr = 100\nc = 36", false),
    ("window 240, 3 per 10", "code = \"window\"\nwindow = 240\nr = 10\nc = 3", true),
];

const LOSSES: [(&str, &str); 3] =
    [("single packets", "1%"), ("bursts of 8", "1%x8"), ("bursts of 30", "1%x30")];

pub(in crate::experiments) const ABOUT: About = About {
    name: "maelstrom/throughput-burst",
    title: "Throughput of one cubic flow at 1 % loss, by burst length and code",
    figure: "beyond Maelstrom: its section 5.3 under TCP, against today's FEC tunnels",
    finding: "On such a link, with bursts of 8 and of 30 packets, tinyfecVPN fell to 4 and 21 Mb/s \
              with its code 10:3, and to 117 and 17 Mb/s with 20:10; plain cubic fell to 8 and 27.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let (seconds, warm_up) = run.choose((30, 10), (8, 6));
    let quick = run.quick();
    let codes: Vec<_> = CANDIDATES.iter().filter(|(.., held)| !quick || *held).collect();
    run.param("link", "200 Mb/s, 50 ms one way, queue 100 ms, 1 % loss");
    run.param("mtu", "hosts 1200, WAN 1500");
    run.param("seconds", seconds);
    run.param("warm_up", warm_up);
    run.congestion_control("cubic");
    run.steps(LOSSES.len() * (codes.len() + 1));
    let flow = Iperf::tcp("cubic", seconds, warm_up);
    for (x, (name, loss)) in LOSSES.into_iter().enumerate() {
        let mut world = world(run, loss, 0)?;
        run.step(&format!("{name}, plain"))?;
        let plain = world.throughput(&flow)?;
        draw(run, "throughput", "Mb/s", "plain kernel", (x, name), plain);
        for code in &codes {
            run.step(&format!("{name}, {}", code.0))?;
            protected(run, &mut world, code, &flow, (x, name))?;
        }
    }
    Ok(())
}

/// Measures, draws and checks the flow with gateways of this code.
fn protected(
    run: &mut Run,
    world: &mut World,
    (code, fec, held): &Candidate,
    flow: &Iperf,
    at: (usize, &str),
) -> Result<()> {
    world.protect(&GatewaySpec::fec(fec).host_mtu(1200))?;
    let rate = world.throughput(flow)?;
    let (overhead, receiver) =
        (overhead(&SenderStats::default(), &world.sender()?), world.receiver()?);
    draw(run, "throughput", "Mb/s", code, at, rate);
    draw(run, "overhead", "%", code, at, overhead * 100.0);
    draw(run, "packets not recovered", "", code, at, receiver.unrecoverable as f64);
    let mean = receiver.latency_sum as f64 / receiver.recovered.max(1) as f64 / 1e3;
    draw(run, "mean recovery latency", "ms", code, at, mean);
    if *held {
        run.at_most(&format!("{}: {code}, overhead", at.1), overhead, 0.4);
    }
    if *held && at.0 > 0 {
        run.at_least(&format!("{}: {code}, Mb/s", at.1), rate, 120.0);
    }
    Ok(())
}

fn draw(run: &mut Run, what: &str, unit: &str, series: &str, (x, label): (usize, &str), y: f64) {
    let plot = Plot::histogram(&format!("One cubic flow: {what}"), ("loss", ""), (what, unit));
    run.plot_bar(&plot, series, (x, label), y);
}
