//! Upgrades of a gateway under load: time without repairs, and effects on the flows of hosts.
//!
//! ```text
//!   a1 ── 500 paced flows, 200 new connections a second ──▶ gwa ── 1 % loss ── gwb ──▶ b1
//!      ◀─ messages, 500 a second in each direction ───────▶  └─ upgrade ─▶ gwa ─ upgrade ─▶ …
//! ```

use crate::experiments::prelude::*;
use crate::load::{Checked, Traffic};
use crate::topology::Usage;
use crate::topology::programs::{Carrier, Message, TimedMessages};
use crate::upgrade::{Adoption, ForeignProcess, upgrade};

const LINK: &str = "rate=1G,delay=5ms,queue=100ms,loss=1%";
/// Share of the packets that the link loses.
const LOSS: f64 = 0.01;
const TRAFFIC: Traffic = Traffic { paced: 500, short_per_second: 200 };
/// Interval of the upgrades. For 1.5 s of each, both processes receive the same packets.
const EVERY: Duration = Duration::from_millis(2_000);
/// Messages per second in each direction, and their bytes.
const MESSAGES: f64 = 500.0;
const SIZE: usize = 300;
/// Time of all traffic before the first upgrade, in which the gateways learn the losses.
const WARM_UP: Duration = Duration::from_secs(5);
/// Time before and after the end of an upgrade within which messages may be lost because of it.
const NEAR: Duration = Duration::from_millis(250);
const MAX_UNPROTECTED_MS: f64 = 50.0;
const MAX_DESCRIPTORS_GROWN: f64 = 16.0;

pub(in crate::experiments) const ABOUT: About = About {
    name: "maelstrom/upgrade",
    title: "Upgrades of a gateway under 500 flows and 200 new connections a second",
    figure: "beyond Maelstrom: upgrades without interruption",
    finding: "The paper does not discuss upgrades; its gateways fail open, so a restart costs \
              repairs.",
};

/// Upgrade that has succeeded.
struct Upgrade {
    done: Instant,
    /// Resources of the new process.
    usage: Usage,
}

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let count: u32 = run.choose(1_000, 20);
    run.param("upgrades", count);
    run.param("every_ms", EVERY.as_millis() as u64);
    run.param("link", "1 Gb/s, 5 ms one way, queue 100 ms, 1 % loss");
    run.param("code", "auto");
    run.param("paced_flows", TRAFFIC.paced);
    run.param("new_connections_per_second", TRAFFIC.short_per_second);
    run.param("messages_per_second_each_way", MESSAGES);
    run.congestion_control("cubic");
    run.steps(count as usize);
    let mut world = World::new((1500, 1500), &link(LINK), run.seed(), run.journal())?;
    world.dumbbell.set_congestion_control("cubic")?;
    // Prevents the replacement of sessions because of their age.
    let peer = "rekey_after = \"2h\"\n".to_owned();
    world.protect(&GatewaySpec { peer, ..GatewaySpec::default() })?;
    let world = world;
    let _adoption = Adoption::begin()?;
    let traffic = Checked::start(world.a1(), world.b1(), TRAFFIC)?;
    let duration = WARM_UP + EVERY * count + NEAR;
    let begun = Instant::now();
    let (upgrades, sent, handshakes) = thread::scope(|scope| -> Result<_> {
        let (a1, b1) = (world.a1(), world.b1());
        let streams = [(a1, b1, 6_000), (b1, a1, 6_001)].map(|(from, to, port)| {
            let messages = stream(duration, port);
            scope.spawn(move || messages.run(from, to))
        });
        stop::sleep(WARM_UP)?;
        let before = handshakes(&world)?;
        let upgrades = perform(run, &world, count)?;
        let handshakes = handshakes(&world)? - before;
        let [there, back] = streams;
        Ok((upgrades, [join(there)?, join(back)?], handshakes))
    })?;
    let report = traffic.finish()?;
    let pauses = pauses(&world.running()?.a.log());
    ensure!(pauses.len() == upgrades.len(), "the log has {} of {count} pauses", pauses.len());
    let plot = Plot::line("Time without repairs", ("upgrade", ""), ("time", "ms"));
    for (n, pause) in pauses.iter().enumerate() {
        run.plot_point(&plot, "from the gateway's log", (n as f64 + 1.0, *pause));
    }
    for (n, fault) in report.faults.iter().enumerate() {
        run.param(&format!("fault_{}", n + 1), fault.as_str());
    }
    run.at_most("flows reset, refused or not served", report.broken as f64, 0.0);
    run.at_most("flows with wrong or missing bytes", report.wrong as f64, 0.0);
    let p99 = quantile(&pauses, 0.99);
    run.at_most("time without repairs, p99, ms", p99, MAX_UNPROTECTED_MS);
    let mean = unprotected_ms(&upgrades, &sent, (begun, duration));
    run.at_most(
        "mean time without repairs, estimated from lost messages, ms",
        mean,
        MAX_UNPROTECTED_MS,
    );
    run.at_most("new sessions", handshakes as f64, 0.0);
    let descriptors: Vec<_> = upgrades.iter().map(|of| of.usage.descriptors as f64).collect();
    let grown = growth(&descriptors);
    run.at_most("growth of descriptors over all upgrades", grown, MAX_DESCRIPTORS_GROWN);
    Ok(())
}

fn stream(duration: Duration, port: u16) -> TimedMessages {
    let timeout = Duration::from_secs(1);
    let bits_per_second = MESSAGES * 8.0 * SIZE as f64;
    TimedMessages { carrier: Carrier::Udp, size: SIZE, bits_per_second, duration, timeout, port }
}

/// Upgrades gateway A `count` times.
fn perform(run: &mut Run, world: &World, count: u32) -> Result<Vec<Upgrade>> {
    let directory = world.running()?.directory();
    let (mut upgrades, mut last) = (Vec::new(), None);
    for n in 0..count {
        run.step(&format!("upgrade {}", n + 1))?;
        let next = Instant::now() + EVERY;
        let new = upgrade(directory, &["--name", "site-a"])?;
        upgrades.push(Upgrade { done: Instant::now(), usage: Usage::of(new.id()) });
        if let Some(old) = last.replace(new) {
            stop::wait_until(EVERY, Duration::from_millis(5), || old.has_ended())?;
            old.reap();
        }
        stop::sleep(next.saturating_duration_since(Instant::now()))?;
    }
    last.map_or(Ok(()), |process: ForeignProcess| process.end())?;
    Ok(upgrades)
}

/// Returns the number of handshakes that gateway B has completed. (The counters of gateway A begin
/// at 0 in each process.)
fn handshakes(world: &World) -> Result<u64> {
    Ok(world.running()?.b.status()?.peer().session.handshakes)
}

/// Returns the times without repairs, in milliseconds, from the log.
fn pauses(log: &str) -> Vec<f64> {
    let rests = log.lines().filter_map(|line| line.split("paused_ms=").nth(1));
    rests.filter_map(|rest| rest.split([' ', '\u{1b}']).next()?.parse().ok()).collect()
}

/// Returns the mean time without repairs per upgrade, in milliseconds. Estimated from the messages
/// lost near upgrades, in excess of those lost in an equally long time elsewhere: without repairs,
/// messages are lost at the link's loss rate. The messages were sent for `duration`, starting at
/// `begun`.
fn unprotected_ms(
    upgrades: &[Upgrade],
    sent: &[Vec<Message>; 2],
    (begun, duration): (Instant, Duration),
) -> f64 {
    let is_lost = |message: &&Message| message.latency.is_none() && message.sent >= WARM_UP;
    let lost = sent.iter().flatten().filter(is_lost).map(|message| begun + message.sent);
    let is_near =
        |at: &Instant| upgrades.iter().any(|of| *at + NEAR > of.done && *at < of.done + NEAR);
    let (near, elsewhere): (Vec<_>, Vec<_>) = lost.partition(is_near);
    let count = upgrades.len() as f64;
    let near_time = count * 2.0 * NEAR.as_secs_f64();
    let elsewhere_time = (duration - WARM_UP).as_secs_f64() - near_time;
    let excess = near.len() as f64 - elsewhere.len() as f64 * near_time / elsewhere_time;
    let per_ms = 2.0 * MESSAGES * LOSS / 1e3;
    excess / count / per_ms
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_without_repairs_is_estimated_from_lost_messages() {
        let begun = Instant::now();
        let done = begun + Duration::from_secs(6);
        let upgrades = [Upgrade { done, usage: Usage::default() }];
        let message = |ms, is_lost: bool| Message {
            sent: Duration::from_millis(ms),
            latency: (!is_lost).then_some(Duration::from_millis(5)),
        };
        let sent = [
            vec![message(5_500, true), message(5_900, true), message(5_901, false)],
            vec![message(1_100, true), message(6_100, true), message(6_300, true)],
        ];
        // Two near the upgrade, in half a second, and two in the other second and a half.
        let times = (begun, WARM_UP + Duration::from_secs(2));
        let expected = (2.0 - 2.0 / 3.0) * 100.0;
        assert!((unprotected_ms(&upgrades, &sent, times) - expected).abs() < 1e-6);
    }

    #[test]
    fn pauses_are_read_from_the_log() {
        let log = "INFO taken over peers=1 paused_ms=3.25\nINFO x\npaused_ms=4 more";
        assert_eq!(pauses(log), [3.25, 4.0]);
    }
}
