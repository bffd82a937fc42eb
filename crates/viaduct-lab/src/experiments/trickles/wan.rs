//! Figure 15: a file of 160 kB over long paths with losses, by round trips in bins of 50 ms.
//! The lab's paths replace PlanetLab's.

use super::download::By;
use super::replicas::{Replicas, SERVICE};
use super::served::{PORT, describe, get};
use crate::experiments::prelude::*;
use crate::load::{Fetches, Trickles};

const FILE: usize = 160_000;
/// Centers of the bins, in milliseconds.
const TRIPS: [u64; 6] = [25, 75, 125, 175, 225, 275];
const QUICK: [u64; 2] = [25, 125];
/// Losses of each direction in %: none, as on most paths; the loss of bad paths; and twice that.
const LOSSES: [f64; 3] = [0.0, 0.5, 1.0];
const QUICK_LOSSES: [f64; 1] = [0.5];
/// Concurrent clients; together they use only a part of the link.
const CLIENTS: usize = 10;
/// Measured time of a round, in round trips.
const LONG: u64 = 70;
const QUICK_LONG: u64 = 60;
/// Same number of rounds as the paper, whose error bars are 95 % confidence intervals.
const ROUNDS: usize = 6;
/// Minimum throughput relative to TCP's.
const MIN_SHARE: f64 = 0.9;

pub(in crate::experiments) const ABOUT: About = About {
    name: "trickles/wan",
    title: "160 kB over long paths",
    figure: "Trickles, Figure 15",
    finding: "Trickles achieves similar performance to TCP under comparable network conditions.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let trips: &[u64] = run.choose(&TRIPS, &QUICK);
    let losses: &[f64] = run.choose(&LOSSES, &QUICK_LOSSES);
    let rounds = run.choose(ROUNDS, 1);
    run.param("file_bytes", FILE);
    run.param("clients", CLIENTS);
    describe(run, rounds);
    run.steps(trips.len() * losses.len() * rounds);
    for &loss in losses {
        let plot = format!("Throughput at {loss} % loss");
        let plot = Plot::line(&plot, ("round trip", "ms"), ("throughput", "Mb/s"));
        let plot = plot.confidence();
        for &trip in trips {
            let mut ratios = Vec::new();
            for round in 0..rounds {
                run.step(&format!("{trip} ms, {loss} %, {round}"))?;
                let [ours, theirs] = measure(run, trip, loss, run.seed() + round as u64)?;
                for (by, bits) in [(By::Trickles, ours), (By::Tcp, theirs)] {
                    run.plot_point(&plot, by.name(), (trip as f64, bits / 1e6));
                }
                ratios.push(ours / theirs);
            }
            let name = format!("{trip} ms, {loss} % loss: throughput, relative to TCP");
            check_mean(run, &name, &ratios, Bound::AtLeast(MIN_SHARE));
        }
    }
    Ok(())
}

/// Measures the bits per second of a fetch, by Trickles and by TCP.
fn measure(run: &Run, trip: u64, loss: f64, seed: u64) -> Result<[f64; 2]> {
    let link = link(&format!("rate=100M,delay={}us,queue=1MB,loss={loss}%", trip * 500));
    let world = Replicas::build(1, Wan::emulated(link, seed), run.journal())?;
    world.file("file", FILE, seed)?;
    let server = world.serve(0, &[])?;
    let to = SocketAddr::new(SERVICE.into(), PORT);
    let window = Duration::from_millis(trip * run.choose(LONG, QUICK_LONG));
    let fetches = Fetches {
        request: &get("file"),
        clients: CLIENTS,
        warm_up: Duration::from_millis(trip * 10),
        window,
    };
    let mut clients = Trickles::open(&world.net, to, seed)?;
    let found = [fetches.by_trickles(&mut clients)?, fetches.by_tcp(world.net.a1(), to)?];
    drop(server);
    ensure!(found.iter().all(|one| one.failed == 0), "a fetch failed");
    // Throughput per client, pauses between fetches included.
    Ok(found.map(|one| one.mbps() * 1e6 / CLIENTS as f64))
}
