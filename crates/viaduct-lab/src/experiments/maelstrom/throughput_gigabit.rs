//! Figure 10a: throughput of eight TCP flows on a gigabit link, where hosts and WAN have the same
//! MTU, so that the gateways lower the route's and clamp the MSS.

use anyhow::{Context, Result};

use super::{link, percent};
use crate::experiment::{About, Bound, Experiment, Plot, Run};
use crate::gateways::GatewaySpec;
use crate::topology::programs::Iperf;
use crate::world::World;

/// The experiment.
pub(in crate::experiments) struct ThroughputGigabit;

/// Congestion control of every flow.
const CONGESTION: &str = "cubic";

impl Experiment for ThroughputGigabit {
    fn about(&self) -> About {
        About {
            name: "maelstrom/throughput-gigabit",
            title: "Throughput of eight TCP flows on a gigabit link against loss",
            figure: "Maelstrom, Figure 10 (left)",
            finding: "The curves are almost those of one flow on 100 Mb/s: plain TCP collapses, \
                      Maelstrom masks the loss at hundreds of megabits a second.",
        }
    }

    fn run(&self, run: &mut Run) -> Result<()> {
        let losses: &[f64] = run.choose(&[0.0, 1e-4, 1e-3, 0.01, 0.02], &[0.0, 0.01]);
        // The paper's flows last 120 s; once past slow start the rest is more of the same.
        let (seconds, warm_up) = run.choose((40, 10), (6, 6));
        run.param("link", "1 Gb/s, 50 ms one way, queue 50 ms");
        run.param("code", "(8,3) I=(1,20,40)");
        run.param("mtu", 1500);
        run.param("flows", 8);
        run.param("seconds", seconds);
        run.param("seconds_in_the_paper", 120);
        run.param("warm_up", warm_up);
        run.congestion_control(CONGESTION);
        run.steps(2 * losses.len());
        let plot = Plot::line("Eight flows together", ("loss", "%"), ("throughput", "Mb/s"));
        let plain = run.series(&plot, "plain kernel");
        let protected = run.series(&plot, "with gateways, (8,3) I=(1,20,40)");
        let flows = Iperf { flows: 8, ..Iperf::tcp(CONGESTION, seconds, warm_up) };
        let mut results = Vec::new();
        for &loss in losses {
            let config = format!("rate=1G,delay=50ms,queue=50ms,loss={loss}");
            let mut world = World::new((1500, 1500), &link(&config), run.seed(), run.journal())?;
            run.step(&format!("loss {}, plain", percent(loss)))?;
            let without = flows.run(world.a1(), world.b1())?.received / 1e6;
            world.protect(&GatewaySpec::layered(8, &[1, 20, 40], false))?;
            run.step(&format!("loss {}, with gateways", percent(loss)))?;
            let with = flows.run(world.a1(), world.b1())?.received / 1e6;
            run.param(&format!("gateways_at_{}", percent(loss)), what_gateways_did(&mut world)?);
            run.point(plain, loss * 100.0, without);
            run.point(protected, loss * 100.0, with);
            results.push((loss, without, with));
        }
        checks(run, &results);
        Ok(())
    }
}

/// Where the loss that is left comes from: shed by a gateway, or beyond the code.
fn what_gateways_did(world: &mut World) -> Result<String> {
    let gateways = world.gateways().context("gateways run")?;
    let (a, b) = (gateways.a.status()?, gateways.b.status()?);
    let (sender, link) = (a.peer().sender, b.peer().receiver.link);
    let latency = b.peer().receiver.latency_sum / b.peer().receiver.recovered.max(1);
    Ok(format!(
        "{} of {} packets protected, {} of {} lost ones recovered after {latency} us on average, \
         {} and {} copies missed by the taps",
        sender.protected,
        sender.packets,
        link.recovered,
        link.lost,
        a.shell().tap_drops_out,
        b.shell().tap_drops_in,
    ))
}

fn checks(run: &mut Run, results: &[(f64, f64, f64)]) {
    let at = |loss: f64| results.iter().find(|r| r.0 == loss);
    let (Some(&(_, _, lossless)), Some(&(_, without, with))) = (at(0.0), at(0.01)) else { return };
    run.check(
        "at 1 %: protected over protected without loss",
        with / lossless,
        Bound::AtLeast(0.9),
    );
    run.check("at 1 %: protected over plain", with / without, Bound::AtLeast(10.0));
    run.check("at 1 %: protected, Mb/s", with, Bound::AtLeast(200.0));
}
