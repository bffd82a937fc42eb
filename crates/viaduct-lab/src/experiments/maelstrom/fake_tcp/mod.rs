//! Fake TCP compared with UDP, through a middlebox with NAT and strict connection tracking:
//! goodput, cost, and resistance to forged segments.

mod forged;
mod world;

use self::world::{Flow, World};
use crate::experiments::prelude::*;

/// Link between gateway A and the middlebox for the flows at 1 % loss.
const LOSSY: &str = "rate=200M,delay=50ms,queue=100ms,loss=1%";
/// The same for the datagrams at 200 Mb/s.
const WIDE: &str = "rate=1G,delay=10ms,queue=100ms,loss=1%";
/// Code with two repairs per packet: r and the interleaves.
const DENSE: (u8, [u16; 2]) = (1, [1, 20]);
/// Bits of payload per second whose repairs by [`DENSE`] take about 200 Mb/s.
const PACE: u64 = 95_000_000;
/// Minimum rate of the datagrams in Mb/s: a lower rate would be too weak a test of the middlebox.
const MIN_MBIT: f64 = 200.0;
/// Minimum goodput relative to UDP.
const MIN_GOODPUT: f64 = 0.95;
/// Maximum processor time of the gateways per byte, relative to UDP.
const MAX_CPU: f64 = 1.4;
/// Maximum time from the first dropped UDP packet to the first answer by fake TCP, in seconds.
const MAX_FOUND: f64 = 3.0;

/// Link for the search for fake TCP. It loses nothing, because a lost handshake is repeated only
/// after a second, which would add to the measured time.
const CLEAN: &str = "rate=200M,delay=50ms,queue=100ms";

/// Compared transport: its name, the setting `transport`, and whether the middlebox drops UDP.
/// [`UDP`] does not use `auto`, with which a lost handshake would make gateways try fake TCP
/// as well.
#[derive(Clone, Copy)]
struct Arm {
    name: &'static str,
    setting: &'static str,
    drops_udp: bool,
}

const UDP: Arm = Arm { name: "UDP", setting: "udp", drops_udp: false };
const FAKE_TCP: Arm = Arm { name: "fake TCP", setting: "auto", drops_udp: true };
const ARMS: [Arm; 2] = [UDP, FAKE_TCP];

pub(in crate::experiments) const ABOUT: About = About {
    name: "maelstrom/fake-tcp",
    title: "Datagrams in packets that look like TCP, through NAT and strict connection tracking",
    figure: "beyond Maelstrom: networks that drop UDP",
    finding: "The paper does not discuss such networks; a connection of phantun ends when its \
              addresses or ports change.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let (seconds, warm_up) = run.choose((20, 10), (6, 5));
    let rounds = run.choose(5, 1);
    let times_found = run.choose(10, 2);
    let times_one_way = run.choose(6, 2);
    let times_started = run.choose(3, 1);
    run.param("link", "200 Mb/s, 50 ms one way, queue 100 ms, 1 % loss");
    run.param("wide_link", "1 Gb/s, 10 ms one way, 1 % loss");
    run.param("mtu", "hosts 1200, WAN 1500");
    run.param("middlebox", "masquerades gateway A, drops INVALID, be_liberal 0, loose 0");
    run.param("seconds", seconds);
    run.param("warm_up", warm_up);
    run.param("rounds", rounds);
    run.congestion_control("cubic");
    run.steps(2 * rounds + 2 + times_found + times_one_way + times_started + 1);
    goodput(run, &Iperf::tcp("cubic", seconds, warm_up), rounds)?;
    datagrams(run)?;
    found(run, times_found, times_one_way)?;
    started(run, times_started)?;
    forged::run(run)
}

/// Compares one flow under adaptive repairs by both transports.
fn goodput(run: &mut Run, iperf: &Iperf, rounds: usize) -> Result<()> {
    let mut flows: [Vec<Flow>; 2] = Default::default();
    for round in 0..rounds {
        // The order alternates, so that a drift of the machine's speed affects both.
        for n in [round % 2, 1 - round % 2] {
            run.step(&format!("1 % loss, by {}, round {}", ARMS[n].name, round + 1))?;
            let seed = run.seed() + round as u64;
            let world = World::start(run, LOSSY, &GatewaySpec::default(), ARMS[n], seed)?;
            flows[n].push(world.flow(iperf)?);
        }
    }
    draw(run, "1 % loss", &flows);
    let ratio = |property: fn(&Flow) -> f64| ratio(&flows, property);
    let name = "1 % loss: goodput by fake TCP, relative to UDP";
    run.at_least(name, ratio(|flow| flow.rate), MIN_GOODPUT);
    run.at_most(
        "1 % loss: CPU-s per GB by fake TCP, relative to UDP",
        ratio(|flow| flow.cpu),
        MAX_CPU,
    );
    Ok(())
}

/// Returns the median over the rounds of the ratio of fake TCP to UDP.
fn ratio([udp, fake_tcp]: &[Vec<Flow>; 2], property: impl Fn(&Flow) -> f64) -> f64 {
    let pairs = udp.iter().zip(fake_tcp);
    median(&pairs.map(|(udp, fake)| property(fake) / property(udp)).collect::<Vec<_>>())
}

/// Sends datagrams at 200 Mb/s through the middlebox, most of them repairs that no loss requires.
fn datagrams(run: &mut Run) -> Result<()> {
    let seconds = run.choose([60, 600], [5, 20]);
    run.param("seconds_of_datagrams", seconds[1]);
    let (r, interleaves) = DENSE;
    let spec = GatewaySpec::layered(r, &interleaves, false);
    let (mut flows, mut rate, mut invalid) = (Vec::new(), 0.0, 0);
    for (arm, seconds) in ARMS.into_iter().zip(seconds) {
        run.step(&format!("200 Mb/s of datagrams by {}, {seconds} s", arm.name))?;
        let world = World::start(run, WIDE, &spec, arm, run.seed())?;
        let before = world.middlebox.counted("to_b")?.bytes;
        let begun = Instant::now();
        let flow = world.flow(&Iperf::tcp("cubic", seconds, 0).paced(PACE, 16 << 10))?;
        flows.push(vec![flow]);
        if arm.drops_udp {
            let bytes = world.middlebox.counted("to_b")?.bytes - before;
            rate = 8.0 * bytes as f64 / begun.elapsed().as_secs_f64() / 1e6;
            for counter in ["invalid", "other_invalid"] {
                invalid += world.middlebox.counted(counter)?.packets;
            }
        }
    }
    let flows = <[Vec<Flow>; 2]>::try_from(flows).expect("one for each transport");
    draw(run, "datagrams at 200 Mb/s", &flows);
    run.at_least("datagrams: Mb/s by fake TCP", rate, MIN_MBIT);
    run.at_most(
        "datagrams: segments that connection tracking classifies as INVALID",
        invalid as f64,
        0.0,
    );
    let name = "datagrams: CPU-s per GB by fake TCP, relative to UDP";
    run.at_most(name, ratio(&flows, |flow| flow.cpu), MAX_CPU);
    Ok(())
}

/// Drops UDP while sessions use it, in both directions and then in one, and waits until the
/// sessions use fake TCP.
fn found(run: &mut Run, times: usize, times_one_way: usize) -> Result<()> {
    let plot = Plot::scatter("UDP is dropped", ("time", ""), ("until an answer by fake TCP", "s"));
    let (mut longest, mut rng) = ([0.0_f64; 2], Rng::from_seed(run.seed()));
    let directions = (0..times_one_way).map(|n| Some(["west", "east"][n % 2]));
    for (n, from) in std::iter::repeat_n(None, times).chain(directions).enumerate() {
        run.step(&format!("UDP is dropped, {} of {}", n + 1, times + times_one_way))?;
        let arm = Arm { drops_udp: false, ..FAKE_TCP };
        let world = World::start(run, CLEAN, &GatewaySpec::default(), arm, run.seed() + n as u64)?;
        // The outage begins at a random time between two of the gateways' reports, which are sent
        // once a second.
        let found = world.time_to_fake_tcp(Duration::from_secs_f64(1.0 + rng.unit()), from)?;
        let name = from.map_or("in both directions", |_| "in one direction");
        run.plot_point(&plot, name, (n as f64 + 1.0, found));
        let longest = &mut longest[usize::from(from.is_some())];
        *longest = longest.max(found);
    }
    let [both, one] = longest;
    run.at_most("time from the loss of UDP to an answer by fake TCP, maximum, s", both, MAX_FOUND);
    let name = "time from the loss of UDP in one direction to an answer by fake TCP, maximum, s";
    run.at_most(name, one, MAX_FOUND);
    Ok(())
}

/// Starts the gateways while UDP is dropped, and waits for their session.
fn started(run: &mut Run, times: usize) -> Result<()> {
    let mut longest = Duration::ZERO;
    for n in 0..times {
        run.step(&format!("the gateways start, {} of {times}", n + 1))?;
        let seed = run.seed() + n as u64;
        let world = World::start(run, CLEAN, &GatewaySpec::default(), FAKE_TCP, seed)?;
        longest = longest.max(world.started);
    }
    let name = "from the start of the gateways to a session by fake TCP, maximum, s";
    run.at_most(name, longest.as_secs_f64(), MAX_FOUND);
    Ok(())
}

fn draw(run: &mut Run, what: &str, flows: &[Vec<Flow>; 2]) {
    let rates = Plot::histogram(&format!("Goodput, {what}"), ("", ""), ("goodput", "Mb/s"));
    let repairs = Plot::histogram(&format!("Repairs, {what}"), ("", ""), ("repairs", "%"));
    let cpu = Plot::histogram(&format!("Cost, {what}"), ("", ""), ("cost", "CPU-s per GB"));
    for (plot, name, property) in [
        (&rates, "median", (|flow| flow.rate) as fn(&Flow) -> f64),
        (&repairs, "median", |flow| 100.0 * flow.repairs),
        (&cpu, "both gateways", |flow| flow.cpu),
        (&cpu, "the whole machine", |flow| flow.machine),
    ] {
        let bars = ARMS.iter().zip(flows).map(|(arm, of)| (arm.name, median_of(of, property)));
        run.plot_bars(plot, name, bars);
    }
}
