//! Gateway of a hub with up to 4,096 peers: cost of a packet, and cost of peers without traffic.

mod gateway;
mod hub;
mod traffic;

use hub::{BATCH, LEN, Recording, Replay, STEP};
use traffic::Pattern;

use crate::experiments::prelude::*;

/// Numbers of peers.
const PEERS: [usize; 4] = [1, 64, 1_024, 4_096];
/// Batches per slice. The hubs alternate slice by slice.
const SLICE: usize = 20;
/// Maximum cost of a packet, relative to that of a hub with one peer.
const COST: f64 = 1.1;

pub(in crate::experiments) const ABOUT: About = About {
    name: "scale/peers",
    title: "A gateway with 4,096 peers, compared with a single peer",
    figure: "beyond Maelstrom: hubs of many sites",
    finding: "The cost of a packet should not depend on the number of peers.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let peers: &[usize] = run.choose(&PEERS, &[1, 4_096]);
    let slices = run.choose(40, 12);
    run.param("packets", format!("{LEN} bytes, code auto, no loss"));
    run.param("packets_a_second", BATCH as f64 / STEP.as_secs_f64());
    run.param("slices", slices);
    run.steps(peers.len() + Pattern::ALL.len() + gateway::steps(run));
    let mut recordings = Vec::new();
    for &many in peers {
        run.step(&format!("{many} peers, recorded"))?;
        recordings.push(Recording::new(many, slices * SLICE, run.seed())?);
    }
    let mut hubs = recordings.iter().map(Replay::new).collect::<Result<Vec<_>>>()?;
    for (at, pattern) in Pattern::ALL.into_iter().enumerate() {
        run.step(&format!("packets: {}", pattern.name()))?;
        let times = replay(&recordings, &mut hubs, at, slices);
        report(run, peers, pattern, &times);
    }
    for (hub, recording) in hubs.iter().zip(&recordings) {
        hub.check(recording)?;
    }
    let memory = hubs.iter().map(Replay::memory).max().unwrap_or_default();
    run.param("MB of packets, at most", rounded(memory as f64 / 1e6));
    drop((hubs, recordings));
    gateway::run(run)
}

/// Replays a pattern in slices, each to all hubs. Returns the seconds of each hub's slices, except
/// for the first quarter.
fn replay(
    recordings: &[Recording],
    hubs: &mut [Replay],
    pattern: usize,
    slices: usize,
) -> Vec<Vec<f64>> {
    let mut times = vec![Vec::new(); hubs.len()];
    for slice in 0..slices {
        // Each slice begins with another hub.
        for turn in 0..hubs.len() {
            let at = (slice + turn) % hubs.len();
            let batches = &recordings[at].patterns[pattern][slice * SLICE..][..SLICE];
            let time: Duration = batches.iter().map(|batch| hubs[at].run(batch)).sum();
            if slice >= slices / 4 {
                times[at].push(time.as_secs_f64());
            }
        }
    }
    times
}

fn report(run: &mut Run, peers: &[usize], pattern: Pattern, times: &[Vec<f64>]) {
    if pattern == Pattern::Idle {
        let plot = Plot::histogram("Idle sessions", ("peers", ""), ("CPU", "ms a second"));
        for (x, (many, times)) in peers.iter().zip(times).enumerate() {
            let share = mean(times) / (SLICE as f64 * STEP.as_secs_f64());
            run.plot_bar(&plot, "without traffic", (x, &many.to_string()), 1e3 * share);
            run.param(&format!("{many} idle peers, CPU-ms a second"), rounded(1e3 * share));
        }
        return;
    }
    let plot = Plot::histogram("Cost of a packet", ("peers", ""), ("CPU", "ns"));
    for (x, (many, own)) in peers.iter().zip(times).enumerate() {
        let cost = 1e9 * median(own) / (SLICE * BATCH) as f64;
        run.plot_bar(&plot, pattern.name(), (x, &many.to_string()), cost);
        run.param(&format!("{many} peers, {}: ns a packet", pattern.name()), rounded(cost));
        if x > 0 {
            let ratios: Vec<f64> = own.iter().zip(&times[0]).map(|(own, one)| own / one).collect();
            let name =
                format!("{many} peers, {}: cost per packet, relative to one peer", pattern.name());
            run.at_most(&name, median(&ratios), COST);
        }
    }
}

fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}
