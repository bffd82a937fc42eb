//! Loss that begins and ends while a flow runs: rate of the flow after the onset, and repair bytes
//! after the end.

use super::{overhead, world};
use crate::experiments::prelude::*;

/// Link with losses.
const LOSSY: &str = "rate=200M,delay=50ms,queue=100ms,loss=1%";
/// The same link without losses.
const CLEAN: &str = "rate=200M,delay=50ms,queue=100ms";
/// Minimum rate in the first ten seconds of loss, relative to the steady rate under loss.
const FIRST: f64 = 0.85;
/// Maximum bytes of repairs and names per byte, 70 s after the last loss.
const AFTER: f64 = 0.005;
/// Seconds after the onset of loss in which the rate is compared with the steady rate.
const SOON: u64 = 10;

/// Length of each part, in seconds.
#[derive(Clone, Copy)]
struct Parts {
    clean: u64,
    lossy: u64,
    /// Time from the end of the loss until bytes are counted.
    after: u64,
    /// Time in which bytes are counted, except for its last second.
    counted: u64,
}

impl Parts {
    fn all(self) -> u64 {
        self.clean + self.lossy + self.after + self.counted
    }
}

struct Flow {
    /// Seconds from the start, and Mb/s.
    arrived: Vec<(f64, f64)>,
    /// Repair bytes per data byte after the loss.
    after: f64,
}

pub(in crate::experiments) const ABOUT: About = About {
    name: "maelstrom/onset",
    title: "Loss that begins while a flow runs, and ends",
    figure: "beyond Maelstrom, whose codes are fixed",
    finding: "A fixed code costs the same with and without loss.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let full = Parts { clean: 20, lossy: 60, after: 70, counted: 20 };
    let parts = run.choose(full, Parts { clean: 10, lossy: 20, after: 0, counted: 5 });
    let rounds = run.choose(5, 1);
    run.param("link", "200 Mb/s, 50 ms one way, queue 100 ms; 1 % single for a while");
    run.param("mtu", "hosts 1200, WAN 1500");
    run.param("code", "auto");
    run.param("seconds_clean", parts.clean);
    run.param("seconds_lossy", parts.lossy);
    run.param("rounds", rounds);
    run.congestion_control("cubic");
    run.steps(rounds);
    let mut flows = Vec::new();
    for round in 0..rounds {
        run.step(&format!("{} s of one flow", parts.all()))?;
        let mut world = world(run, "none", round)?;
        world.protect(&GatewaySpec::default())?;
        flows.push(flow(&world, parts)?);
    }
    let (begin, end) = (parts.clean, parts.clean + parts.lossy);
    let title = format!("One flow; 1 % is lost from {begin} s to {end} s");
    let plot = Plot::line(&title, ("time", "s"), ("throughput", "Mb/s"));
    run.plot_points(&plot, "with gateways", flows[0].arrived.iter().copied());
    let rate = |flow: &Flow, from: u64, to: u64| {
        let within = |(at, _): &&(f64, f64)| (from as f64..to as f64).contains(at);
        let rates: Vec<f64> = flow.arrived.iter().filter(within).map(|(_, of)| *of).collect();
        rates.iter().sum::<f64>() / rates.len().max(1) as f64
    };
    let steady = parts.clean + parts.lossy / 2;
    let share = |flow: &Flow| rate(flow, begin, begin + SOON) / rate(flow, steady, end);
    run.at_least(
        "first 10 s of loss, relative to the steady rate",
        median_of(&flows, share),
        FIRST,
    );
    if parts.after > 0 {
        let after = median_of(&flows, |flow| flow.after);
        run.at_most("repair bytes per data byte, 70 s after the loss", after, AFTER);
    }
    Ok(())
}

/// Runs one flow over a link that starts and later stops losing packets.
fn flow(world: &World, parts: Parts) -> Result<Flow> {
    let iperf = Iperf::tcp("cubic", parts.all() as u32, 0);
    let begun = Instant::now();
    let wait = |until: u64| stop::sleep(Duration::from_secs(until).saturating_sub(begun.elapsed()));
    thread::scope(|scope| {
        let flow = scope.spawn(|| iperf.run(world.a1(), world.b1()));
        for (until, config) in [(parts.clean, LOSSY), (parts.clean + parts.lossy, CLEAN)] {
            wait(until)?;
            for direction in [Direction::AtoB, Direction::BtoA] {
                world.link()?.set(direction, link(config))?;
            }
        }
        wait(parts.clean + parts.lossy + parts.after)?;
        let before = world.sender()?;
        wait(parts.all() - 1)?;
        let after = overhead(&before, &world.sender()?);
        let arrived = join(flow)?.arrived;
        let arrived = arrived.into_iter().map(|(at, rate)| (at, rate / 1e6)).collect();
        Ok(Flow { arrived, after })
    })
}
