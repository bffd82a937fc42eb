//! Figure 11b: message latency by the link's delay.

use super::stream::Scene;
use crate::experiments::prelude::*;

const LOSS: f64 = 1e-3;

pub(in crate::experiments) const ABOUT: About = About {
    name: "maelstrom/latency-delay",
    title: "Delivery latency of messages against the link's delay",
    figure: "Maelstrom, Figure 11 (right)",
    finding: "Maelstrom's delivery latency is almost exactly the one-way latency of the link; \
              TCP's grows faster.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let delays: &[u32] = run.choose(&[10, 25, 50, 75, 100, 150], &[10, 50]);
    let scene = Scene { streams: 8, duration: Duration::from_secs(run.choose(60, 10)) };
    scene.describe(run);
    run.param("loss_percent", LOSS * 100.0);
    run.steps(2 * delays.len());
    let plot = Plot::line("Mean delivery latency", ("one-way delay", "ms"), ("latency", "ms"));
    let mut worst = 0f64;
    for &delay in delays {
        let x = f64::from(delay);
        let mut world = Scene::world(run, delay, LOSS)?;
        let (plain, protected) = scene.play_both(run, &mut world, &format!("{delay} ms, "))?;
        let mean = protected.mean();
        run.plot_point(&plot, "plain kernel", (x, plain.mean()));
        run.plot_point(&plot, "with gateways, (7,2) I=(1,10)", (x, mean));
        run.plot_point(&plot, "the delay itself", (x, x));
        worst = worst.max(mean - x);
    }
    run.at_most("protected mean above one-way delay, worst, ms", worst, 5.0);
    Ok(())
}
