//! Figure 9b: throughput of TCP by the link's delay.

use super::throughput_loss::OF_PLAIN;
use super::{percent, without_and_with};
use crate::experiments::prelude::*;

pub(in crate::experiments) const ABOUT: About = About {
    name: "maelstrom/throughput-delay",
    title: "Throughput of one TCP flow against the link's delay",
    figure: "Maelstrom, Figure 9 (right)",
    finding: "TCP's throughput falls with the delay at any loss; Maelstrom's hardly does, up to \
              100 ms one way.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let delays: &[u32] = run.choose(&[10, 25, 50, 75, 100, 150], &[25, 50]);
    let (seconds, warm_up) = run.choose((10, 5), (5, 4));
    run.param("link", "100 Mb/s, queue 100 ms");
    run.param("code", "(8,3) I=(1,20,40)");
    run.param("host_mtu", 1200);
    run.param("wan_mtu", 1500);
    run.param("seconds", seconds);
    run.param("warm_up", warm_up);
    run.congestion_control("cubic");
    run.steps(2 * 3 * delays.len());
    let flow = Iperf::tcp("cubic", seconds, warm_up);
    let mut kept = Vec::new();
    for &delay in delays {
        let mut measure = |loss| measure(run, &flow, delay, loss);
        let (lossless, _, lossy) = (measure(0.0)?, measure(1e-3)?, measure(0.01)?);
        let of_plain_lossless = lossy.1 / lossless.0;
        let shares =
            Plot::line("Share of plain without loss", ("one-way delay", "ms"), ("share", "%"));
        let at = (delay.into(), 100.0 * of_plain_lossless);
        run.plot_point(&shares, "with gateways, loss 1 %", at);
        kept.push((delay, lossy.1 / lossless.1, lossy.1 / lossy.0, of_plain_lossless));
    }
    for (delay, of_lossless, of_plain, of_plain_lossless) in kept {
        if delay <= 100 {
            let name = format!("{delay} ms, 1 %: protected, relative to plain without loss");
            run.at_least(&name, of_plain_lossless, OF_PLAIN);
            let name = format!("{delay} ms, 1 %: protected, relative to protected without loss");
            run.at_least(&name, of_lossless, 0.9);
        }
        if delay >= 50 {
            run.at_least(&format!("{delay} ms, 1 %: protected, relative to plain"), of_plain, 10.0);
        }
    }
    Ok(())
}

/// Measures the Mb/s of a flow without and with gateways.
fn measure(run: &mut Run, flow: &Iperf, delay: u32, loss: f64) -> Result<(f64, f64)> {
    let axes = (("one-way delay", "ms"), ("throughput", "Mb/s"));
    let plot = Plot::line("Throughput of one flow", axes.0, axes.1);
    let config = format!("rate=100M,delay={delay}ms,queue=100ms,loss={loss}");
    let mut world = World::new((1200, 1500), &link(&config), run.seed(), run.journal())?;
    let code = GatewaySpec::layered(8, &[1, 20, 40], false).host_mtu(1200);
    let loss = format!("loss {}", percent(loss));
    let what = format!("{delay} ms, {loss}");
    let rates = without_and_with(run, &mut world, flow, &code, &what)?;
    run.plot_point(&plot, &format!("plain kernel, {loss}"), (delay.into(), rates.0));
    run.plot_point(&plot, &format!("with gateways, {loss}"), (delay.into(), rates.1));
    Ok(rates)
}
