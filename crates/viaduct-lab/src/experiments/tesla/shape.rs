//! Section 4.1: `shape` and `latency` achieve their settings with every interposer.

use super::setups::{Load, Setup, Testbed};
use super::undisturbed::undisturbed;
use super::world::{CONGESTION_CONTROL, Network, World};
use crate::bench::Content;
use crate::experiments::prelude::*;

const VIAS: [&str; 3] = ["cgroup", "seccomp", "preload"];
/// Rates in Mb/s.
const RATES: [u32; 4] = [1, 5, 20, 100];
/// Delays in milliseconds.
const DELAYS: [u32; 3] = [5, 20, 50];
/// Maximum relative error of a rate.
const OFF: f64 = 0.05;

pub(in crate::experiments) const ABOUT: About = About {
    name: "tesla/shape",
    title: "Rates and delays that handlers achieve, compared with the requested ones",
    figure: "TESLA, section 4.1",
    finding: "A handler of some ten lines shapes the traffic of an unmodified program.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let _undisturbed = undisturbed(run);
    run.congestion_control(CONGESTION_CONTROL);
    let rates = run.choose(&RATES[..], &RATES[1..3]);
    let delays = run.choose(&DELAYS[..], &DELAYS[1..2]);
    run.steps(rates.len() + delays.len());
    let world = World::build(Network::Loopback, run.journal())?;
    for (n, &rate) in rates.iter().enumerate() {
        run.step(&format!("{rate} Mb/s"))?;
        shaped(run, &world, n as u16, rate)?;
    }
    for (n, &delay) in delays.iter().enumerate() {
        run.step(&format!("{delay} ms"))?;
        delayed(run, &world, (rates.len() + n) as u16, delay)?;
    }
    Ok(())
}

/// Runs one client for each interposer and direction, all concurrently; their total rate is far
/// below the machine's capacity.
fn shaped(run: &mut Run, world: &World, n: u16, rate: u32) -> Result<()> {
    let plain = Testbed::build(world, Setup::Plain, n)?;
    let handler = format!("+shape:rate={rate}M");
    let seconds = run.choose(10.0, 4.0);
    let load = |program| {
        let (block, content, warm_up) = (16 << 10, Content::Same, 1.0);
        Load { program, block, content, seconds, warm_up }
    };
    let cases: Vec<_> = VIAS.iter().flat_map(|via| [(*via, "write"), (*via, "read")]).collect();
    let found = parallel(&cases, |&(via, program)| {
        plain.measure_under(&[&handler, "--via", via], &load(program))
    })?;
    let title = "Rate obtained by rate requested";
    let plot = Plot::line(title, ("requested", "Mb/s"), ("obtained", "Mb/s")).log_x().log_y();
    for ((via, program), bytes) in cases.iter().zip(found) {
        let obtained = bytes * 8.0 / 1e6;
        let direction = if *program == "write" { "out" } else { "in" };
        run.plot_point(&plot, &format!("{via}, {direction}"), (rate.into(), obtained));
        let name = format!("{via}, {direction}: obtained, relative to {rate} Mb/s requested");
        run.within(&name, obtained / f64::from(rate), 1.0 - OFF, 1.0 + OFF);
    }
    Ok(())
}

fn delayed(run: &mut Run, world: &World, n: u16, delay: u32) -> Result<()> {
    let plain = Testbed::build(world, Setup::Plain, n)?;
    let handler = format!("+latency:delay={delay}ms");
    let (seconds, content) = (run.choose(4.0, 2.0), Content::Same);
    let load = Load { program: "volley", block: 1, content, seconds, warm_up: 0.2 };
    let found = parallel(VIAS, |via| plain.measure_under(&[&handler, "--via", via], &load))?;
    let plot = Plot::line("Delay each way", ("requested", "ms"), ("obtained", "ms"));
    for (via, volleys) in VIAS.iter().zip(found) {
        let each_way = 1000.0 / volleys / 2.0;
        run.plot_point(&plot, via, (delay.into(), each_way));
        let name = format!("{via}: delay in excess of {delay} ms requested, ms");
        run.within(&name, each_way - f64::from(delay), 0.0, 1.0);
    }
    Ok(())
}
