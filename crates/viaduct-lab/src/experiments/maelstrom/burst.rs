//! Figures 14, 16 and 17: layered interleaving under bursts of loss.

use viaduct_proto::fec::Code;

use crate::experiments::maelstrom::percent;
use crate::experiments::maelstrom::real_stream::{self, RealOutcome};
use crate::experiments::maelstrom::simulated::{
    Share, around, delayed, histogram, latencies_ms, layers, paper_flow, recovered, simulate,
};
use crate::experiments::prelude::*;

const LOSS: f64 = 0.001;

/// Interleaves that are also run with real gateways.
const REAL: [u16; 3] = [1, 19, 41];

/// Results of one code over all burst lengths.
struct Sweep {
    code: Code,
    interleaves: [u16; 3],
    /// Burst length, share recovered, and mean latency in ms.
    points: Vec<(u32, Share, f64)>,
}

pub(in crate::experiments) const ABOUT: About = About {
    name: "maelstrom/burst",
    title: "Recovery and its latency against the length of bursts",
    figure: "Maelstrom, Figures 14, 16 and 17",
    finding: "I=(1,19,41) catches almost all packets of bursts of 25, at about 45 ms on average, \
              and single losses within 2-3 ms; the longer the burst, the longer recovery takes.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let all = &[1, 2, 3, 4, 6, 8, 10, 12, 15, 18, 20, 22, 25, 28, 30, 33, 36, 40];
    let lengths: &[u32] = run.choose(all, &[1, 20, 25, 40]);
    let real: &[(u32, bool)] =
        run.choose(&[(1, true), (20, true), (25, true), (40, true), (25, false)], &[(25, true)]);
    run.param("code", "(8,3)");
    run.param("flow", "10 Mb/s of UDP in packets of 1200 bytes: 1042 a second");
    run.param("one_way_ms", 50);
    run.param("simulated_loss", LOSS);
    run.steps(lengths.len() + real.len());
    let sweeps = sweep(run, lengths)?;
    let real = through_gateways(run, real)?;
    for sweep in &sweeps {
        checks(run, sweep);
    }
    for (name, real, simulated) in &real {
        real_checks(run, name, real, simulated);
    }
    Ok(())
}

/// Simulates every code at every burst length.
fn sweep(run: &mut Run, lengths: &[u32]) -> Result<Vec<Sweep>> {
    let sets = [[1, 11, 19], [1, 19, 41]];
    let ways = sets.iter().flat_map(|i| [(i, layers(8, i)), (i, delayed(8, i))]);
    let new = |(i, code): (&[u16; 3], Code)| Sweep { code, interleaves: *i, points: vec![] };
    let mut sweeps: Vec<Sweep> = ways.map(new).collect();
    for &length in lengths {
        run.step(&format!("simulated bursts of {length}"))?;
        let bursts = run.choose(250, 60);
        let packets = (f64::from(bursts * length) / LOSS / 1.375) as u64;
        let stream = paper_flow(&format!("{LOSS}x{length}"), packets.max(250_000), run.seed());
        for sweep in &mut sweeps {
            let outcome = simulate(&stream, &sweep.code)?;
            let (share, latencies) = (recovered(&outcome), latencies_ms(&outcome));
            let average = mean(&latencies);
            points(run, &sweep.code.to_string(), length, (share.value, average));
            sweep.points.push((length, share, average));
            if [1, 20, 40].contains(&length) {
                bars(run, length, sweep, &latencies);
            }
        }
    }
    Ok(sweeps)
}

/// Draws Figures 16 and 17: immediate and delayed XORs side by side.
fn bars(run: &mut Run, length: u32, sweep: &Sweep, latencies: &[f64]) {
    let [a, b, c] = sweep.interleaves;
    let title = format!("I=({a},{b},{c}), bursts of {length}: recovery latency");
    let plot = Plot::histogram(&title, ("recovery latency", "ms"), ("recovered packets", "%"));
    let delays = matches!(&sweep.code, Code::Layered(p) if p.delay_xors);
    let name = if delays { "delayed XORs" } else { "immediate XORs" };
    let width = if length == 1 { 1.0 } else { 20.0 };
    run.plot_points(&plot, name, histogram(latencies, width));
}

fn checks(run: &mut Run, sweep: &Sweep) {
    let Sweep { code, interleaves, points } = sweep;
    let at_most_25 = points.iter().filter(|point| point.0 <= 25);
    let least = at_most_25.map(|point| point.1.value).fold(f64::INFINITY, f64::min);
    let immediate = *code == layers(8, interleaves);
    if *interleaves == REAL {
        // An immediate repair can be lost in the burst that it should repair.
        let bound = if immediate { 0.96 } else { 0.99 };
        run.at_least(&format!("{code}: lowest share recovered, bursts of up to 25"), least, bound);
    }
    let fall = |pair: &[(u32, Share, f64)]| pair[0].2 / pair[1].2;
    let falls = points.windows(2).map(fall).fold(0.0, f64::max);
    let name =
        format!("{code}: largest drop of mean latency from one burst length to the next, ratio");
    run.at_most(&name, falls, 1.05);
    if let (Some(first), true) = (points.first(), immediate) {
        run.at_most(&format!("{code}: average latency of single losses, ms"), first.2, 5.0);
    }
}

/// Runs real gateways with a layered code (8,3) of the interleaves [`REAL`]. Each of `ways` is a
/// burst length, and whether XORs are delayed. Returns each result with the share that a simulation
/// at the same loss recovers.
fn through_gateways(
    run: &mut Run,
    ways: &[(u32, bool)],
) -> Result<Vec<(String, RealOutcome, Share)>> {
    // At the paper's 0.1 %, a burst of 40 occurs every half minute: too rare to count in real time.
    let (loss, seconds) = run.choose((0.01, 120), (0.02, 12));
    run.param("real_loss", loss);
    run.param("real_seconds", seconds);
    let mut outcomes = Vec::new();
    for &(length, delay) in ways {
        let when = if delay { "delayed" } else { "immediate" };
        let name = format!("bursts of {length}, {when}");
        run.step(&format!("real gateways, {name}, loss {}", percent(loss)))?;
        let link = link(&format!("rate=100M,delay=50ms,loss={loss}x{length}"));
        let mut world = World::new((1200, 1500), &link, run.seed(), run.journal())?;
        let spec = GatewaySpec::layered(8, &REAL, delay).host_mtu(1200);
        // The gateway must not mistake a short delay of the sending process for a pause in the
        // stream, at which it would send incomplete repairs.
        let spec = GatewaySpec { fec: format!("{}flush_after = \"100ms\"\n", spec.fec), ..spec };
        let real = real_stream::send(&mut world, &spec, &link, seconds)?;
        let code = if delay { delayed(8, &REAL) } else { layers(8, &REAL) };
        let stream = paper_flow(&format!("{loss}x{length}"), 1_000_000, run.seed());
        let outcome = simulate(&stream, &code)?;
        let simulated = recovered(&outcome);
        let loss = percent(loss);
        let name_of = |what| format!("{code}, {what}, loss {loss}");
        let share = real.share();
        points(run, &name_of("real gateways"), length, (share, real.latency_ms));
        let average = mean(&latencies_ms(&outcome));
        points(run, &name_of("simulated"), length, (simulated.value, average));
        outcomes.push((name, real, simulated));
    }
    Ok(outcomes)
}

/// Adds a point to both plots: the share recovered, and the mean latency in ms.
fn points(run: &mut Run, name: &str, length: u32, (share, latency): (f64, f64)) {
    let (x, y) = (("burst length", "packets"), ("average recovery latency", "ms"));
    let plot = Plot::line("Recovered packets", x, ("recovered", "%"));
    run.plot_point(&plot, name, (length.into(), share * 100.0));
    run.plot_point(&Plot::line("Average recovery latency", x, y), name, (length.into(), latency));
}

fn real_checks(run: &mut Run, name: &str, real: &RealOutcome, simulated: &Share) {
    let errors = simulated.error.hypot(simulated.over(real.bursts).error);
    let bound = around(simulated.value, 3.0 * errors + 1.0 / real.bursts.max(1) as f64);
    let check = format!("real gateways, {name}: share recovered, compared with simulation");
    run.check(&check, real.share(), bound);
    let check = format!("real gateways, {name}: losses counted, relative to the link's record");
    run.within(&check, real.accounted(), 0.98, 1.02);
}
