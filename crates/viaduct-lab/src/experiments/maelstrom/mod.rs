//! Maelstrom's figures: effect of FEC gateways on unmodified programs over a lossy link.

pub(super) mod adaptive;
pub(super) mod burst;
pub(super) mod classes;
pub(super) mod coprime;
pub(super) mod delivery_trace;
pub(super) mod equal_mtu;
pub(super) mod fair;
pub(super) mod fake_tcp;
pub(super) mod forwarding;
pub(super) mod interleaves;
pub(super) mod latency_delay;
pub(super) mod latency_loss;
pub(super) mod observe;
pub(super) mod onset;
pub(super) mod peers;
mod real_stream;
pub(super) mod recovery;
mod simulated;
pub(super) mod split;
mod stream;
pub(super) mod throughput_burst;
pub(super) mod throughput_delay;
pub(super) mod throughput_gigabit;
pub(super) mod throughput_loss;
pub(super) mod upgrade;
pub(super) mod vs_reed_solomon;

use crate::experiments::prelude::*;

/// Loss of a link: its name, its configuration, and whether a quick run includes it.
type Case = (&'static str, &'static str, bool);

fn cases(run: &Run, all: &[Case]) -> Vec<Case> {
    all.iter().filter(|(.., in_quick)| *in_quick || !run.quick()).copied().collect()
}

/// Records the settings of flows over [`world`].
fn describe(run: &mut Run, (seconds, warm_up): (u32, u32), rounds: usize) {
    run.param("link", "200 Mb/s, 50 ms one way, queue 100 ms");
    run.param("mtu", "hosts 1200, WAN 1500");
    run.param("seconds", seconds);
    run.param("warm_up", warm_up);
    run.param("rounds", rounds);
}

/// Builds the world of a round: a link of 200 Mb/s and 50 ms one way with this loss, and hosts
/// whose MTU leaves room for repairs.
fn world(run: &Run, loss: &str, round: usize) -> Result<World> {
    world_with(run, 1200, loss, round)
}

/// Builds the same world with hosts of another MTU.
fn world_with(run: &Run, host_mtu: u32, loss: &str, round: usize) -> Result<World> {
    let link = link(&format!("rate=200M,delay=50ms,queue=100ms,loss={loss}"));
    World::new((host_mtu, 1500), &link, run.seed() + round as u64, run.journal())
}

/// Measures the Mb/s of `iperf` without gateways, and with `gateways`; `what` begins the names of
/// the steps.
fn without_and_with(
    run: &mut Run,
    world: &mut World,
    iperf: &Iperf,
    gateways: &GatewaySpec,
    what: &str,
) -> Result<(f64, f64)> {
    run.step(&format!("{what}, plain"))?;
    let without = world.throughput(iperf)?;
    world.protect(gateways)?;
    run.step(&format!("{what}, with gateways"))?;
    Ok((without, world.throughput(iperf)?))
}

/// Measures once in each of the rounds; returns the median of each value.
fn medians<const N: usize>(
    rounds: usize,
    measure: impl FnMut(usize) -> Result<[f64; N]>,
) -> Result<[f64; N]> {
    let found = (0..rounds).map(measure).collect::<Result<Vec<_>>>()?;
    Ok(std::array::from_fn(|n| median_of(&found, |values| values[n])))
}

/// Returns the bytes of repairs and names per data byte between two readings.
fn overhead(before: &SenderStats, after: &SenderStats) -> f64 {
    let repairs = after.repair_bytes - before.repair_bytes;
    repairs as f64 / (after.bytes - before.bytes).max(1) as f64
}

/// Formats a share for display, as in `0.1 %`.
fn percent(share: f64) -> String {
    format!("{} %", (share * 1e6).round() / 1e4)
}
