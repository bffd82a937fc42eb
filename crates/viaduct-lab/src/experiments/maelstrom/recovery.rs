//! Section 4.4: recovery rates of the codes, compared with the closed forms.

use viaduct_proto::fec::analysis::{layered_burst, layered_independent, reed_solomon};
use viaduct_proto::fec::{Code, layered};
use viaduct_proto::sim::stream::Stream;

use crate::experiments::maelstrom::simulated::{
    blocks, delayed, layers, paper_flow, recovered, simulate,
};
use crate::experiments::prelude::*;

/// Layered codes of the grid: r and the interleaves.
const LAYERED: [(u8, &[u16]); 4] =
    [(4, &[1, 7]), (7, &[1, 10]), (8, &[1, 19, 41]), (10, &[1, 61, 127])];

/// Reed-Solomon codes of the grid: r, c and the interleave.
const BLOCKS: [(u8, u8, u16); 4] = [(7, 2, 1), (8, 3, 1), (10, 3, 5), (100, 40, 1)];

/// Loss rate in bursts, as in the paper.
const BURSTY: f64 = 0.001;

/// Deviation in standard errors that is attributed to chance.
const CHANCE: f64 = 4.0;

pub(in crate::experiments) const ABOUT: About = About {
    name: "maelstrom/recovery",
    title: "Recovery rates of the codes, compared with the closed forms",
    figure: "Maelstrom, section 4.4",
    finding: "A lost packet is recovered with probability of at least 1 - (1 - (1-p)^r)^c under \
              independent loss and 1 - x^c' in bursts; Reed-Solomon's follows from the binomial \
              distribution.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let all = &[0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3];
    let losses: &[f64] = run.choose(all, &[0.005, 0.05, 0.2]);
    let lengths: &[u64] = run.choose(&[1, 2, 5, 10, 15, 19, 25, 30, 41, 50, 60], &[1, 15, 30, 60]);
    let packets = run.choose(2_000_000, 120_000);
    run.param("simulated", true);
    run.param("packets", packets);
    run.param("bursts_loss", BURSTY);
    run.steps(LAYERED.len() + BLOCKS.len() + 2);
    for (r, interleaves) in LAYERED {
        let form = |p| layered_independent(r, interleaves.len(), p);
        let worst = independent(run, &layers(r, interleaves), losses, packets, &form)?;
        let name = format!(
            "({r},{}): recovered minus the paper's lower bound, lowest, in standard errors",
            interleaves.len()
        );
        run.at_least(&name, worst.0, -CHANCE);
    }
    for (r, c, interleave) in BLOCKS {
        let code = blocks(r, c, interleave);
        let worst = independent(run, &code, losses, packets, &|p| reed_solomon(r, c, p))?;
        let name = format!("{code}: recovered minus the closed form, lowest, in standard errors");
        run.within(&name, worst.0, -CHANCE, CHANCE);
        let name = format!("{code}: recovered minus the closed form, highest, in standard errors");
        run.within(&name, worst.1, -CHANCE, CHANCE);
    }
    for (r, interleaves) in [LAYERED[2], LAYERED[3]] {
        in_bursts(run, r, interleaves, lengths, run.choose(400, 40))?;
    }
    Ok(())
}

/// Returns the lowest and the highest deviation from `form`, in standard errors, over all `losses`.
fn independent(
    run: &mut Run,
    code: &Code,
    losses: &[f64],
    packets: u64,
    form: &dyn Fn(f64) -> f64,
) -> Result<(f64, f64)> {
    let title = match code {
        Code::Layered(_) => "Layers under independent loss",
        _ => "Reed-Solomon under independent loss",
    };
    let plot = Plot::line(title, ("loss", "%"), ("recovered", "%")).log_x();
    run.step(&format!("{code}, independent loss"))?;
    let mut worst = (f64::INFINITY, f64::NEG_INFINITY);
    for &loss in losses {
        // Low loss rates are compensated by more packets.
        let packets = (packets as f64 * (0.05 / loss).clamp(0.2, 3.0)) as u64;
        let stream = paper_flow(&loss.to_string(), packets, run.seed());
        let distance = deviation(run, &plot, code, loss * 100.0, &stream, form(loss))?;
        worst = (worst.0.min(distance), worst.1.max(distance));
    }
    Ok(worst)
}

/// Tests bursts of each length with delayed XORs, since the form assumes that no burst hits
/// both a repair and its packets.
fn in_bursts(
    run: &mut Run,
    r: u8,
    interleaves: &[u16],
    lengths: &[u64],
    bursts: u64,
) -> Result<()> {
    let code = delayed(r, interleaves);
    let plot = Plot::line("Layers in bursts", ("burst length", "packets"), ("recovered", "%"));
    let overhead = layered::Parameters::new(r, interleaves).overhead();
    run.step(&format!("{code}, bursts"))?;
    let mut worst = f64::INFINITY;
    for &length in lengths {
        let packets = (bursts * length) as f64 / BURSTY / (1.0 + overhead);
        let stream = paper_flow(&format!("{BURSTY}x{length}"), packets as u64, run.seed());
        let expected = layered_burst(r, interleaves, length, BURSTY);
        worst = worst.min(deviation(run, &plot, &code, length as f64, &stream, expected)?);
    }
    let name =
        format!("{code} in bursts: recovered minus the lower bound, lowest, in standard errors");
    run.at_least(&name, worst, -CHANCE);
    Ok(())
}

/// Simulates `stream`, and draws the recovered and the expected share at `x`; returns the
/// deviation in standard errors.
fn deviation(
    run: &mut Run,
    plot: &Plot,
    code: &Code,
    x: f64,
    stream: &Stream,
    expected: f64,
) -> Result<f64> {
    let share = recovered(&simulate(stream, code)?);
    run.plot_point(plot, &code.to_string(), (x, share.value * 100.0));
    run.plot_point(plot, &format!("{code}, closed form"), (x, expected * 100.0));
    let n = share.events as f64;
    // If every loss is recovered, the batches show no variation; the error then follows from the
    // closed form.
    let error = share.error.max((expected * (1.0 - expected) / n).sqrt()) + 1.0 / n;
    Ok((share.value - expected) / error)
}
