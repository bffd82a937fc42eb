//! Real gateways with one and with two workers each, at a rate that two processors can forward.

use super::rounded;
use crate::experiments::prelude::*;
use crate::topology::cpu_time;

/// Total rate of all flows, in bits of payload per second.
const RATE: u64 = 1_600_000_000;
/// Number of flows. Each flow has its own pair of hosts, so that the flows are distributed over the
/// workers.
const FLOWS: usize = 8;
/// MTU of the hosts, and of a WAN that leaves room for repairs.
const MTU: (u32, u32) = (1500, 1700);
/// Maximum CPU time per byte with two workers, relative to one.
const COST: f64 = 1.05;
/// Minimum rate of delivered bytes with two workers, relative to one.
const DELIVERED: f64 = 0.98;
/// Minimum share of the packets that are protected.
const PROTECTED: f64 = 0.99;

/// Results with one number of workers.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    /// CPU-seconds of both gateways per GB.
    cost: f64,
    /// Bits per second.
    rate: f64,
    /// Share of the packets that were protected.
    protected: f64,
}

pub(super) fn steps(run: &Run) -> usize {
    2 * rounds(run)
}

fn rounds(run: &Run) -> usize {
    run.choose(6, 1)
}

pub(super) fn run(run: &mut Run) -> Result<()> {
    let seconds = run.choose(12, 5);
    run.param("real gateways", format!("{FLOWS} cubic flows, {} Gb/s together", RATE as f64 / 1e9));
    let mut found = [Vec::new(), Vec::new()];
    for round in 0..rounds(run) {
        for turn in 0..2 {
            let workers = (round + turn) % 2 + 1;
            run.step(&format!("workers = {workers}"))?;
            found[workers - 1].push(measure(run, workers, seconds)?);
        }
    }
    let [one, two] = &found;
    let ratio = |of: fn(&Found) -> f64| {
        let ratios: Vec<f64> = two.iter().zip(one).map(|(two, one)| of(two) / of(one)).collect();
        median(&ratios)
    };
    run.at_most(
        "two workers: CPU time per byte, relative to one worker",
        ratio(|of| of.cost),
        COST,
    );
    run.at_least(
        "two workers: bytes delivered, relative to one worker",
        ratio(|of| of.rate),
        DELIVERED,
    );
    for (name, found) in [("one worker", one), ("two workers", two)] {
        let protected = median_of(found, |of| of.protected);
        run.at_least(&format!("{name}: packets protected"), protected, PROTECTED);
        run.param(&format!("{name}: CPU-s a GB"), rounded(median_of(found, |of| of.cost)));
        run.param(&format!("{name}: Gb/s"), rounded(median_of(found, |of| of.rate) / 1e9));
    }
    Ok(())
}

fn measure(run: &Run, workers: usize, seconds: u32) -> Result<Found> {
    let (host_mtu, wan_mtu) = MTU;
    let spec = DumbbellSpec { hosts: FLOWS, host_mtu, wan_mtu, ..DumbbellSpec::default() };
    let mut world = World::build(&spec, run.journal())?;
    for gateway in [world.dumbbell.gateway_a(), world.dumbbell.gateway_b()] {
        gateway.set_offloads("wan0", false)?;
    }
    let site = format!("workers = {workers}\n");
    world.protect(&GatewaySpec { site, host_mtu: Some(host_mtu), ..GatewaySpec::default() })?;
    let gateways = world.running()?;
    let pids = [&gateways.a, &gateways.b]
        .map(|gateway| gateway.pid().map_or(0, |pid| pid.as_raw_nonzero().get().cast_unsigned()));
    let time = || pids.iter().map(|pid| cpu_time(*pid)).sum::<Duration>();
    let before = time();
    let pace = RATE / FLOWS as u64;
    let reports = parallel(0..FLOWS, |n| {
        let flow = Iperf::tcp("cubic", seconds, 0).paced(pace, 128 << 10);
        Ok(flow.run(&world.dumbbell.hosts_a()[n], &world.dumbbell.hosts_b()[n])?)
    })?;
    let rate: f64 = reports.iter().map(|report| report.received).sum();
    let cost = (time() - before).as_secs_f64() / (rate / 8.0 * f64::from(seconds)) * 1e9;
    // Counters are published a few times a second.
    thread::sleep(Duration::from_millis(300));
    let sender = world.sender()?;
    let protected = 1.0 - sender.unprotected as f64 / sender.packets.max(1) as f64;
    Ok(Found { cost, rate, protected })
}
