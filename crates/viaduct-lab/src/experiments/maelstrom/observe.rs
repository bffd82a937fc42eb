//! Predictions of an observing gateway, compared with the results after repairs are enabled.

use rustix::process::Signal;

use super::{Case, cases, overhead, world};
use crate::experiments::prelude::*;

const CASES: [Case; 3] = [
    ("1 % single", "1%", true),
    ("1 %, bursts of 8", "1%x8", false),
    ("1 %, bursts of 30", "1%x30", true),
];
/// Maximum error of the predicted recovery share.
const OFF: f64 = 0.02;
/// Maximum bytes of names per data byte.
const BYTES: f64 = 0.004;
/// Rate of the stream, in bits of payload per second.
const RATE: u64 = 150_000_000;
/// Bytes of payload per datagram.
const LENGTH: u32 = 1_172;

pub(in crate::experiments) const ABOUT: About = About {
    name: "maelstrom/observe",
    title: "Predictions of an observing gateway, and results after repairs are enabled",
    figure: "beyond Maelstrom: the effect of a code is known before it is chosen",
    finding: "An engineer has to guess a code's parameters from a table.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let seconds = run.choose(60, 15);
    let rounds = run.choose(5, 1);
    run.param("link", "200 Mb/s, 50 ms one way, queue 100 ms");
    run.param("mtu", "hosts 1200, WAN 1500");
    run.param("load", "UDP, 150 Mb/s of 1200-byte packets");
    run.param("seconds", seconds);
    run.param("rounds", rounds);
    let cases = cases(run, &CASES);
    run.steps(2 * rounds * cases.len());
    let stream = Iperf::udp(RATE, LENGTH, seconds);
    let mut names = Vec::new();
    for (x, (name, loss, _)) in cases.into_iter().enumerate() {
        let (mut predicted, mut measured) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            let mut world = world(run, loss, round)?;
            let before = machine(world.dumbbell.gateway_a())?;
            world.protect(&GatewaySpec::fec("code = \"observe\"\n"))?;
            if x + round == 0 {
                let same = f64::from(u8::from(before == machine(world.dumbbell.gateway_a())?));
                run.at_least(
                    "the machine's state is unchanged except for socket and taps",
                    same,
                    1.0,
                );
            }
            run.step(&format!("{name}, observed"))?;
            send(&world, &stream)?;
            let status = world.running()?.a.status()?;
            names.push(overhead(&SenderStats::default(), &status.peer().sender));
            let trial = status.trial("auto").context("the gateway has predicted nothing")?;
            ensure!(trial.lost > 100, "{name}: too few losses to compare: {}", trial.lost);
            predicted.push(trial.recovered);
            repair(&world)?;
            run.step(&format!("{name}, repaired"))?;
            let before = world.receiver()?.link;
            send(&world, &stream)?;
            let after = world.receiver()?.link;
            let lost = (after.lost - before.lost).max(1);
            measured.push((after.recovered - before.recovered) as f64 / lost as f64);
        }
        let (predicted, measured) = (median(&predicted), median(&measured));
        let plot = Plot::histogram("Recovered by auto", ("loss", ""), ("share of losses", "%"));
        for (series, value) in [("predicted", predicted), ("measured", measured)] {
            run.plot_bar(&plot, series, (x, name), 100.0 * value);
        }
        let check = format!("{name}: share recovered, predicted minus measured");
        run.within(&check, predicted - measured, -OFF, OFF);
    }
    run.at_most("name bytes per data byte", median(&names), BYTES);
    Ok(())
}

/// Sends the stream, and waits until the reports on it have arrived.
fn send(world: &World, stream: &Iperf) -> Result<()> {
    stream.run(world.a1(), world.b1())?;
    settle()
}

fn repair(world: &World) -> Result<()> {
    let gateways = world.running()?;
    for gateway in [&gateways.a, &gateways.b] {
        let text = fs::read_to_string(gateway.config())?;
        fs::write(gateway.config(), text.replace("\"observe\"", "\"auto\""))?;
        gateway.signal(Signal::HUP)?;
    }
    settle()
}

/// Waits until reports have arrived and the fates of packets are settled.
fn settle() -> Result<()> {
    Ok(stop::sleep(Duration::from_millis(2_500))?)
}

/// Returns parts of the system state that a gateway may change, as the system's own tools show
/// them: routes, rules of routing and nftables, offloads of `wan0`, sysctls of IP, and the names of
/// all interfaces.
fn machine(node: &Node) -> Result<String> {
    let links = node.run("ip", &["-br", "link"])?;
    let links: Vec<_> = links.lines().filter_map(|line| line.split_whitespace().next()).collect();
    Ok([
        node.run("ip", &["-4", "route"])?,
        node.run("ip", &["-6", "route"])?,
        node.run("ip", &["rule"])?,
        node.run("nft", &["list", "ruleset"])?,
        node.run("ethtool", &["-k", "wan0"])?,
        node.run("sysctl", &["-a", "--pattern", "net.ipv[46].conf"])?,
        format!("{links:?}"),
    ]
    .concat())
}
