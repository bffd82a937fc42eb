//! Figure 10: throughput of eight TCP flows on a gigabit link by loss and by delay. Hosts and
//! WAN have the same MTU, so a repair that does not fit into one datagram is sent in two.

use super::throughput_loss::OF_PLAIN;
use super::{percent, without_and_with};
use crate::experiments::prelude::*;

/// Delay of the link in ms, one way, while the loss varies.
const DELAY: u32 = 50;

pub(in crate::experiments) const ABOUT: About = About {
    name: "maelstrom/throughput-gigabit",
    title: "Throughput of eight TCP flows on a gigabit link against loss and delay",
    figure: "Maelstrom, Figure 10",
    finding: "The curves have almost the same shape as those of one flow on 100 Mb/s: plain TCP \
              collapses, and Maelstrom masks the loss, here at hundreds of megabits a second.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let losses: &[f64] = run.choose(&[0.0, 1e-4, 1e-3, 0.01, 0.02], &[0.0, 0.01]);
    let delays: &[u32] = run.choose(&[10, 25, 75, 100], &[]);
    // The paper's flows last 120 s; after slow start the throughput does not change.
    let (seconds, warm_up) = run.choose((20, 10), (6, 6));
    run.param("link", "1 Gb/s, 50 ms one way where the loss varies, queue 50 ms");
    run.param("code", "(8,3) I=(1,20,40)");
    run.param("mtu", 1500);
    run.param("flows", 8);
    run.param("seconds", seconds);
    run.param("seconds_in_the_paper", 120);
    run.param("warm_up", warm_up);
    run.congestion_control("cubic");
    run.steps(2 * (losses.len() + 2 * delays.len()));
    let plot = Plot::line("Eight flows together", ("loss", "%"), ("throughput", "Mb/s"));
    let flows = Iperf { flows: 8, ..Iperf::tcp("cubic", seconds, warm_up) };
    let mut results = Vec::new();
    for &loss in losses {
        let (without, with) = measure(run, &flows, DELAY, loss)?;
        results.push((loss, without, with));
        for (name, rate) in [
            ("plain kernel", without),
            ("with gateways, (8,3) I=(1,20,40)", with),
            ("plain kernel, no loss: the upper bound", results[0].1),
        ] {
            run.plot_point(&plot, name, (loss * 100.0, rate));
        }
    }
    checks(run, &results);
    by_delay(run, &flows, delays, &results)
}

/// Measures the throughput of the flows in Mb/s without and with gateways.
fn measure(run: &mut Run, flows: &Iperf, delay: u32, loss: f64) -> Result<(f64, f64)> {
    let config = format!("rate=1G,delay={delay}ms,queue=50ms,loss={loss}");
    let mut world = World::new((1500, 1500), &link(&config), run.seed(), run.journal())?;
    let what = format!("{delay} ms, loss {}", percent(loss));
    let code = GatewaySpec::layered(8, &[1, 20, 40], false);
    let rates = without_and_with(run, &mut world, flows, &code, &what)?;
    run.param(&format!("gateways_at_{what}"), gateway_summary(&world)?);
    Ok(rates)
}

/// Measures, draws and checks the right-hand graph of Figure 10: throughput by delay, without loss
/// and at 1 %.
fn by_delay(run: &mut Run, flows: &Iperf, delays: &[u32], at_50: &[(f64, f64, f64)]) -> Result<()> {
    let plot = Plot::line("Against delay", ("one-way delay", "ms"), ("throughput", "Mb/s"));
    let losses = [0.0, 0.01];
    let known = |loss: f64| at_50.iter().find(|one| one.0 == loss).map(|one| (one.1, one.2));
    let mut rows = vec![(DELAY, losses.map(known))];
    for &delay in delays {
        let mut row = [None; 2];
        for (found, loss) in row.iter_mut().zip(losses) {
            *found = Some(measure(run, flows, delay, loss)?);
        }
        rows.push((delay, row));
    }
    rows.sort_by_key(|(delay, _)| *delay);
    for (delay, row) in rows {
        let [Some(lossless), Some(lossy)] = row else { continue };
        for (loss, (without, with)) in losses.into_iter().zip([lossless, lossy]) {
            for (who, rate) in [("plain kernel", without), ("with gateways", with)] {
                let name = format!("{who}, loss {}", percent(loss));
                run.plot_point(&plot, &name, (delay.into(), rate));
            }
        }
        if delay != DELAY {
            let name = format!("{delay} ms, 1 %: protected, relative to protected without loss");
            run.at_least(&name, lossy.1 / lossless.1, 0.9);
            let name = format!("{delay} ms, 1 %: protected, relative to plain without loss");
            run.at_least(&name, lossy.1 / lossless.0, OF_PLAIN);
        }
    }
    Ok(())
}

/// Formats the gateways' counters: packets protected by A; losses recovered by B, with their mean
/// latency; outgoing packets that A's tap missed; incoming packets that B's tap missed.
fn gateway_summary(world: &World) -> Result<String> {
    let gateways = world.running()?;
    let (a, b) = (gateways.a.status()?, gateways.b.status()?);
    let (sender, link) = (a.peer().sender, b.peer().receiver.link);
    let latency = b.peer().receiver.latency_sum / b.peer().receiver.recovered.max(1);
    Ok(format!(
        "{} of {} packets protected, {} of {} lost ones recovered after {latency} us on average, \
         A's tap missed {} outgoing packets, B's tap {} incoming ones",
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
    let (Some(&(_, plain_lossless, lossless)), Some(&(_, without, with))) = (at(0.0), at(0.01))
    else {
        return;
    };
    let of_plain_lossless = with / plain_lossless;
    let name = |what: &str| format!("{DELAY} ms, 1 %: protected, {what}");
    run.at_least(&name("relative to plain without loss"), of_plain_lossless, OF_PLAIN);
    run.at_least(&name("relative to protected without loss"), with / lossless, 0.9);
    run.at_least(&name("relative to plain"), with / without, 10.0);
    run.at_least(&name("Mb/s"), with, 200.0);
}
