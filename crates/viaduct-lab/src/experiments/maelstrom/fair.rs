//! Effect of protected flows on other flows, and on a saturated link.

use super::{describe, medians, overhead, world};
use crate::experiments::prelude::*;
use crate::topology::programs::IperfReport;

/// Bounds of the rate of each flow when one of two is protected, relative to the mean rate of two
/// plain flows.
const SHARE: Bound = Bound::Within(0.8, 1.25);
/// Minimum sum of both rates, relative to the sum of two plain flows.
const SUM: f64 = 0.98;
/// Minimum of Jain's index over eight protected flows.
const JAIN: f64 = 0.95;
/// Maximum repair bytes per data byte with a load above the link's rate.
const OVERLOAD: f64 = 0.005;
/// Maximum share of packets lost under the same load, relative to the share without gateways.
const LOST: f64 = 1.02;
/// Minimum share of the drops by full queues that are classified as such.
const TOLD_DROPS: f64 = 0.99;
/// Minimum share of the random losses that are classified as such.
const TOLD_LOSSES: f64 = 0.95;
/// Maximum increase of repair bytes per data byte, ten seconds after a longer path or a
/// policer began.
const RAISED: f64 = 0.01;
/// First port of the protected flows.
const PROTECTED: u16 = 5_201;
/// First port of the plain flows; see [`CLASS`].
const PLAIN: u16 = 5_301;

/// Class without repairs, for flows on [`PLAIN`] and the 98 ports after it.
const CLASS: &str =
    "\n[[peer.class]]\nname = \"plain\"\nports = [\"5301-5399\"]\nrepairs = \"none\"\n";

pub(in crate::experiments) const ABOUT: About = About {
    name: "maelstrom/fair",
    title: "Protected flows that compete with plain ones, and on a saturated link",
    figure: "beyond Maelstrom: RFC 9265, repairs must not hide congestion",
    finding: "With a fixed code, a protected flow displaces a plain flow from a full link.",
};

/// Measured seconds of a flow, and seconds of warm-up.
type Times = (u32, u32);

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let quick = run.quick();
    let times = run.choose((60, 20), (15, 10));
    let rounds = run.choose(5, 1);
    let queues: &[&str] = if quick { &["100ms"] } else { &["100ms", "20ms"] };
    describe(run, times, rounds);
    run.param("link", "200 Mb/s, 50 ms one way, queues of 100 and 20 ms");
    run.param("code", "auto; plain flows have repairs = none");
    run.congestion_control("cubic");
    run.steps(rounds * (2 * queues.len() + if quick { 1 } else { 4 }));
    for queue in queues {
        compete(run, queue, times, rounds)?;
    }
    overload(run, rounds, run.choose(20, 8))?;
    if !quick {
        eight(run, rounds, times)?;
        changed(run, rounds)?;
    }
    Ok(())
}

/// Compares one protected and one plain flow with two plain ones, on one full queue.
fn compete(run: &mut Run, queue: &str, times: Times, rounds: usize) -> Result<()> {
    let link = link(&format!("rate=200M,delay=50ms,queue={queue}"));
    let spec = GatewaySpec::fec(CLASS);
    let [protected, plain, sum, told] = medians(rounds, |round| {
        let seed = run.seed() + round as u64;
        let mut world = World::new((1200, 1500), &link, seed, run.journal())?;
        world.protect(&spec)?;
        run.step(&format!("queue of {queue}, two plain"))?;
        let plain = flows(&world, &[PLAIN, PLAIN + 1], times)?;
        let half = plain.iter().sum::<f64>() / 2.0;
        run.step(&format!("queue of {queue}, one protected"))?;
        let before = dropped(&world)?;
        let both = flows(&world, &[PROTECTED, PLAIN], times)?;
        let after = dropped(&world)?;
        let told = (after.1 - before.1) as f64 / (after.0 - before.0).max(1) as f64;
        Ok([both[0] / half, both[1] / half, (both[0] + both[1]) / (2.0 * half), told])
    })?;
    let plot = Plot::histogram("Competing with a plain flow", ("queue", ""), ("of two plain", ""));
    for (name, value) in [("protected", protected), ("plain", plain)] {
        run.plot_bar(&plot, name, (queue.len(), queue), value);
    }
    let name = |what: &str| format!("queue of {queue}: {what}");
    run.check(&name("protected flow, relative to one of two plain flows"), protected, SHARE);
    run.check(&name("plain flow, relative to one of two plain flows"), plain, SHARE);
    run.at_least(&name("sum, relative to two plain flows"), sum, SUM);
    let drops = name("share of queue drops classified as random losses");
    run.at_most(&drops, told, 1.0 - TOLD_DROPS);
    Ok(())
}

/// Runs concurrent flows on these ports; returns the Mb/s of each.
fn flows(world: &World, ports: &[u16], (seconds, warm_up): Times) -> Result<Vec<f64>> {
    parallel(ports, |&port| {
        world.throughput(&Iperf { port, ..Iperf::tcp("cubic", seconds, warm_up) })
    })
}

/// Returns the number of packets that the link's queue has dropped, and the number of bursts of
/// losses (not of packets) that gateway B has classified as random.
fn dropped(world: &World) -> Result<(u64, u64)> {
    let dropped = world.link()?.stats()?;
    // The last losses are counted a moment later.
    thread::sleep(Duration::from_millis(1_200));
    Ok((dropped.a_to_b.queue_dropped, world.receiver()?.random))
}

/// Sends a constant rate above the link's.
fn overload(run: &mut Run, rounds: usize, seconds: u32) -> Result<()> {
    let stream = Iperf::udp(220_000_000, 1_172, seconds);
    let [bytes, lost] = medians(rounds, |round| {
        let mut world = world(run, "none", round)?;
        run.step("a stream of 220 Mb/s")?;
        let plain = stream.run(world.a1(), world.b1())?;
        world.protect(&GatewaySpec::default())?;
        let (with, before) = thread::scope(|scope| -> Result<_> {
            let running = scope.spawn(|| stream.run(world.a1(), world.b1()));
            thread::sleep(Duration::from_secs(2));
            let before = world.sender()?;
            Ok((join(running)?, before))
        })?;
        let share =
            |report: &IperfReport| report.lost_packets as f64 / report.packets.max(1) as f64;
        let lost = share(&with) / share(&plain).max(1e-6);
        Ok([overhead(&before, &world.sender()?), lost])
    })?;
    run.at_most("220 Mb/s offered on a link of 200: repair bytes per data byte", bytes, OVERLOAD);
    run.at_most("220 Mb/s offered on a link of 200: share lost, relative to plain", lost, LOST);
    Ok(())
}

/// Runs eight protected flows over a lossy link: each must get its share, and random losses
/// must be classified as such.
fn eight(run: &mut Run, rounds: usize, times: Times) -> Result<()> {
    let ports: Vec<u16> = (0..8).map(|n| PROTECTED + n).collect();
    let [index, told] = medians(rounds, |round| {
        run.step("eight protected flows")?;
        let mut world = world(run, "1%", round)?;
        world.protect(&GatewaySpec::default())?;
        Ok([jain(&flows(&world, &ports, times)?), reported_losses(&world)?])
    })?;
    run.at_least("eight protected at 1 %: Jain's index", index, JAIN);
    let name = "eight protected at 1 %: share of random losses classified as such";
    run.at_least(name, told, TOLD_LOSSES);
    Ok(())
}

/// Returns the share of random losses that were not classified as drops of a full queue.
fn reported_losses(world: &World) -> Result<f64> {
    let link = world.link()?.stats()?.a_to_b;
    let taken = world.receiver()?.congested.saturating_sub(link.queue_dropped);
    Ok(1.0 - taken as f64 / link.lost.max(1) as f64)
}

/// Checks that neither a path that becomes 30 ms longer nor a policer raises the overhead for long.
fn changed(run: &mut Run, rounds: usize) -> Result<()> {
    let iperf = Iperf::tcp("cubic", 45, 0);
    for (name, other) in [
        ("a path 30 ms longer", "rate=200M,delay=80ms,queue=100ms"),
        // A rate below the flow's, with almost no queue.
        ("a policer of 100 Mb/s", "rate=100M,delay=50ms,queue=2ms"),
    ] {
        let [raised] = medians(rounds, |round| {
            run.step(name)?;
            let mut world = world(run, "none", round)?;
            world.protect(&GatewaySpec::default())?;
            thread::scope(|scope| {
                let running = scope.spawn(|| iperf.run(world.a1(), world.b1()));
                stop::sleep(Duration::from_secs(15))?;
                let before = world.sender()?;
                stop::sleep(Duration::from_secs(5))?;
                let steady = world.sender()?;
                world.link()?.set(Direction::AtoB, link(other))?;
                stop::sleep(Duration::from_secs(10))?;
                let changed = world.sender()?;
                stop::sleep(Duration::from_secs(8))?;
                let after = world.sender()?;
                join(running)?;
                Ok([overhead(&changed, &after) - overhead(&before, &steady)])
            })
        })?;
        let name = format!("{name}: increase of repair bytes per data byte after ten seconds");
        run.at_most(&name, raised, RAISED);
    }
    Ok(())
}
