//! A worker that panics, on a lossy link: losses of the packets in its lanes and in the others.

use super::rounded;
use crate::experiments::prelude::*;
use crate::load::{Pairs, lost_share};

/// Time after the gateway's start at which its worker 1 panics.
const PANIC: (&str, Duration) = ("1@6s", Duration::from_secs(6));
/// Maximum time for which losses in the dead worker's lanes are not recovered, in seconds.
const OUTAGE: f64 = 1.0;
/// Maximum share of lost packets: in the other lanes, and in the dead worker's lanes before and
/// after the outage.
const LOSS: f64 = 0.003;

pub(super) const STEPS: usize = 1;

pub(super) fn run(run: &mut Run) -> Result<()> {
    run.step("a worker panics")?;
    run.param("failure", "2,000 packets a second of 64 pairs, rate=100M,delay=10ms,loss=2%");
    let wan = link("rate=100M,delay=10ms,loss=2%");
    let mut world = World::new((1500, 1500), &wan, run.seed(), run.journal())?;
    let pairs = Pairs::new(&world)?;
    let spec = GatewaySpec { site: "workers = 2\n".to_owned(), ..GatewaySpec::default() };
    let gateways = world.protect(&spec)?;
    gateways.a.stop()?;
    gateways.a.set_variable("VIADUCT_PANIC_WORKER", PANIC.0);
    let begun = Instant::now();
    gateways.a.start()?;
    gateways.wait_until_up()?;
    // Time for the gateways to measure the losses of the link.
    pairs.stream(Duration::from_secs(3))?;
    let rest = PANIC.1.saturating_sub(begun.elapsed());
    let sent = pairs.stream(rest + Duration::from_secs(6))?;
    let status = world.running()?.a.status()?;
    ensure!(status.workers_dead == 1, "the worker has not panicked");
    ensure!(status.peers[0].lanes_down == 0, "lanes are down: {:?}", status.peers);
    let panicked = begun + PANIC.1;
    let own = || sent.iter().filter(|of| of.lane % 2 == 1);
    // Repairs of packets sent shortly before the panic are missing as well. The panic occurs later
    // than `panicked` by the time that the process takes to start.
    let near = |at: Instant| at + Duration::from_millis(300) > panicked && at < panicked + NEAR;
    let lost: Vec<_> = own().filter(|of| !of.has_arrived && near(of.at)).map(|of| of.at).collect();
    let runs = lost.chunk_by(|before, after| *after - *before < APART);
    let outage = runs.map(|run| (run[run.len() - 1] - run[0]).as_secs_f64()).fold(0.0, f64::max);
    run.at_most("dead worker's lanes: seconds without recoveries", outage, OUTAGE);
    let others = lost_share(sent.iter().filter(|of| of.lane % 2 == 0));
    run.at_most("the other lanes: share of packets lost", others, LOSS);
    let before_and_after = lost_share(own().filter(|of| !near(of.at)));
    run.at_most("dead worker's lanes, before and after: packets lost", before_and_after, LOSS);
    run.param("packets lost in the dead worker's lanes", lost.len());
    run.param("seconds without recoveries", rounded(outage));
    Ok(())
}

/// Minimum time between two losses of different outages: without repairs, 5 of the packets sent in
/// this time are lost on average.
const APART: Duration = Duration::from_millis(250);
/// Time after the panic in which losses are attributed to the panic.
const NEAR: Duration = Duration::from_millis(2_000);
