//! Figures 8 and 15: layered interleaving compared with Reed-Solomon.

use viaduct_proto::fec::analysis::{layered_independent, reed_solomon};
use viaduct_proto::sim::stream::Outcome;

use crate::experiments::maelstrom::percent;
use crate::experiments::maelstrom::simulated::{
    Share, around, blocks, delayed, layers, paper_flow, recovered, simulate,
};
use crate::experiments::prelude::*;

/// Single losses at 0.1 %, and occasional long bursts.
const SINGLES_AND_BURSTS: &str = "0.1%+0.05%x30";

const AVERAGED: usize = 50;

pub(in crate::experiments) const ABOUT: About = About {
    name: "maelstrom/vs-reed-solomon",
    title: "Layered interleaving compared with Reed-Solomon",
    figure: "Maelstrom, Figures 8 and 15",
    finding: "The recovery probabilities are very close between 0 and 10 % loss; Reed-Solomon \
              recovers all losses with the same latency; layers recover single losses almost \
              immediately, and are slow only where a long burst occurs.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    run.param("simulated", true);
    probabilities(run)?;
    latencies(run)
}

/// Draws Figure 8: (7,2) under independent loss.
fn probabilities(run: &mut Run) -> Result<()> {
    let losses: &[f64] =
        run.choose(&[0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5], &[0.01, 0.1, 0.3]);
    let packets = run.choose(4_000_000, 250_000);
    run.param("figure_8", "r=7 c=2, I=(1,10) and interleave 1, independent loss");
    run.steps(losses.len() + 3);
    let plot =
        Plot::line("Figure 8: recovery probability, (7,2)", ("loss", "%"), ("recovered", "%"));
    type Form = fn(f64) -> f64;
    let layered: Form = |p| layered_independent(7, 2, p);
    let blocked: Form = |p| reed_solomon(7, 2, p);
    for (name, form) in [("layers, lower bound", layered), ("Reed-Solomon, form", blocked)] {
        let losses = (0..=50).map(|n| f64::from(n) / 100.0);
        run.plot_points(&plot, name, losses.map(|p| (p * 100.0, form(p) * 100.0)));
    }
    let codes = [("layers", layers(7, &[1, 10])), ("Reed-Solomon", blocks(7, 2, 1))];
    for &p in losses {
        run.step(&format!("independent loss {}", percent(p)))?;
        let stream = paper_flow(&p.to_string(), packets, run.seed());
        let mut shares = Vec::new();
        for (name, code) in &codes {
            let share = recovered(&simulate(&stream, code)?);
            let at = (p * 100.0, share.value * 100.0);
            run.plot_point(&plot, &format!("{name}, simulated"), at);
            shares.push(share);
        }
        check_forms(run, p, shares[0], shares[1]);
    }
    Ok(())
}

fn check_forms(run: &mut Run, p: f64, layers: Share, blocks: Share) {
    // Lower bound only: a packet that one layer recovers helps the other layers.
    let least = layered_independent(7, 2, p);
    let reachable = around((1.0 + least) / 2.0, (1.0 - least) / 2.0 + layers.margin());
    let name = format!("{} lost: share that layers recover", percent(p));
    run.check(&name, layers.value, reachable);
    let (form, margin) = (reed_solomon(7, 2, p), blocks.margin());
    let name = format!("{} lost: share that Reed-Solomon recovers", percent(p));
    run.check(&name, blocks.value, around(form, margin));
}

/// Draws Figure 15: (8,2), both codes able to correct bursts of 40.
fn latencies(run: &mut Run) -> Result<()> {
    let packets = run.choose(1_000_000, 250_000);
    run.param("figure_15", "r=8 c=2, I=(1,40) and interleave 20, 1042 packets/s");
    run.param("figure_15_loss", SINGLES_AND_BURSTS);
    let title = "Figure 15: recovery latency, moving average of 50, (8,2)";
    let plot = Plot::line(title, ("packet", ""), ("recovery latency", "ms"));
    let codes = [blocks(8, 2, 20), layers(8, &[1, 40]), delayed(8, &[1, 40])];
    let (mut medians, mut highest) = (Vec::new(), Vec::new());
    for code in codes {
        run.step(&format!("singles and bursts, {code}"))?;
        let stream = paper_flow(SINGLES_AND_BURSTS, packets, run.seed());
        let outcome = simulate(&stream, &code)?;
        let series = run.series(&plot, &code.to_string());
        let averages = moving_average(&outcome, 500_000);
        averages.iter().for_each(|(packet, latency)| run.point(series, *packet, *latency));
        highest.push(averages.iter().map(|(_, latency)| *latency).fold(0.0, f64::max));
        let share = recovered(&outcome).value;
        // An immediate repair can be lost in the burst that it should repair.
        let least = if code == delayed(8, &[1, 40]) { 0.99 } else { 0.95 };
        run.at_least(&format!("{code}: share recovered"), share, least);
        medians.push(median_of_singles(&outcome));
    }
    run.param("median_singles_ms", medians.iter().map(|m| m.round()).collect::<Vec<_>>());
    let name = "median latency of single losses, layers relative to Reed-Solomon";
    run.at_most(name, medians[1] / medians[0], 0.1);
    let name = "layers: highest moving average of latency, relative to the median of single losses";
    run.at_least(name, highest[1] / medians[1], 3.0);
    Ok(())
}

/// Returns the number of each recovered packet up to `last`, and the moving average of latency.
fn moving_average(outcome: &Outcome, last: u64) -> Vec<(f64, f64)> {
    let early = outcome.lost.iter().take_while(|lost| lost.seq <= last);
    let recovered: Vec<(f64, f64)> = early
        .filter_map(|lost| Some((lost.seq as f64, lost.recovery?.as_secs_f64() * 1e3)))
        .collect();
    let average =
        |window: &[(f64, f64)]| (window[AVERAGED - 1].0, mean_of(window, |(_, latency)| *latency));
    recovered.windows(AVERAGED).map(average).collect()
}

fn median_of_singles(outcome: &Outcome) -> f64 {
    let singles = outcome.lost.iter().filter(|lost| lost.burst == 1);
    let latencies = singles.filter_map(|lost| Some(lost.recovery?.as_secs_f64() * 1e3));
    median(&latencies.collect::<Vec<_>>())
}
