//! Figures 9a and 10a: throughput of TCP by the link's loss rate.

use super::{percent, without_and_with, world};
use crate::experiments::prelude::*;

/// Minimum throughput relative to plain TCP without loss: nine tenths of 0.70, the share that
/// (8,3) leaves for data. For 8 packets of 1200 bytes there are 3 repairs, each of a packet plus
/// 166 bytes.
pub(super) const OF_PLAIN: f64 = 0.63;

pub(in crate::experiments) const ABOUT: About = About {
    name: "maelstrom/throughput-loss",
    title: "Throughput of one TCP flow against loss",
    figure: "Maelstrom, Figures 9 and 10 (left)",
    finding: "TCP collapses with loss; Maelstrom masks up to 2 % without significant degradation, \
              two orders of magnitude above plain TCP at 1 %.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let losses: &[f64] = run.choose(&[0.0, 1e-4, 1e-3, 5e-3, 0.01, 0.02, 0.05, 0.1], &[0.0, 0.01]);
    let (seconds, warm_up) = run.choose((20, 10), (4, 3));
    run.param("link", "200 Mb/s, 50 ms one way, queue 100 ms");
    run.param("code", "(8,3) I=(1,20,40)");
    run.param("host_mtu", 1200);
    run.param("wan_mtu", 1500);
    run.param("seconds", seconds);
    run.param("warm_up", warm_up);
    run.congestion_control("cubic");
    run.steps(2 * losses.len());
    let (x, y) = (("loss", "%"), ("throughput", "Mb/s"));
    let throughput = Plot::line("Throughput of one flow", x, y).log_x();
    let shares = Plot::line("Share of plain without loss", x, ("share", "%")).log_x();
    let ours = "with gateways, (8,3) I=(1,20,40)";
    let code = GatewaySpec::layered(8, &[1, 20, 40], false).host_mtu(1200);
    let flow = Iperf::tcp("cubic", seconds, warm_up);
    let mut results = Vec::new();
    for &loss in losses {
        let mut world = world(run, &loss.to_string(), 0)?;
        let what = format!("loss {}", percent(loss));
        let (without, with) = without_and_with(run, &mut world, &flow, &code, &what)?;
        results.push((loss, without, with));
        // A logarithmic axis has no zero; zero loss is drawn at 0.001 %, a tenth of the smallest
        // loss.
        let x = if loss == 0.0 { 1e-3 } else { loss * 100.0 };
        // Loss rates are measured in ascending order from zero.
        let lossless = results[0].1;
        run.plot_point(&throughput, "plain kernel", (x, without));
        run.plot_point(&throughput, ours, (x, with));
        run.plot_point(&throughput, "plain kernel, no loss: the upper bound", (x, lossless));
        run.plot_point(&shares, ours, (x, 100.0 * with / lossless));
    }
    checks(run, &results);
    Ok(())
}

fn checks(run: &mut Run, results: &[(f64, f64, f64)]) {
    let at = |loss: f64| results.iter().find(|r| r.0 == loss);
    let Some(&(_, _, lossless)) = at(0.0) else { return };
    for loss in [0.01, 0.02] {
        let Some(&(_, without, with)) = at(loss) else { continue };
        let name = format!("at {}: protected, relative to protected without loss", percent(loss));
        run.at_least(&name, with / lossless, 0.9);
        let name = format!("at {}: protected, relative to plain without loss", percent(loss));
        run.at_least(&name, with / results[0].1, OF_PLAIN);
        if loss == 0.01 {
            run.at_least("at 1 %: protected, relative to plain", with / without, 50.0);
        }
    }
}
