//! Loss bursts, under which existing FEC tunnels collapse: throughput of one TCP flow by code.

use anyhow::Result;

use crate::experiment::{About, Plot, Run};
use crate::experiments::maelstrom::link;
use crate::gateways::GatewaySpec;
use crate::topology::programs::Iperf;
use crate::world::World;

/// Code, with its displayed name and its lines in `[peer.fec]`.
struct Candidate {
    name: &'static str,
    fec: &'static str,
    /// True if the code must stay above the bound.
    held: bool,
}

const CANDIDATES: [Candidate; 6] = [
    Candidate {
        name: "(8,3) I=(1,20,40)",
        fec: "code = \"layered\"\nr = 8\ninterleave = [1, 20, 40]",
        held: false,
    },
    Candidate {
        name: "(10,3) I=(1,61,127) delayed",
        fec: "code = \"layered\"\nr = 10\ninterleave = [1, 61, 127]\ndelay_xors = true",
        held: false,
    },
    Candidate {
        name: "(10,3) I=(1,61,127)",
        fec: "code = \"layered\"\nr = 10\ninterleave = [1, 61, 127]",
        held: false,
    },
    Candidate {
        name: "Reed-Solomon (190,57)",
        fec: "code = \"reed-solomon\"\nr = 190\nc = 57",
        held: true,
    },
    Candidate {
        name: "Reed-Solomon (100,36)",
        fec: "code = \"reed-solomon\"\nr = 100\nc = 36",
        held: false,
    },
    Candidate {
        name: "window 240, 3 per 10",
        fec: "code = \"window\"\nwindow = 240\nr = 10\nc = 3",
        held: true,
    },
];

const LOSSES: [(&str, &str); 3] =
    [("single packets", "1%"), ("bursts of 8", "1%x8"), ("bursts of 30", "1%x30")];

pub(in crate::experiments) const ABOUT: About = About {
    name: "maelstrom/throughput-burst",
    title: "Throughput of one cubic flow at 1 % loss, by burst length and code",
    figure: "beyond Maelstrom: its section 5.3 under TCP, against today's FEC tunnels",
    finding: "On such a link tinyfecVPN 10:3 fell to 4 Mb/s at bursts of 8 and 21 at bursts of 30, \
              20:10 to 117 and 17, plain cubic to 8 and 27.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let (seconds, warm_up) = run.choose((30, 10), (8, 6));
    let quick = run.quick();
    let codes: Vec<_> = CANDIDATES.iter().filter(|c| !quick || c.held).collect();
    run.param("link", "200 Mb/s, 50 ms one way, queue 100 ms, 1 % loss");
    run.param("mtu", "hosts 1200, WAN 1500");
    run.param("seconds", seconds);
    run.param("warm_up", warm_up);
    run.congestion_control("cubic");
    run.steps(LOSSES.len() * (codes.len() + 1));
    let flow = Iperf::tcp("cubic", seconds, warm_up);
    for (x, (name, loss)) in LOSSES.iter().enumerate() {
        let config = link(&format!("rate=200M,delay=50ms,queue=100ms,loss={loss}"));
        let mut world = World::new((1200, 1500), &config, run.seed(), run.journal())?;
        run.step(&format!("{name}, plain"))?;
        let plain = flow.run(world.a1(), world.b1())?.received / 1e6;
        draw(run, "throughput", "Mb/s", "plain kernel", (x, name), plain);
        for code in &codes {
            run.step(&format!("{name}, {}", code.name))?;
            let rate = protected(run, &mut world, code, &flow, (x, name))?;
            if code.held && x > 0 {
                run.at_least(&format!("{name}: {}, Mb/s", code.name), rate, 120.0);
            }
        }
    }
    Ok(())
}

fn protected(
    run: &mut Run,
    world: &mut World,
    code: &Candidate,
    flow: &Iperf,
    at: (usize, &str),
) -> Result<f64> {
    world.protect(&GatewaySpec::fec(code.fec).host_mtu(1200))?;
    let rate = flow.run(world.a1(), world.b1())?.received / 1e6;
    let gateways = world.gateways().expect("they were just started");
    let (sender, receiver) =
        (gateways.a.status()?.peer().sender, gateways.b.status()?.peer().receiver);
    let overhead = sender.repair_bytes as f64 / sender.bytes.max(1) as f64;
    draw(run, "throughput", "Mb/s", code.name, at, rate);
    draw(run, "overhead", "%", code.name, at, overhead * 100.0);
    draw(run, "packets not recovered", "", code.name, at, receiver.unrecoverable as f64);
    let mean = receiver.latency_sum as f64 / receiver.recovered.max(1) as f64 / 1e3;
    draw(run, "mean recovery latency", "ms", code.name, at, mean);
    if code.held {
        run.at_most(&format!("{}: {}, overhead", at.1, code.name), overhead, 0.4);
    }
    Ok(rate)
}

fn draw(run: &mut Run, what: &str, unit: &str, series: &str, (x, label): (usize, &str), y: f64) {
    let plot = Plot::histogram(&format!("One cubic flow: {what}"), ("loss", ""), (what, unit));
    let series = run.series(&plot, series);
    run.labelled_point(series, x as f64, y, label);
}
