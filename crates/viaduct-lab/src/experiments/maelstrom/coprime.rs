//! Figure 13: relatively prime interleaves against others.

use crate::experiment::{About, Bound, Experiment, Plot, Run};
use crate::experiments::maelstrom::percent;
use crate::experiments::maelstrom::simulated::{Share, layers, paper_flow, recovered, simulate};

/// The experiment.
pub(in crate::experiments) struct Coprime;

/// The paper does not say how long its bursts were here.
const BURST: u32 = 10;

impl Experiment for Coprime {
    fn about(&self) -> About {
        About {
            name: "maelstrom/coprime",
            title: "Relatively prime interleaves recover more",
            figure: "Maelstrom, Figure 13",
            finding: "If the interleaves are relatively prime, performance improves \
                      substantially when loss rates are high and losses are bursty.",
        }
    }

    fn run(&self, run: &mut Run) -> anyhow::Result<()> {
        let all = &[0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1];
        let losses: &[f64] = run.choose(all, &[0.001, 0.01, 0.1]);
        let bursts = run.choose(20_000, 1_500);
        run.param("burst", BURST);
        run.param("simulated", true);
        run.param("one_way_ms", 50);
        run.steps(losses.len());
        let plot = Plot::line("Recovered packets", ("loss", "%"), ("recovered", "%")).log_x();
        let plain = run.series(&plot, "(8,3) I=(1,10,20)");
        let coprime = run.series(&plot, "(8,3) I=(1,11,19)");
        let mut pairs = Vec::new();
        for &loss in losses {
            run.step(&format!("loss {}", percent(loss)))?;
            let packets = (f64::from(bursts * BURST) / loss / 1.375) as u64;
            let stream = paper_flow(&format!("{loss}x{BURST}"), packets, run.seed());
            let pair = [[1, 10, 20], [1, 11, 19]].map(|i| simulate(&stream, &layers(8, &i)));
            let [a, b] = pair.map(|outcome| outcome.map(|outcome| recovered(&outcome)));
            let (a, b) = (a?, b?);
            run.point(plain, loss * 100.0, a.value * 100.0);
            run.point(coprime, loss * 100.0, b.value * 100.0);
            pairs.push((a, b));
        }
        checks(run, &pairs);
        Ok(())
    }
}

fn checks(run: &mut Run, pairs: &[(Share, Share)]) {
    let gain = |(a, b): &(Share, Share)| b.value - a.value;
    let doubt = |(a, b): &(Share, Share)| a.margin().hypot(b.margin());
    let least = pairs.iter().map(|pair| gain(pair) + doubt(pair)).fold(f64::INFINITY, f64::min);
    let name = "coprime is nowhere worse: least gain with its margin, percentage points";
    run.check(name, least * 100.0, Bound::AtLeast(0.0));
    if let Some(last) = pairs.last() {
        let name = "coprime at 10 % loss: gain, percentage points";
        run.check(name, gain(last) * 100.0, Bound::AtLeast(1.0));
    }
}
