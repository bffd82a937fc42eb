//! Figure 11a: message latency by the link's loss rate.

use super::percent;
use super::stream::{Scene, StreamResult};
use crate::experiments::prelude::*;

/// Delay of the link in ms, one way.
const DELAY: f64 = 50.0;

pub(in crate::experiments) const ABOUT: About = About {
    name: "maelstrom/latency-loss",
    title: "Delivery latency of messages against loss",
    figure: "Maelstrom, Figure 11 (left)",
    finding: "TCP's mean delivery latency climbs with loss, since each lost packet holds up those \
              behind it; Maelstrom's stays at the one-way latency of the link.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let losses: &[f64] = run.choose(&[0.0, 1e-4, 1e-3, 5e-3, 0.01], &[0.0, 0.01]);
    let scene = Scene { streams: 8, duration: Duration::from_secs(run.choose(60, 8)) };
    scene.describe(run);
    run.param("one_way_ms", DELAY);
    run.steps(2 * losses.len());
    let plots = [
        Plot::line("Mean delivery latency", ("loss", "%"), ("latency", "ms")),
        Plot::line("99th percentile of the delivery latency", ("loss", "%"), ("latency", "ms")),
        Plot::line("Concurrent TCP flow", ("loss", "%"), ("throughput", "Mb/s")),
    ];
    let mut results = Vec::new();
    for &loss in losses {
        let mut world = Scene::world(run, DELAY as u32, loss)?;
        let what = format!("loss {}, ", percent(loss));
        let (plain, protected) = scene.play_both(run, &mut world, &what)?;
        for (name, result) in [("plain kernel", &plain), ("with gateways", &protected)] {
            let values = [result.mean(), result.p99(), result.concurrent];
            for (plot, value) in plots.iter().zip(values) {
                run.plot_point(plot, name, (loss * 100.0, value));
            }
        }
        results.push((loss, plain, protected));
    }
    checks(run, &results);
    Ok(())
}

fn checks(run: &mut Run, results: &[(f64, StreamResult, StreamResult)]) {
    let worst = results.iter().map(|(_, _, protected)| protected.mean()).fold(0.0, f64::max);
    run.at_most("protected, up to 1 %: mean latency above one-way delay, ms", worst - DELAY, 5.0);
    let Some((_, plain, protected)) = results.last() else { return };
    let late = protected.p99() - DELAY;
    run.at_most("protected p99 at 1 %, above one-way delay, ms", late, 15.0);
    let late = plain.p99() - DELAY;
    run.at_least("plain p99 at 1 %, above one-way delay, ms", late, 2.0 * DELAY);
}
