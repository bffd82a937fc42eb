//! Figure 9b: throughput of TCP by the link's delay.

use super::throughput_loss::OF_PLAIN;
use super::{link, percent};
use crate::experiment::{About, Plot, Run};
use crate::gateways::GatewaySpec;
use crate::topology::programs::Iperf;
use crate::world::World;

/// Congestion control of every flow.
const CONGESTION: &str = "cubic";

/// Loss rates of the link; zero gives the upper bound.
const LOSSES: [f64; 3] = [0.0, 1e-3, 1e-2];

pub(in crate::experiments) const ABOUT: About = About {
    name: "maelstrom/throughput-delay",
    title: "Throughput of one TCP flow against the link's delay",
    figure: "Maelstrom, Figure 9 (right)",
    finding: "TCP's throughput falls with the delay at any loss; Maelstrom's hardly does, up to \
              100 ms one way.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> anyhow::Result<()> {
    let delays: &[u32] = run.choose(&[10, 25, 50, 75, 100, 150], &[25, 50]);
    let (seconds, warm_up) = run.choose((10, 5), (5, 4));
    run.param("link", "100 Mb/s, queue 100 ms");
    run.param("code", "(8,3) I=(1,20,40)");
    run.param("host_mtu", 1200);
    run.param("wan_mtu", 1500);
    run.param("seconds", seconds);
    run.param("warm_up", warm_up);
    run.congestion_control(CONGESTION);
    run.steps(2 * LOSSES.len() * delays.len());
    let flow = Iperf::tcp(CONGESTION, seconds, warm_up);
    let mut kept = Vec::new();
    for &delay in delays {
        let mut rates = [[0.0; 2]; LOSSES.len()];
        for (rates, loss) in rates.iter_mut().zip(LOSSES) {
            *rates = measure(run, &flow, delay, loss)?;
        }
        let [lossless, _, lossy] = rates;
        let of_plain_lossless = lossy[1] / lossless[0];
        let axes = (("one-way delay", "ms"), ("share", "%"));
        let shares = Plot::line("Share of plain without loss", axes.0, axes.1);
        let series = run.series(&shares, "with gateways, loss 1 %");
        run.point(series, delay.into(), 100.0 * of_plain_lossless);
        kept.push((delay, lossy[1] / lossless[1], lossy[1] / lossy[0], of_plain_lossless));
    }
    for (delay, of_lossless, of_plain, of_plain_lossless) in kept {
        if delay <= 100 {
            let name = format!("{delay} ms, 1 %: protected over plain without loss");
            run.at_least(&name, of_plain_lossless, OF_PLAIN);
            let name = format!("{delay} ms, 1 %: protected over protected without loss");
            run.at_least(&name, of_lossless, 0.9);
        }
        if delay >= 50 {
            run.at_least(&format!("{delay} ms, 1 %: protected over plain"), of_plain, 10.0);
        }
    }
    Ok(())
}

/// Measures the Mb/s of a flow without and with gateways.
fn measure(run: &mut Run, flow: &Iperf, delay: u32, loss: f64) -> anyhow::Result<[f64; 2]> {
    let axes = (("one-way delay", "ms"), ("throughput", "Mb/s"));
    let plot = Plot::line("Throughput of one flow", axes.0, axes.1);
    let config = format!("rate=100M,delay={delay}ms,queue=100ms,loss={loss}");
    let mut world = World::new((1200, 1500), &link(&config), run.seed(), run.journal())?;
    let mut rates = [0.0; 2];
    for (rate, who) in rates.iter_mut().zip(["plain kernel", "with gateways"]) {
        run.step(&format!("{delay} ms, loss {}, {who}", percent(loss)))?;
        if who == "with gateways" {
            world.protect(&GatewaySpec::layered(8, &[1, 20, 40], false).host_mtu(1200))?;
        }
        *rate = flow.run(world.a1(), world.b1())?.received / 1e6;
        let series = run.series(&plot, &format!("{who}, loss {}", percent(loss)));
        run.point(series, delay.into(), *rate);
    }
    Ok(rates)
}
