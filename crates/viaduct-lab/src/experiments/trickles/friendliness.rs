//! Figure 13: the share of one flow of Trickles among TCP's, and what a flow of TCP gets in its place.
//!
//! ```text
//!                                                                    ┌─ wire ─ b1 serve, and over TCP
//!   foreground   Trickles, or a1's TCP ─┐                            │
//!                                       ├─ gwa ══ 100 Mb/s ══ gwb ──┼─ wire ─ b2 serve, over TCP
//!   background   a2: 1 to 10 of reno   ─┘                            │
//!                                                                    └─ wire ─ b3 serve, over TCP
//! ```

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use viaduct_proto::link::LinkConfig;

use super::replicas::{Replicas, SERVICE, Service};
use super::served::{CONGESTION_CONTROL, PORT, get};
use crate::emulator::{Direction, Emulator};
use crate::experiment::{About, Bound, Experiment, Plot, Run};
use crate::experiments::statistics::mean;
use crate::load::{Fetched, Fetches, Trickles};
use crate::topology::{Host, Wan};

/// The experiment.
pub(in crate::experiments) struct Friendliness;

/// As the paper has it: hosts that are near each other, and what a switch queues for 100 Mb/s.
const LINK: &str = "rate=100M,delay=1ms,queue=250kB";
/// The paper's other links, in bits a second.
const WIRE: u64 = 1_000_000_000;
/// How much longer a packet may take to each server, at random, one after the other in the rounds. Machines take their
/// own time; kernels in one machine answer in step with what leaves the queue, so that a tenth of a millisecond
/// decides whom it drops (`docs/trickles.md`). The time of a packet, 0.12 ms at 100 Mb/s, is the least that breaks
/// such step (Floyd and Jacobson, 1992); these are 2.5, 8 and 17 of it.
const SPREADS: [Duration; 7] = [LITTLE, SOME, MUCH, LITTLE, SOME, MUCH, NONE];
const LITTLE: Duration = Duration::from_micros(300);
const SOME: Duration = Duration::from_millis(1);
const MUCH: Duration = Duration::from_millis(2);
/// To show what comes of keeping step; nothing is judged by it.
const NONE: Duration = Duration::ZERO;
/// How much later the third arm is answered, to show what the time of the answer alone is worth.
const LATE: Duration = Duration::from_micros(150);
const FLOWS: [usize; 6] = [1, 2, 3, 5, 7, 10];
const QUICK: [usize; 3] = [1, 4, 10];
/// How long the background has had the link before.
const LEAD: Duration = Duration::from_secs(2);
/// Has TCP send each packet as it falls due, as the paper's did: the kernel of today sends three and four at once (TSO
/// sized by the round trip), so that at a full queue it loses more than the flow that is measured beside it.
const ONE_BY_ONE: &str = "link set eth0 gso_max_segs 1";
/// More than any flow brings.
const FILE: u64 = 1 << 32;
/// How far the share may be from a TCP flow's.
const APART: f64 = 0.2;

impl Experiment for Friendliness {
    fn about(&self) -> About {
        About {
            name: "trickles/friendliness",
            title: "One flow's share among TCP's",
            figure: "Trickles, Figure 13",
            finding: "In all cases a flow of Trickles gets about what a flow of TCP gets.",
        }
    }

    fn run(&self, run: &mut Run) -> Result<()> {
        let flows: &[usize] = run.choose(&FLOWS, &QUICK);
        let (rounds, warm_up, window) = run.choose((SPREADS.len(), 3, 17), (3, 2, 6));
        let [warm_up, window] = [warm_up, window].map(Duration::from_secs);
        run.param("link", LINK);
        run.param("spreads", format!("{:?}", &SPREADS[..rounds]));
        run.param("rounds", rounds);
        run.param("seconds_each", window.as_secs());
        run.congestion_control(CONGESTION_CONTROL);
        run.steps(flows.len() * ARMS.len() * rounds);
        let wan = Wan::emulated(LINK.parse()?, run.seed());
        let world = World::build(Replicas::build(3, wan, run.journal())?)?;
        for &background in flows {
            let mut found = ARMS.map(|_| Vec::new());
            // In turn, so that what the machine does besides falls on all.
            for (round, spread) in (0..rounds).zip(SPREADS) {
                world.spread(spread)?;
                for (arm, found) in ARMS.into_iter().zip(&mut found) {
                    run.step(&format!("{} among {background}, {round}", arm.name()))?;
                    let seed = run.seed() + round as u64;
                    let flow = world.compete(arm, background, (warm_up, window), seed)?;
                    draw(run, arm, background, spread, &flow);
                    if spread != NONE {
                        found.push(flow);
                    }
                }
            }
            check(run, background, &found);
        }
        Ok(())
    }
}

/// What the foreground flow had.
struct Flow {
    /// Bits a second, and those of all others.
    rates: (f64, f64),
    /// From its beginning on, in bytes.
    bytes: f64,
    /// How often it recovered from losses, in the same time.
    recoveries: f64,
}

impl Flow {
    fn share(&self) -> f64 {
        self.rates.0 / (self.rates.0 + self.rates.1)
    }

    /// What it takes for the losses that it has. Reno's rate goes with the root of the bytes between two
    /// recoveries, so that in one time and at one round trip this is the same, however many losses there are.
    fn law(&self) -> f64 {
        (self.bytes * self.recoveries).sqrt()
    }
}

fn draw(run: &mut Run, arm: Arm, background: usize, spread: Duration, flow: &Flow) {
    let x = ("background flows", "");
    let mut point = |plot, value| {
        let series = run.series(&plot, arm.name());
        run.point(series, background as f64, value);
    };
    let share = |title: &str| Plot::line(title, x, ("share", "%"));
    let of_spread = format!("Share, with up to {spread:?} more to each server");
    point(share(&of_spread), 100.0 * flow.share());
    if spread == NONE {
        return;
    }
    point(share("Share of the foreground flow"), 100.0 * flow.share());
    let together = (flow.rates.0 + flow.rates.1) / 1e6;
    point(Plot::line("All together", x, ("throughput", "Mb/s")), together);
    let losses = flow.recoveries / flow.bytes * 1e6;
    point(Plot::line("Losses of the foreground flow", x, ("recoveries", "/MB")), losses);
}

fn check(run: &mut Run, background: usize, [ours, theirs, _]: &[Vec<Flow>; 3]) {
    let of = |flows: &[Flow], what| mean(&flows.iter().map(what).collect::<Vec<_>>());
    let ratio = |what: fn(&Flow) -> f64| of(ours, what) / of(theirs, what);
    for (what, ratio) in [("share", ratio(Flow::share)), ("rate at like losses", ratio(Flow::law))]
    {
        let name = format!("{what} among {background}, of a TCP flow's");
        run.check(&name, ratio, Bound::Within(1.0 - APART, 1.0 + APART));
    }
}

/// What the foreground flow is.
#[derive(Clone, Copy)]
enum Arm {
    Trickles,
    Tcp,
    /// TCP whose server hears of everything a little later.
    LateTcp,
}

const ARMS: [Arm; 3] = [Arm::Trickles, Arm::Tcp, Arm::LateTcp];

impl Arm {
    fn name(self) -> &'static str {
        match self {
            Arm::Trickles => "Trickles",
            Arm::Tcp => "TCP",
            Arm::LateTcp => "TCP, answered later",
        }
    }
}

struct World {
    net: Replicas,
    _servers: [Service; 3],
    /// Those of b1 to b3.
    wires: [Emulator; 3],
}

/// A server's.
fn wire(spread: Duration, late: Duration) -> LinkConfig {
    let (delay, jitter) = (spread / 2 + late, spread / 2);
    LinkConfig { rate: Some(WIRE), delay, jitter, ..LinkConfig::default() }
}

impl World {
    fn build(net: Replicas) -> Result<World> {
        net.sparse("file", FILE)?;
        let wire = |n| net.net.emulate_wire_b(n, wire(NONE, NONE));
        let wires = [wire(1)?, wire(2)?, wire(3)?];
        net.lead_to(0)?;
        for host in net.net.hosts_b() {
            host.set_congestion_control(CONGESTION_CONTROL)?;
            host.ip(&[ONE_BY_ONE.to_owned()])?;
        }
        let servers = [net.serve(0, &[])?, net.serve(1, &[])?, net.serve(2, &[])?];
        Ok(World { net, _servers: servers, wires })
    }

    /// Packets take up to so much longer to each server from now on.
    fn spread(&self, spread: Duration) -> Result<()> {
        for (emulator, late) in self.wires.iter().zip([NONE, NONE, LATE]) {
            emulator.set(Direction::AtoB, wire(spread, late))?;
        }
        Ok(())
    }

    /// Has them compete for a while.
    fn compete(
        &self,
        arm: Arm,
        background: usize,
        (warm_up, window): (Duration, Duration),
        seed: u64,
    ) -> Result<Flow> {
        let request = get("file");
        let foreground = Fetches { request: &request, clients: 1, warm_up, window };
        let others = Fetches { clients: background, warm_up: LEAD + warm_up, ..foreground };
        let ([a1, a2, _], [b1, b2, b3]) = (self.net.net.hosts_a(), self.net.net.hosts_b()) else {
            anyhow::bail!("three hosts a side were asked for");
        };
        let [to, to_others, to_late] =
            [SERVICE, b2.v4(), b3.v4()].map(|ip| SocketAddr::new(ip.into(), PORT));
        let by_tcp = |to, server| -> Result<(Fetched, u64)> {
            let before = recoveries(server)?;
            let fetched = foreground.by_tcp(a1, to)?;
            Ok((fetched, recoveries(server)? - before))
        };
        thread::scope(|scope| {
            let others = scope.spawn(|| others.by_tcp(a2, to_others));
            thread::sleep(LEAD);
            let (ours, recoveries) = match arm {
                Arm::Tcp => by_tcp(to, b1)?,
                Arm::LateTcp => by_tcp(to_late, b3)?,
                Arm::Trickles => {
                    let mut clients = Trickles::open(self.net.net.gateway_a(), to, seed)?;
                    let fetched = foreground.by_trickles(&mut clients)?;
                    let recoveries = fetched.recoveries;
                    (fetched, recoveries)
                }
            };
            let others = others.join().ok().context("the background's thread panicked")??;
            anyhow::ensure!(ours.failed + others.failed == 0, "a flow broke");
            Ok(Flow {
                rates: (ours.mbps() * 1e6, others.mbps() * 1e6),
                bytes: ours.ever as f64,
                recoveries: recoveries as f64,
            })
        })
    }
}

/// How often the kernel's TCP of this host has recovered from losses.
fn recoveries(host: &Host) -> Result<u64> {
    let read = || std::fs::read_to_string("/proc/thread-self/net/netstat");
    let text = host.netns().enter(read)??;
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = lines.next().zip(lines.next()).context("the kernel counts no TCP")?;
    let mut counters = names.split_whitespace().zip(values.split_whitespace());
    let counter = counters.find(|(name, _)| *name == "TCPSackRecovery");
    Ok(counter.context("the kernel does not count TCP's recoveries")?.1.parse()?)
}
