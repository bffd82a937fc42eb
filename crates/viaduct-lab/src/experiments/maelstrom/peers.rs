//! Other projects' programs over the same link: hysteria 2 and kcptun, compared with gateways.

use super::{Case, cases, describe, world_with};
use crate::experiments::prelude::*;
use crate::gateways::Gateway;
use crate::topology::cpu_time;
use crate::topology::programs::{Peer, PeerTunnel};

const CASES: [Case; 4] = [
    ("no loss", "0", true),
    ("1 % single", "1%", true),
    ("5 % single", "5%", false),
    ("1 %, bursts of 30", "1%x30", false),
];
/// Minimum throughput relative to hysteria's.
const RATE: f64 = 1.0;
/// Maximum processor time per byte relative to hysteria's.
const COST: f64 = 0.1;
/// Maximum CPU-seconds per GB of both gateways together without loss.
const CLEAN: f64 = 2.5;
/// The same at single losses of 1 %.
const LOSSY: f64 = 4.0;
/// MTU of the hosts: hysteria's QUIC needs packets of 1,228 bytes, so the 1,200 of the other
/// experiments is too small for it.
const HOST_MTU: u32 = 1500;
/// Bits per second to which senders are limited while the gateways' cost is checked.
const HELD: u64 = 180_000_000;

/// Throughput in Mb/s, and CPU-seconds per GB.
type Figure = (f64, f64);

pub(in crate::experiments) const ABOUT: About = About {
    name: "maelstrom/peers",
    title: "One flow over a lossy link, with gateways and with other projects' programs",
    figure: "beyond Maelstrom: the alternatives of its users today",
    finding: "Tunnels that replace TCP's sender with their own fill a lossy link, but take ten \
              times the processor time.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let (seconds, warm_up) = run.choose((20, 8), (8, 5));
    let rounds = run.choose(5, 1);
    describe(run, (seconds, warm_up), rounds);
    run.param("mtu", HOST_MTU);
    run.param("load", "iperf3, one cubic flow; a peer carries its control connection as well");
    run.congestion_control("cubic");
    let mut peers = vec![Peer::Hysteria, Peer::Kcptun];
    for peer in &peers {
        let there = if peer.find().is_some() { "installed" } else { "not installed" };
        run.param(peer.name(), there);
    }
    peers.retain(|peer| peer.find().is_some());
    let cases = cases(run, &CASES);
    run.steps(rounds * cases.len() * (2 + peers.len()));
    let iperf = Iperf::tcp("cubic", seconds, warm_up);
    for (x, (case, loss, _)) in cases.into_iter().enumerate() {
        let (mut ours, mut held): (Vec<Figure>, Vec<Figure>) = (Vec::new(), Vec::new());
        let mut theirs: Vec<Vec<Figure>> = vec![Vec::new(); peers.len()];
        for round in 0..rounds {
            let mut world = world_with(run, HOST_MTU, loss, round)?;
            for (peer, figures) in peers.iter().zip(&mut theirs) {
                run.step(&format!("{case}, {}", peer.name()))?;
                figures.push(by_peer(&world, *peer, &iperf)?);
            }
            world.protect(&GatewaySpec::default())?;
            run.step(&format!("{case}, gateways"))?;
            ours.push(by_gateways(&world, &iperf)?);
            run.step(&format!("{case}, gateways, senders limited to 180 Mb/s"))?;
            held.push(by_gateways(&world, &iperf.clone().paced(HELD, 16_384))?);
        }
        let of = |figures: &[Figure]| -> Figure {
            (median_of(figures, |(rate, _)| *rate), median_of(figures, |(_, cost)| *cost))
        };
        let (ours, held) = (of(&ours), of(&held));
        let theirs: Vec<Figure> = theirs.iter().map(|figures| of(figures)).collect();
        let rates = Plot::histogram("Throughput", ("loss", ""), ("throughput", "Mb/s"));
        let title = "Processor time, both ends";
        let costs = Plot::histogram(title, ("loss", ""), ("CPU-seconds per GB", ""));
        let others = peers.iter().zip(&theirs).map(|(peer, figure)| (peer.name(), *figure));
        for (name, (rate, cost)) in [("gateways", ours)].into_iter().chain(others) {
            run.plot_bar(&rates, name, (x, case), rate);
            run.plot_bar(&costs, name, (x, case), cost);
        }
        if let Some(at) = peers.iter().position(|peer| *peer == Peer::Hysteria) {
            let (rate, cost) = theirs[at];
            run.at_least(&format!("{case}: throughput, relative to hysteria"), ours.0 / rate, RATE);
            run.at_most(
                &format!("{case}: CPU-seconds per GB, relative to hysteria"),
                ours.1 / cost,
                COST,
            );
        }
        let most = match loss {
            "0" => CLEAN,
            "1%" => LOSSY,
            _ => continue,
        };
        let name = format!("{case}: CPU-seconds per GB of both gateways at 180 Mb/s");
        run.at_most(&name, held.1, most);
    }
    Ok(())
}

fn by_peer(world: &World, peer: Peer, iperf: &Iperf) -> Result<Figure> {
    let hosts = (world.a1(), world.b1());
    let tunnel = PeerTunnel::start(peer, hosts, iperf.port, 200)?;
    let before = tunnel.cpu();
    let report = iperf.run_by(world.a1(), world.b1(), world.a1().v4().into())?;
    Ok(figure(report.received, iperf, tunnel.cpu() - before))
}

fn by_gateways(world: &World, iperf: &Iperf) -> Result<Figure> {
    let gateways = world.running()?;
    let pid = |gateway: &Gateway| -> Result<u32> {
        let pid = gateway.pid().context("the gateway does not run")?;
        Ok(pid.as_raw_nonzero().get().cast_unsigned())
    };
    let pids = [pid(&gateways.a)?, pid(&gateways.b)?];
    let time = || pids.iter().map(|pid| cpu_time(*pid)).sum::<Duration>();
    let before = time();
    let report = iperf.run(world.a1(), world.b1())?;
    Ok(figure(report.received, iperf, time() - before))
}

/// Returns the rate and the cost per GB; the warm-up is assumed to run at the same rate.
fn figure(rate: f64, iperf: &Iperf, cpu: Duration) -> Figure {
    let bytes = rate / 8.0 * f64::from(iperf.seconds + iperf.omit);
    (rate / 1e6, cpu.as_secs_f64() / (bytes / 1e9).max(1e-9))
}
