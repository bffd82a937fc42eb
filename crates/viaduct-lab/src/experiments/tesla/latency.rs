//! Figure 8: one-byte round trips per second.

use super::measured::{by_turns, ratios};
use super::setups::{Load, OFFLOADED, PASSING, Setup, Testbed};
use super::undisturbed::undisturbed;
use super::world::{CONGESTION_CONTROL, Network, World};
use crate::bench::Content;
use crate::experiments::prelude::*;

/// Configurations in display order.
const ALL: [Setup; 6] =
    [Setup::Plain, Setup::TcpProxies, Setup::UnixProxies, PASSING, OFFLOADED, Setup::Crypt];
const PLAIN: usize = 0;
const UNIX: usize = 2;
const VIADUCT: usize = 3;
const OFFLOAD: usize = 4;
/// Measurements of each configuration in a round; the configurations take turns.
const TURNS: usize = 3;
/// Maximum microseconds that each of two ends may add to a one-byte round trip.
const MAX_ADDED: f64 = 12.0;
/// Minimum rate relative to plain relays over UNIX-domain sockets.
const OF_UNIX: f64 = 0.95;
/// Maximum wake-ups of an offloaded one-byte round trip relative to a plain one; neither involves
/// the master.
const MAX_WAKE_UPS: f64 = 1.1;

pub(in crate::experiments) const ABOUT: About = About {
    name: "tesla/latency",
    title: "One-byte round trips a second: plain, through proxies, and with handlers",
    figure: "TESLA, Figure 8",
    finding: "TESLA reaches 4000 one-byte round trips a second, the plain program 7000, and \
              TCP proxies slightly fewer than TESLA; encryption adds no cost.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let _undisturbed = undisturbed(run);
    let rounds = run.choose(15, 3);
    run.param("rounds", rounds);
    run.congestion_control(CONGESTION_CONTROL);
    run.steps(2 * rounds);
    for network in [Network::Loopback, Network::Link] {
        measure(run, network, rounds)?;
    }
    Ok(())
}

fn measure(run: &mut Run, network: Network, rounds: usize) -> Result<()> {
    let world = World::build(network, run.journal())?;
    let load =
        Load { program: "volley", block: 1, content: Content::Same, seconds: 0.15, warm_up: 0.05 };
    let found = by_turns(run, &world, &ALL, &[load], (rounds, TURNS))?.remove(0);
    let title = format!("One-byte round trips, {}", network.name());
    let plot = Plot::histogram(&title, ("", ""), ("one-byte round trips", "a second"));
    let bars = ALL.iter().zip(&found).map(|(setup, rates)| (setup.name(), median(rates)));
    run.plot_bars(&plot, "median", bars);
    let over = |n: usize, under: usize| median(&ratios(&found[n], &found[under]));
    let name = |what: &str| format!("{}: {what}", network.name());
    run.at_least(&name("offloaded relative to plain"), over(OFFLOAD, PLAIN), 0.95);
    run.at_least(&name("viaduct relative to plain"), over(VIADUCT, PLAIN), 0.75);
    run.at_least(&name("viaduct relative to UNIX proxies"), over(VIADUCT, UNIX), OF_UNIX);
    let pairs = found[VIADUCT].iter().zip(&found[PLAIN]);
    let added: Vec<f64> = pairs.map(|(ours, plain)| (1e6 / ours - 1e6 / plain) / 2.0).collect();
    let what = name("microseconds that an end adds to a one-byte round trip");
    run.at_most(&what, median(&added), MAX_ADDED);
    costs(run, network, &world, &load)
}

/// Measures the cost of one-byte round trips, one configuration at a time: wake-ups of threads and
/// processor time, neither of which depends much on other load.
fn costs(run: &mut Run, network: Network, world: &World, load: &Load) -> Result<()> {
    let costs = ALL.iter().zip(0..).map(|(&setup, n)| Testbed::build(world, setup, n)?.cost(load));
    let costs = costs.collect::<Result<Vec<_>>>()?;
    let title = format!("Costs of a one-byte round trip, {}", network.name());
    let plot = Plot::histogram(&title, ("", ""), ("a one-byte round trip", ""));
    for (n, (setup, cost)) in ALL.iter().zip(&costs).enumerate() {
        let values = [
            ("wake-ups", cost.scheduled),
            ("processor time, microseconds", cost.micros),
            ("instructions, thousands", cost.instructions / 1e3),
        ];
        for (what, value) in values.into_iter().filter(|(_, value)| value.is_finite()) {
            run.plot_bar(&plot, what, (n, setup.name()), value);
        }
    }
    let ratio = costs[OFFLOAD].scheduled / costs[PLAIN].scheduled;
    let name = format!(
        "{}: wake-ups of an offloaded one-byte round trip, relative to a plain one",
        network.name()
    );
    run.at_most(&name, ratio, MAX_WAKE_UPS);
    Ok(())
}
