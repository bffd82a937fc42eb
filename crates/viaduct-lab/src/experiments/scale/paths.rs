//! Two WANs between two sites. One WAN fails under bulk traffic and messages, and recovers.
//!
//! ```text
//!   a1 ── gwa ══ first  ══ gwb ── b1   bulk and messages take the first path; it fails for 2.5 s
//!            ╚═══ second ═══╝          repairs, and the traffic of a path that is down
//! ```

use crate::experiments::prelude::*;
use crate::gateways::Gateways;
use crate::topology::programs::{Carrier, Message, TimedMessages};

/// Link of each path.
const LINK: &str = "rate=100M,delay=50ms,queue=100ms";
/// Round trip of [`LINK`].
const ROUND_TRIP: Duration = Duration::from_millis(100);
/// Rate of the bulk traffic, below that of either path.
const BULK: u64 = 50_000_000;
/// Bytes of payload of a message.
const SIZE: usize = 200;
const MESSAGES_A_SECOND: f64 = 200.0;
/// Seconds before the first failure.
const WARM_UP: f64 = 4.0;
/// Seconds from one failure to the next.
const EVERY: f64 = 7.0;
/// Duration of a failure in seconds.
const DEAD_FOR: f64 = 2.5;
/// Maximum 99th percentile of the latency of messages in the second after a failure, in round
/// trips.
const MAX_ROUND_TRIPS: f64 = 2.0;
/// Maximum seconds from a failure until the path is no longer used.
const MAX_LEFT_AFTER: f64 = 1.0;
/// Latency, in round trips, above which a message is late: the delay of a path (0.5), plus the time
/// for which flows other than TCP wait for a repair (0.25).
const LATE: f64 = 0.75;

pub(in crate::experiments) const ABOUT: About = About {
    name: "scale/paths",
    title: "Two WANs, one of which fails under bulk traffic and messages",
    figure: "beyond Maelstrom: sites with two WANs",
    finding: "Repairs that take another path than the packets should recover the losses of a \
              failed path until the path is no longer used.",
};

/// Rate to which each WAN is shaped in the gateways. UDP has priority over TCP.
const SHAPED: &str = "95mbit";

/// Protection of the messages.
struct Arm {
    name: &'static str,
    repairs: &'static str,
    /// True if the gateways shape the WANs, so that bulk traffic fills no queue that messages pass.
    is_shaped: bool,
}

const ARMS: [Arm; 3] = [
    Arm { name: "copies", repairs: "copies", is_shaped: false },
    Arm { name: "duplicates", repairs: "duplicate", is_shaped: false },
    Arm { name: "duplicates, WANs shaped", repairs: "duplicate", is_shaped: true },
];

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let deaths = run.choose(20, 2);
    run.param("link", LINK);
    run.param("bulk, Mb/s", BULK / 1_000_000);
    run.param("messages a second", MESSAGES_A_SECOND);
    run.param("deaths", deaths);
    run.congestion_control("cubic");
    run.steps(ARMS.len());
    let plot = Plot::line("Messages around a failure", ("time", "s"), ("latency", "round trips"));
    for arm in &ARMS {
        run.step(arm.name)?;
        let found = measure(run, arm, deaths)?;
        let first = found.around(0).map(|(at, latency)| (at, latency.min(10.0)));
        run.plot_points(&plot, arm.name, first.collect::<Vec<_>>());
        report(run, arm, &found);
    }
    Ok(())
}

/// Messages of one arm, and the failures of the path.
struct Found {
    messages: Vec<Message>,
    /// Times of the failures, from the start of the messages.
    deaths: Vec<f64>,
    /// Seconds from each failure until gateway A reports the path down.
    left_after: Vec<f64>,
    /// Rate of the received bulk traffic in Mb/s.
    bulk: f64,
}

impl Found {
    /// Returns the messages around a failure: their times relative to the failure, and their
    /// latencies in round trips.
    fn around(&self, death: usize) -> impl Iterator<Item = (f64, f64)> {
        let at = self.deaths[death];
        let relative = move |message: &Message| {
            let latency = message.milliseconds() / (ROUND_TRIP.as_secs_f64() * 1e3);
            (message.sent.as_secs_f64() - at, latency)
        };
        self.messages.iter().map(relative).filter(|(at, _)| (-0.5..2.0).contains(at))
    }

    /// Returns the latencies, in round trips, of the messages in the second after a failure.
    fn in_second(&self, death: usize) -> Vec<f64> {
        let after = self.around(death).filter(|(at, _)| (0.0..1.0).contains(at));
        after.map(|(_, latency)| latency).collect()
    }
}

fn measure(run: &Run, arm: &Arm, deaths: usize) -> Result<Found> {
    let dumbbell = Dumbbell::over(link(LINK), 1, run.seed(), run.journal())?;
    let _second = dumbbell.add_wan(link(LINK), run.seed() + 1)?;
    let class = format!(
        "[[peer.class]]\nname = \"messages\"\nprotocols = [\"udp\"]\nrepairs = \"{}\"\n",
        arm.repairs
    );
    let spec = GatewaySpec {
        two_wans: true,
        fec: format!("path = \"other\"\n{class}"),
        ..GatewaySpec::default()
    };
    if arm.is_shaped {
        [dumbbell.gateway_a(), dumbbell.gateway_b()].into_iter().try_for_each(shape)?;
    }
    let mut gateways = Gateways::start(&dumbbell, &spec)?;
    gateways.wait_for_paths(true)?;
    let seconds = WARM_UP + EVERY * deaths as f64;
    let stream = TimedMessages {
        carrier: Carrier::Udp,
        size: SIZE,
        bits_per_second: 8.0 * SIZE as f64 * MESSAGES_A_SECOND,
        duration: Duration::from_secs_f64(seconds),
        timeout: Duration::from_secs(2),
        port: 6_000,
    };
    let bulk = Iperf::tcp("cubic", seconds as u32, 0).paced(BULK, 128 << 10);
    let (a1, b1) = (dumbbell.a1(), dumbbell.b1());
    thread::scope(|scope| {
        let bulk = scope.spawn(|| bulk.run(a1, b1));
        let begun = Instant::now();
        let messages = scope.spawn(|| stream.run(a1, b1));
        let (mut times, mut left_after) = (Vec::new(), Vec::new());
        for n in 0..deaths {
            let at = begun + Duration::from_secs_f64(WARM_UP + EVERY * n as f64);
            stop::sleep(at.saturating_duration_since(Instant::now()))?;
            times.push(begun.elapsed().as_secs_f64());
            left_after.push(die(&dumbbell, &gateways)?);
        }
        let messages = messages.join().expect("the messages do not panic")?;
        let bulk = bulk.join().expect("the bulk traffic does not panic")?.received / 1e6;
        Ok(Found { messages, deaths: times, left_after, bulk })
    })
}

/// Shapes both WANs of a gateway to [`SHAPED`]. Messages and the gateways' datagrams are UDP, and
/// leave before the bulk traffic, which is TCP.
fn shape(gateway: &Node) -> Result<()> {
    let udp = "match ip protocol 17 0xff flowid 1:10";
    for wan in ["wan0", "wan1"] {
        let tc = |what: &str| {
            let words: Vec<&str> = what.split(' ').collect();
            gateway.run("tc", &words)
        };
        tc(&format!("qdisc replace dev {wan} root handle 1: htb default 20"))?;
        let whole = format!("rate {SHAPED} ceil {SHAPED}");
        tc(&format!("class add dev {wan} parent 1: classid 1:1 htb {whole}"))?;
        for (class, rate, priority) in [("1:10", "40mbit", 0), ("1:20", "55mbit", 1)] {
            let share = format!("rate {rate} ceil {SHAPED} prio {priority}");
            tc(&format!("class add dev {wan} parent 1:1 classid {class} htb {share}"))?;
        }
        tc(&format!("filter add dev {wan} parent 1: protocol ip u32 {udp}"))?;
    }
    Ok(())
}

/// Drops all packets on the first path for [`DEAD_FOR`]. Returns the seconds until gateway A
/// reported the path down.
fn die(dumbbell: &Dumbbell, gateways: &Gateways) -> Result<f64> {
    let first = dumbbell.emulator().context("the first path is emulated")?;
    let set = |text: &str| -> Result<()> {
        first.set(Direction::AtoB, link(text))?;
        Ok(first.set(Direction::BtoA, link(text))?)
    };
    let died = Instant::now();
    set(&format!("{LINK},loss=100%"))?;
    let mut left = None;
    while died.elapsed().as_secs_f64() < DEAD_FOR {
        let is_down = || Ok::<_, anyhow::Error>(!gateways.a.status()?.peers[0].paths[0].up);
        if left.is_none() && is_down()? {
            left = Some(died.elapsed().as_secs_f64());
        }
        thread::sleep(Duration::from_millis(20));
    }
    set(LINK)?;
    Ok(left.unwrap_or(f64::INFINITY))
}

fn report(run: &mut Run, arm: &Arm, found: &Found) {
    let all: Vec<f64> = (0..found.deaths.len()).flat_map(|n| found.in_second(n)).collect();
    let name = arm.name;
    if arm.repairs == "duplicate" {
        let late = all.iter().filter(|latency| **latency > LATE).count();
        run.at_most(
            &format!("{name}: late messages in the second after a failure"),
            late as f64,
            0.0,
        );
    } else {
        let p99 = quantile(&all, 0.99);
        let name = format!("{name}: p99 of messages in the second after a failure, round trips");
        run.at_most(&name, p99, MAX_ROUND_TRIPS);
    }
    let left = quantile(&found.left_after, 1.0);
    run.at_most(
        &format!("{name}: seconds until a failed path is left, maximum"),
        left,
        MAX_LEFT_AFTER,
    );
    let never = all.iter().filter(|latency| latency.is_infinite()).count();
    run.param(&format!("{name}: messages in those seconds"), all.len());
    run.param(&format!("{name}: messages that never arrived"), never);
    run.param(&format!("{name}: slowest, round trips"), quantile(&all, 1.0));
    run.param(&format!("{name}: bulk, Mb/s"), found.bulk);
}
