//! Figure 13: the share of one flow of Trickles among TCP's, and what a flow of TCP gets in its place.
//!
//! ```text
//!   foreground   Trickles, or a1's TCP ─┐                            ┌─ b1 serve
//!                                       ├─ gwa ══ 100 Mb/s ══ gwb ──┤
//!   background   a2: 1 to 10 of reno   ─┘                            └─ b2 serve, over TCP
//! ```

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use viaduct_proto::link::LinkConfig;

use super::download::By;
use super::replicas::{Replicas, SERVICE, Service};
use super::served::{CONGESTION_CONTROL, PORT, get};
use crate::emulator::Direction;
use crate::experiment::{About, Bound, Experiment, Plot, Run};
use crate::experiments::statistics::mean;
use crate::load::{Fetches, Trickles};
use crate::topology::Wan;

/// The experiment.
pub(in crate::experiments) struct Friendliness;

/// As the paper has it: hosts that are near each other, and what a switch queues for 100 Mb/s.
const LINK: &str = "rate=100M,delay=1ms,queue=250kB";
/// The way of requests and acknowledgements, on which not each takes the same time: one jitter after the other in the
/// rounds. Kernels in one machine answer within 20 µs, in step with what leaves the queue, and a process after 0.1 ms, when
/// one more has left. Where packets keep step that is worth twice a flow's share to whoever is late, and a quarter with
/// half a millisecond of jitter; with a whole one late answers lose as much, for they come in bunches
/// (`docs/trickles.md`). No path has one jitter, and none of them is the measure.
const BACK: [&str; 3] = [
    "rate=100M,delay=1ms,jitter=1ms,queue=250kB",
    "rate=100M,delay=1ms,jitter=500us,queue=250kB",
    "rate=100M,delay=1ms,jitter=750us,queue=250kB",
];
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
        let (rounds, warm_up, window) = run.choose((3, 5, 25), (2, 2, 6));
        let [warm_up, window] = [warm_up, window].map(Duration::from_secs);
        run.param("link", LINK);
        run.param("links_back", BACK.join("; "));
        run.param("rounds", rounds);
        run.param("seconds_each", window.as_secs());
        run.congestion_control(CONGESTION_CONTROL);
        run.steps(flows.len() * 2 * rounds);
        let wan = Wan::emulated(link(LINK)?, run.seed());
        let world = World::build(Replicas::build(2, wan, run.journal())?)?;
        let plot =
            Plot::line("Share of the foreground flow", ("background flows", ""), ("share", "%"));
        let all = Plot::line("All together", ("background flows", ""), ("throughput", "Mb/s"));
        for &background in flows {
            let mut shares = [Vec::new(), Vec::new()];
            // In turn, so that what the machine does besides falls on both.
            for (round, back) in (0..rounds).zip(BACK.iter().cycle()) {
                world.lead_back(link(back)?)?;
                for (by, shares) in [By::Trickles, By::Tcp].into_iter().zip(&mut shares) {
                    run.step(&format!("{} among {background}, {round}", by.name()))?;
                    let seed = run.seed() + round as u64;
                    let (ours, others) = world.compete(by, background, (warm_up, window), seed)?;
                    let share = ours / (ours + others);
                    shares.push(share);
                    let series = run.series(&plot, by.name());
                    run.point(series, background as f64, 100.0 * share);
                    let series = run.series(&all, by.name());
                    run.point(series, background as f64, (ours + others) / 1e6);
                }
            }
            let [ours, theirs] = shares.map(|shares| mean(&shares));
            let name = format!("share among {background}, of a TCP flow's");
            run.check(&name, ours / theirs, Bound::Within(1.0 - APART, 1.0 + APART));
        }
        Ok(())
    }
}

struct World {
    net: Replicas,
    _servers: [Service; 2],
}

fn link(text: &str) -> Result<LinkConfig> {
    text.parse().context("a link config of this module")
}

impl World {
    fn build(net: Replicas) -> Result<World> {
        net.sparse("file", FILE)?;
        for host in net.net.hosts_b() {
            host.ip(&[ONE_BY_ONE.to_owned()])?;
        }
        let servers = [net.serve(0, &[])?, net.serve(1, &[])?];
        Ok(World { net, _servers: servers })
    }

    /// What requests and acknowledgements go over from now on.
    fn lead_back(&self, link: LinkConfig) -> Result<()> {
        let emulator = self.net.net.emulator().context("the link is emulated")?;
        Ok(emulator.set(Direction::AtoB, link)?)
    }

    /// Bits a second of the foreground flow, and of all others.
    fn compete(
        &self,
        by: By,
        background: usize,
        (warm_up, window): (Duration, Duration),
        seed: u64,
    ) -> Result<(f64, f64)> {
        let request = get("file");
        let foreground = Fetches { request: &request, clients: 1, warm_up, window };
        let others = Fetches { clients: background, warm_up: LEAD + warm_up, ..foreground };
        let ([a1, a2], [_, b2]) = (self.net.net.hosts_a(), self.net.net.hosts_b()) else {
            anyhow::bail!("two hosts a side were asked for");
        };
        let (to, to_others) = (SERVICE.into(), b2.v4().into());
        let [to, to_others] = [to, to_others].map(|ip| SocketAddr::new(ip, PORT));
        thread::scope(|scope| {
            let others = scope.spawn(|| others.by_tcp(a2, to_others));
            thread::sleep(LEAD);
            let ours = match by {
                By::Tcp => foreground.by_tcp(a1, to)?,
                By::Trickles => {
                    let mut clients = Trickles::open(self.net.net.gateway_a(), to, seed)?;
                    foreground.by_trickles(&mut clients)?
                }
            };
            let others = others.join().ok().context("the background's thread panicked")??;
            anyhow::ensure!(ours.failed + others.failed == 0, "a flow broke");
            Ok((ours.mbps() * 1e6, others.mbps() * 1e6))
        })
    }
}
