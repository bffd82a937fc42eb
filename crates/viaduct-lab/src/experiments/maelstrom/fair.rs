//! Effect of protected flows on other flows, and on a saturated link.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use viaduct_proto::repair::stats::PeerStats;

use super::super::statistics::median;
use super::link;
use crate::emulator::Direction;
use crate::experiment::{About, Bound, Plot, Run};
use crate::gateways::GatewaySpec;
use crate::stop;
use crate::topology::programs::Iperf;
use crate::world::World;

/// Bounds relative to two plain flows: the rate of each flow when one is protected, and their
/// sum.
const SHARE: Bound = Bound::Within(0.8, 1.25);
const SUM: f64 = 0.98;
/// Minimum of Jain's index over eight protected flows.
const JAIN: f64 = 0.95;
/// With a load above the link's rate: maximum repair bytes per byte, and maximum lost packets
/// relative to plain.
const OVERLOAD: f64 = 0.005;
const LOST: f64 = 1.02;
/// Minimum share of losses that are classified correctly: drops by full queues, and random
/// losses.
const TOLD_DROPS: f64 = 0.99;
const TOLD_LOSSES: f64 = 0.95;
/// Maximum increase of repairs per packet, ten seconds after the path became longer or a
/// policer began.
const RAISED: f64 = 0.01;
/// Ports of protected flows, and of plain ones.
const PROTECTED: u16 = 5_201;
const PLAIN: u16 = 5_301;

/// Class without repairs, for flows of [`PLAIN`].
const CLASS: &str =
    "\n[[peer.class]]\nname = \"plain\"\nports = [\"5301-5399\"]\nrepairs = \"none\"\n";

pub(in crate::experiments) const ABOUT: About = About {
    name: "maelstrom/fair",
    title: "Protected flows beside plain ones, and on a link that is full",
    figure: "beyond Maelstrom: RFC 9265, repairs must not hide congestion",
    finding: "Under a fixed code a protected flow takes all of a full queue from a plain one.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let quick = run.quick();
    let (seconds, warm_up) = run.choose((60, 20), (15, 10));
    let rounds = run.choose(5, 1);
    let queues: &[&str] = if quick { &["100ms"] } else { &["100ms", "20ms"] };
    run.param("link", "200 Mb/s, 50 ms one way, queues of 100 and 20 ms");
    run.param("mtu", "hosts 1200, WAN 1500");
    run.param("code", "auto; plain flows have repairs = none");
    run.param("seconds", seconds);
    run.param("warm_up", warm_up);
    run.param("rounds", rounds);
    run.congestion_control("cubic");
    run.steps(rounds * (2 * queues.len() + if quick { 1 } else { 4 }));
    for queue in queues {
        beside(run, queue, (seconds, warm_up), rounds)?;
    }
    overload(run, rounds, run.choose(20, 8))?;
    if !quick {
        eight(run, rounds, (seconds, warm_up))?;
        changed(run, rounds)?;
    }
    Ok(())
}

/// Compares one protected and one plain flow with two plain ones, on one full queue.
fn beside(run: &mut Run, queue: &str, (seconds, warm_up): (u32, u32), rounds: usize) -> Result<()> {
    let config = format!("rate=200M,delay=50ms,queue={queue}");
    let (mut shares, mut told) = ([const { Vec::new() }; 3], Vec::new());
    for round in 0..rounds {
        let seed = run.seed() + round as u64;
        let mut world = World::new((1200, 1500), &link(&config), seed, run.journal())?;
        world.protect(&spec())?;
        run.step(&format!("queue of {queue}, two plain"))?;
        let plain = flows(&world, &[PLAIN, PLAIN + 1], (seconds, warm_up))?;
        let half = plain.iter().sum::<f64>() / 2.0;
        run.step(&format!("queue of {queue}, one protected"))?;
        let before = dropped(&mut world)?;
        let both = flows(&world, &[PROTECTED, PLAIN], (seconds, warm_up))?;
        let after = dropped(&mut world)?;
        told.push((after.1 - before.1) as f64 / (after.0 - before.0).max(1) as f64);
        shares[0].push(both[0] / half);
        shares[1].push(both[1] / half);
        shares[2].push((both[0] + both[1]) / (2.0 * half));
    }
    let [protected, plain, sum] = shares.map(|of| median(&of));
    let plot = Plot::histogram("Beside a plain flow", ("queue", ""), ("of two plain", ""));
    for (name, value) in [("protected", protected), ("plain", plain)] {
        let series = run.series(&plot, name);
        run.labelled_point(series, f64::from(queue.len() as u32), value, queue);
    }
    let name = |what: &str| format!("queue of {queue}: {what} over half of two plain");
    run.check(&name("protected"), protected, SHARE);
    run.check(&name("plain beside it"), plain, SHARE);
    run.at_least(&format!("queue of {queue}: sum over two plain"), sum, SUM);
    let name = format!("queue of {queue}: drops taken for losses by chance, of all");
    run.at_most(&name, median(&told), 1.0 - TOLD_DROPS);
    Ok(())
}

/// Returns gateway settings with a class of unprotected ports.
fn spec() -> GatewaySpec {
    let spec = GatewaySpec::default();
    GatewaySpec { fec: CLASS.to_owned(), ..spec }
}

/// Runs concurrent flows on these ports; returns the Mb/s of each.
fn flows(world: &World, ports: &[u16], (seconds, warm_up): (u32, u32)) -> Result<Vec<f64>> {
    thread::scope(|scope| {
        let flow = |port: u16| {
            let iperf = Iperf { port, ..Iperf::tcp("cubic", seconds, warm_up) };
            scope.spawn(move || iperf.run(world.a1(), world.b1()))
        };
        let running: Vec<_> = ports.iter().map(|port| flow(*port)).collect();
        let mut rates = Vec::new();
        for flow in running {
            rates.push(flow.join().ok().context("iperf3's thread panicked")??.received / 1e6);
        }
        Ok(rates)
    })
}

/// Returns the packets dropped by the link's queue, and the bursts that B's gateway classified
/// as random.
fn dropped(world: &mut World) -> Result<(u64, u64)> {
    let dropped = world.emulator().context("the link is an emulated one")?.stats()?;
    let gateways = world.gateways().context("they were just started")?;
    // The last losses are counted a moment later.
    thread::sleep(Duration::from_millis(1_200));
    Ok((dropped.a_to_b.queue_dropped, gateways.b.status()?.peer().receiver.random))
}

/// Sends a constant rate above the link's.
fn overload(run: &mut Run, rounds: usize, seconds: u32) -> Result<()> {
    let config = link("rate=200M,delay=50ms,queue=100ms");
    let (mut bytes, mut lost) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let seed = run.seed() + round as u64;
        let mut world = World::new((1200, 1500), &config, seed, run.journal())?;
        run.step("a stream of 220 Mb/s")?;
        let stream = Iperf::udp(220_000_000, 1_172, seconds);
        let plain = stream.run(world.a1(), world.b1())?;
        world.protect(&GatewaySpec::default())?;
        let (a1, b1) = (world.a1().clone(), world.b1().clone());
        let running = thread::spawn(move || stream.run(&a1, &b1));
        thread::sleep(Duration::from_secs(2));
        let gateways = world.gateways().context("they were just started")?;
        let before = gateways.a.status()?.peer().sender;
        let with = running.join().ok().context("iperf3's thread panicked")??;
        let after = gateways.a.status()?.peer().sender;
        let share = |report: &crate::topology::programs::IperfReport| {
            report.lost_packets as f64 / report.packets.max(1) as f64
        };
        bytes.push(per_byte(&before, &after));
        lost.push(share(&with) / share(&plain).max(1e-6));
    }
    run.at_most("220 Mb/s on 200: bytes of repairs a byte", median(&bytes), OVERLOAD);
    run.at_most("220 Mb/s on 200: lost over plain", median(&lost), LOST);
    Ok(())
}

fn per_byte(
    before: &viaduct_proto::repair::stats::SenderStats,
    after: &viaduct_proto::repair::stats::SenderStats,
) -> f64 {
    let bytes = after.repair_bytes - before.repair_bytes;
    bytes as f64 / (after.bytes - before.bytes).max(1) as f64
}

/// Runs eight protected flows over a lossy link: each must get its share, and random losses
/// must be classified as such.
fn eight(run: &mut Run, rounds: usize, times: (u32, u32)) -> Result<()> {
    let config = link("rate=200M,delay=50ms,queue=100ms,loss=1%");
    let (mut jain, mut told) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        run.step("eight protected flows")?;
        let seed = run.seed() + round as u64;
        let mut world = World::new((1200, 1500), &config, seed, run.journal())?;
        world.protect(&GatewaySpec::default())?;
        let ports: Vec<u16> = (0..8).map(|n| PROTECTED + n).collect();
        let rates = flows(&world, &ports, times)?;
        let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
        jain.push(rates.iter().sum::<f64>().powi(2) / (8.0 * squares));
        told.push(reported_losses(&mut world)?);
    }
    run.at_least("eight protected at 1 %: Jain's index", median(&jain), JAIN);
    let name = "eight protected at 1 %: losses by chance that are taken for that";
    run.at_least(name, median(&told), TOLD_LOSSES);
    Ok(())
}

/// Returns the share of random losses that were not classified as drops of a full queue.
fn reported_losses(world: &mut World) -> Result<f64> {
    let link = world.emulator().context("the link is an emulated one")?.stats()?.a_to_b;
    let stats: PeerStats = world.gateways().context("they were just started")?.b.status()?.peer();
    let taken = stats.receiver.congested.saturating_sub(link.queue_dropped);
    Ok(1.0 - taken as f64 / link.lost.max(1) as f64)
}

/// Checks that neither a path that becomes 30 ms longer nor a policer raises the overhead for
/// long.
fn changed(run: &mut Run, rounds: usize) -> Result<()> {
    let clean = "rate=200M,delay=50ms,queue=100ms";
    for (name, other) in [
        ("a path 30 ms longer", "rate=200M,delay=80ms,queue=100ms"),
        // A rate below the flow's, with almost no queue.
        ("a policer of 100 Mb/s", "rate=100M,delay=50ms,queue=2ms"),
    ] {
        let mut raised = Vec::new();
        for round in 0..rounds {
            run.step(name)?;
            let seed = run.seed() + round as u64;
            let mut world = World::new((1200, 1500), &link(clean), seed, run.journal())?;
            world.protect(&GatewaySpec::default())?;
            let (a1, b1) = (world.a1().clone(), world.b1().clone());
            let running = thread::spawn(move || Iperf::tcp("cubic", 45, 0).run(&a1, &b1));
            sleep(15)?;
            let gateway = |world: &mut World| -> Result<_> {
                let gateways = world.gateways().context("they were just started")?;
                Ok(gateways.a.status()?.peer().sender)
            };
            let before = gateway(&mut world)?;
            sleep(5)?;
            let steady = gateway(&mut world)?;
            let emulator = world.emulator().context("the link is an emulated one")?;
            emulator.set(Direction::AtoB, link(other))?;
            sleep(10)?;
            let changed = gateway(&mut world)?;
            sleep(8)?;
            let after = gateway(&mut world)?;
            running.join().ok().context("iperf3's thread panicked")??;
            raised.push(per_byte(&changed, &after) - per_byte(&before, &steady));
        }
        let name = format!("{name}: bytes of repairs a byte ten seconds later, above those before");
        run.at_most(&name, median(&raised), RAISED);
    }
    Ok(())
}

fn sleep(seconds: u64) -> Result<()> {
    for _ in 0..seconds * 50 {
        stop::check()?;
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
