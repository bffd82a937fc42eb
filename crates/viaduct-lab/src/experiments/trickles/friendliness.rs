//! Figure 13: share of one Trickles flow among TCP flows, compared with a TCP flow in its place.
//!
//! ```text
//!   foreground   a1: Trickles, or TCP ──┐              90 ms        ┌─ 5–15 ms ─ b1 serve (both)
//!                                       ├─ gwa ══ 100 Mb/s ══ gwb ──┼─ 5–15 ms ─ b2 serve (TCP)
//!   background   a2: 1 to 10 of reno   ─┘    a drop-tail queue of   ├─ …
//!                                            100 ms                 └─ 5–15 ms ─ b11 serve (TCP)
//! ```
//!
//! Each flow has its own server and its own wire. The wire's delay is drawn anew for each
//! round, identically for both arms: independent round trips of 95 to 105 ms. This prevents
//! synchronization of the flows, while no part of the path has a random delay per packet.

use super::replicas::{Replicas, SERVICE, Service};
use super::served::{CONGESTION_CONTROL, PORT, get};
use crate::emulator::Emulator;
use crate::experiments::prelude::*;
use crate::load::{Fetched, Fetches, Trickles};

/// Link with a queue of 100 ms at 100 Mb/s: one bandwidth-delay product.
const LINK: &str = "rate=100M,delay=45ms,queue=1250kB";
/// Rate of the paper's other links, in bits per second.
const WIRE: u64 = 1_000_000_000;
/// Minimum delay of a server's wire, and its range, in microseconds. With the link's 90 ms,
/// round trips are 95 to 105 ms.
const WIRE_DELAY: (u64, u64) = (5_000, 10_000);
/// Numbers of background flows.
const FLOWS: [usize; 6] = [1, 2, 3, 5, 7, 10];
const QUICK: [usize; 2] = [1, 10];
const MAX_FLOWS: usize = 10;
const ROUNDS: usize = 10;
const QUICK_ROUNDS: usize = 2;
/// Head start of the background flows.
const LEAD: Duration = Duration::from_secs(2);
/// Makes TCP send packets one by one as they fall due, as the paper's TCP did. Current kernels send
/// bursts of three or four (TSO sized by the round trip), and then lose more at a full queue than
/// the measured flow.
const ONE_BY_ONE: &str = "link set eth0 gso_max_segs 1";
/// Buffers for the path and its queue, 2.5 MB, with the kernel's overhead per packet.
const BUFFERS: [(&str, &str); 2] =
    [("net/ipv4/tcp_rmem", "4096 131072 33554432"), ("net/ipv4/tcp_wmem", "4096 131072 33554432")];
/// Size of the file: more than any flow transfers.
const FILE: u64 = 1 << 32;
/// Maximum deviation of the flow's share from that of a TCP flow.
const APART: f64 = 0.2;

pub(in crate::experiments) const ABOUT: About = About {
    name: "trickles/friendliness",
    title: "Share of one flow among TCP flows",
    figure: "Trickles, Figure 13",
    finding: "In all cases, a Trickles flow gets about as much as a TCP flow.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let flows: &[usize] = run.choose(&FLOWS, &QUICK);
    let (rounds, warm_up, window) = run.choose((ROUNDS, 8, 25), (QUICK_ROUNDS, 2, 6));
    let [warm_up, window] = [warm_up, window].map(Duration::from_secs);
    run.param("link", LINK);
    run.param("round_trips_ms", "95 to 105, one for each flow and round");
    run.param("rounds", rounds);
    run.param("seconds_each", window.as_secs());
    run.param("trickles_client", "client cores in the lab's process, on the host of TCP's client");
    run.congestion_control(CONGESTION_CONTROL);
    run.steps(flows.len() * ARMS.len() * rounds);
    let wan = Wan::emulated(LINK.parse()?, run.seed());
    let world = World::build(Replicas::build(1 + MAX_FLOWS, wan, run.journal())?)?;
    for &background in flows {
        let mut found = ARMS.map(|_| Vec::new());
        // Arms alternate, so that other load on the machine affects both.
        for round in 0..rounds {
            let seed = run.seed() + round as u64;
            world.draw_round_trips(seed)?;
            for (arm, found) in ARMS.into_iter().zip(&mut found) {
                run.step(&format!("{} among {background}, {round}", arm.name()))?;
                let flow = world.compete(arm, background, (warm_up, window), seed)?;
                draw(run, arm, background, &flow);
                found.push(flow);
            }
        }
        check(run, background, &found);
    }
    Ok(())
}

struct Flow {
    /// Rates of the flow and of all other flows together, in bits per second.
    rates: (f64, f64),
    /// Bytes since its start.
    bytes: f64,
    /// Loss recoveries in the same time.
    recoveries: f64,
}

impl Flow {
    fn share(&self) -> f64 {
        self.rates.0 / (self.rates.0 + self.rates.1)
    }

    /// Returns the flow's throughput relative to its losses. Reno's rate is proportional to the
    /// square root of the bytes between two recoveries, so over equal times and round trips
    /// this value is independent of the number of losses.
    fn law(&self) -> f64 {
        (self.bytes * self.recoveries).sqrt()
    }
}

fn draw(run: &mut Run, arm: Arm, background: usize, flow: &Flow) {
    let x = ("background flows", "");
    let mut point = |plot: Plot, value| {
        run.plot_point(&plot.confidence(), arm.name(), (background as f64, value));
    };
    point(Plot::line("Share of the foreground flow", x, ("share", "%")), 100.0 * flow.share());
    let together = (flow.rates.0 + flow.rates.1) / 1e6;
    point(Plot::line("Total throughput", x, ("throughput", "Mb/s")), together);
    let losses = flow.recoveries / flow.bytes * 1e6;
    point(Plot::line("Losses of the foreground flow", x, ("recoveries", "/MB")), losses);
}

fn check(run: &mut Run, background: usize, [ours, theirs]: &[Vec<Flow>; 2]) {
    let ratio = |what: fn(&Flow) -> f64| mean_of(ours, what) / mean_of(theirs, what);
    for (what, ratio) in [("share", ratio(Flow::share)), ("rate at equal losses", ratio(Flow::law))]
    {
        let name = format!("{what} among {background}, relative to a TCP flow");
        run.within(&name, ratio, 1.0 - APART, 1.0 + APART);
    }
    // Each round has the same round trips in both arms, so rounds are compared in pairs.
    let shares: Vec<_> =
        ours.iter().zip(theirs).map(|(ours, theirs)| ours.share() / theirs.share()).collect();
    let name = format!("share_among_{background}_of_tcps_in_pairs_95_percent");
    run.param(&name, with_interval(&shares));
}

#[derive(Clone, Copy)]
enum Arm {
    Trickles,
    Tcp,
}

const ARMS: [Arm; 2] = [Arm::Trickles, Arm::Tcp];

impl Arm {
    fn name(self) -> &'static str {
        match self {
            Arm::Trickles => "Trickles",
            Arm::Tcp => "TCP",
        }
    }
}

struct World {
    net: Replicas,
    _servers: Vec<Service>,
    /// Wire of b1, the foreground's server, then the other wires.
    wires: Vec<Emulator>,
}

/// Returns the configuration of a server's wire with this delay.
fn wire(delay: Duration) -> LinkConfig {
    LinkConfig { rate: Some(WIRE), delay, ..LinkConfig::default() }
}

impl World {
    fn build(net: Replicas) -> Result<World> {
        net.sparse("file", FILE)?;
        let hosts = net.net.hosts_b().len();
        let wire = |n| net.net.emulate_wire_b(n as u8, wire(Duration::ZERO));
        let wires = (1..=hosts).map(wire).collect::<Result<_, _>>()?;
        net.lead_to(0)?;
        for host in net.net.hosts_a().iter().chain(net.net.hosts_b()) {
            host.set_sysctls(&BUFFERS)?;
        }
        for host in net.net.hosts_b() {
            host.set_congestion_control(CONGESTION_CONTROL)?;
            host.ip(&[ONE_BY_ONE.to_owned()])?;
        }
        let servers = (0..hosts).map(|n| net.serve(n, &[])).collect::<Result<_>>()?;
        Ok(World { net, _servers: servers, wires })
    }

    /// Draws a new round trip for each flow.
    fn draw_round_trips(&self, seed: u64) -> Result<()> {
        let mut rng = Rng::from_seed(seed);
        let (least, range) = WIRE_DELAY;
        for emulator in &self.wires {
            let delay = Duration::from_micros(least + rng.below(range + 1));
            emulator.set(Direction::AtoB, wire(delay))?;
        }
        Ok(())
    }

    /// Runs the flows against each other for the measured time.
    fn compete(
        &self,
        arm: Arm,
        background: usize,
        (warm_up, window): (Duration, Duration),
        seed: u64,
    ) -> Result<Flow> {
        let request = get("file");
        let foreground = Fetches { request: &request, clients: 1, warm_up, window };
        let others = Fetches { warm_up: LEAD + warm_up, ..foreground };
        let [a1, a2, ..] = self.net.net.hosts_a() else { bail!("two clients at least") };
        let servers = self.net.net.hosts_b();
        let at = |ip: Ipv4Addr| SocketAddr::new(ip.into(), PORT);
        let to = at(SERVICE);
        thread::scope(|scope| {
            let others: Vec<_> = servers[1..=background]
                .iter()
                .map(|server| scope.spawn(move || others.by_tcp(a2, at(server.v4()))))
                .collect();
            thread::sleep(LEAD);
            let (ours, recoveries) = match arm {
                Arm::Tcp => {
                    let before = recoveries(&servers[0])?;
                    let fetched = foreground.by_tcp(a1, to)?;
                    (fetched, recoveries(&servers[0])? - before)
                }
                Arm::Trickles => {
                    let mut clients = Trickles::open(&self.net.net, to, seed)?;
                    let fetched = foreground.by_trickles(&mut clients)?;
                    let recoveries = fetched.recoveries;
                    (fetched, recoveries)
                }
            };
            let others = others.into_iter().map(join).collect::<Result<Vec<_>>>()?;
            let failed = ours.failed + others.iter().map(|flow| flow.failed).sum::<u64>();
            ensure!(failed == 0, "a flow broke");
            let rest = others.iter().map(Fetched::mbps).sum::<f64>();
            Ok(Flow {
                rates: (ours.mbps() * 1e6, rest * 1e6),
                bytes: ours.ever as f64,
                recoveries: recoveries as f64,
            })
        })
    }
}

/// Returns the number of loss recoveries by the TCP of this host's kernel.
fn recoveries(host: &Host) -> Result<u64> {
    let read = || fs::read_to_string("/proc/thread-self/net/netstat");
    let text = host.netns().enter(read)??;
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = lines.next().zip(lines.next()).context("no TCP counters")?;
    let mut counters = names.split_whitespace().zip(values.split_whitespace());
    let counter = counters.find(|(name, _)| *name == "TCPSackRecovery");
    Ok(counter.context("the kernel does not count TCP's recoveries")?.1.parse()?)
}
