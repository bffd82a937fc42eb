//! Figures 6 and 7: throughput by the block size of the programs' reads and writes.

use super::measured::{by_turns, ratios};
use super::setups::{Load, OFFLOADED, PASSING, Setup};
use super::undisturbed::undisturbed;
use super::world::{CONGESTION_CONTROL, Network, World};
use crate::bench::Content;
use crate::experiments::prelude::*;

/// Configurations in display order.
const NULL: [Setup; 5] = [Setup::Plain, Setup::TcpProxies, Setup::UnixProxies, PASSING, OFFLOADED];
const ENCRYPTING: [Setup; 2] = [Setup::Stunnel, Setup::Crypt];
const PLAIN: usize = 0;
const TCP: usize = 1;
const UNIX: usize = 2;
const VIADUCT: usize = 3;
const OFFLOAD: usize = 4;
/// Block sizes in bytes.
const BLOCKS: [usize; 7] = [1, 10, 100, 1_000, 8 << 10, 64 << 10, 100_000];
const QUICK: [usize; 2] = [1, 64 << 10];

pub(in crate::experiments) const ABOUT: About = About {
    name: "tesla/bandwidth",
    title: "Throughput by block size: plain, through proxies, and with handlers",
    figure: "TESLA, Figures 6 and 7",
    finding: "On the loopback interface, TCP proxies reduce the throughput of large blocks by \
              nearly two thirds, TESLA by a little less; over 100 Mb/s neither costs much.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let _undisturbed = undisturbed(run);
    // Rounds on the loopback interface and over the link; the link's rate limit leaves
    // little variance.
    let rounds = run.choose([8, 3], [2, 1]);
    let blocks = run.choose(&BLOCKS[..], &QUICK[..]);
    run.param("rounds_loopback_and_link", rounds.to_vec());
    run.congestion_control(CONGESTION_CONTROL);
    run.steps((2 * rounds[0] + rounds[1]) * blocks.len());
    for (network, rounds) in [Network::Loopback, Network::Link].into_iter().zip(rounds) {
        let found = null(run, network, blocks, rounds)?;
        check(run, network, &found);
        check_offloaded(run, network, &found);
    }
    encrypting(run, blocks, rounds[0])
}

/// Block size, and the throughput of each configuration in each round.
type Row = (usize, Vec<Vec<f64>>);

fn null(run: &mut Run, network: Network, blocks: &[usize], rounds: usize) -> Result<Vec<Row>> {
    let title = format!("Throughput, {}", network.name());
    measure(run, network, &NULL, &title, blocks, rounds)
}

fn measure(
    run: &mut Run,
    network: Network,
    setups: &[Setup],
    title: &str,
    blocks: &[usize],
    rounds: usize,
) -> Result<Vec<Row>> {
    let world = World::build(network, run.journal())?;
    let loads: Vec<Load> = blocks.iter().map(|&block| load(block)).collect();
    let found = by_turns(run, &world, setups, &loads, (rounds, TURNS))?;
    let plot = Plot::line(title, ("block", "bytes"), ("throughput", "MB/s")).log_x().log_y();
    for (&block, found) in blocks.iter().zip(&found) {
        for (setup, rates) in setups.iter().zip(found) {
            run.plot_point(&plot, setup.name(), (block as f64, median(rates) / 1e6));
        }
    }
    Ok(blocks.iter().copied().zip(found).collect())
}

fn load(block: usize) -> Load {
    Load { program: "read", block, content: Content::Same, seconds: 0.15, warm_up: 0.05 }
}

/// Measurements of each configuration in a round; the configurations take turns.
const TURNS: usize = 2;

/// Number of standard errors by which the lowest of seven values (one per block size) falls below
/// the mean in one case of twenty.
const LOWEST_OF_SEVEN: f64 = 2.44;

fn check(run: &mut Run, network: Network, rows: &[Row]) {
    for (block, found) in rows {
        let name = |what: &str| format!("{}, blocks of {block}: {what}", network.name());
        let mut check = |what, over: usize, under: usize, least: f64| {
            let ratio = median(&ratios(&found[over], &found[under]));
            run.at_least(&name(what), ratio, least);
        };
        check("viaduct relative to UNIX proxies", VIADUCT, UNIX, 0.97);
        if *block >= 8 << 10 {
            check(
                "viaduct relative to TCP proxies",
                VIADUCT,
                TCP,
                if network == Network::Loopback { 1.0 } else { 0.97 },
            );
        }
        if *block == 64 << 10 {
            let least = if network == Network::Loopback { 0.6 } else { 0.97 };
            check("viaduct relative to plain", VIADUCT, PLAIN, least);
        }
    }
}

/// Checks an offloaded flow. Its program uses the kernel's own socket, so a deficit can only be
/// noise: the mean over all block sizes must reach the bound, and each block size must reach it
/// within the variation between rounds.
fn check_offloaded(run: &mut Run, network: Network, rows: &[Row]) {
    let least = Bound::AtLeast(0.95);
    let mut logarithms = Vec::new();
    for (block, found) in rows {
        let pairs = ratios(&found[OFFLOAD], &found[PLAIN]);
        let ratio = median(&pairs);
        let off = median_error(&pairs) / ratio;
        let name = format!("{}, blocks of {block}: offloaded relative to plain", network.name());
        run.param(&name, format!("{ratio:.3} ± {off:.3}"));
        run.check(
            &format!("{name}, upper end of the 95 % interval"),
            ratio * (1.0 + LOWEST_OF_SEVEN * off),
            least,
        );
        logarithms.push(ratio.ln());
    }
    let name = format!("{}, all blocks: offloaded relative to plain", network.name());
    run.check(&name, mean(&logarithms).exp(), least);
}

/// Draws the right graph of Figure 6.
fn encrypting(run: &mut Run, blocks: &[usize], rounds: usize) -> Result<()> {
    let title = "Throughput, loopback, encrypting";
    let rows = measure(run, Network::Loopback, &ENCRYPTING, title, blocks, rounds)?;
    for (block, found) in rows {
        let name = format!("loopback, blocks of {block}: crypt relative to stunnel");
        run.at_least(&name, median(&ratios(&found[1], &found[0])), 1.0);
    }
    Ok(())
}
