//! Benefit of handlers at both ends: `stripe` over two links, and `compress` over one.

use super::measured::medians;
use super::setups::{Load, Setup};
use super::undisturbed::undisturbed;
use super::world::{CONGESTION_CONTROL, Network, World};
use crate::bench::Content;
use crate::experiments::prelude::*;

const COMPRESSED: [Setup; 2] = [Setup::Plain, Setup::Viaduct("compress", &["+compress"])];
/// The client has an address on each link; see [`World`].
const STRIPED: [Setup; 2] =
    [Setup::Plain, Setup::Viaduct("stripe", &["+stripe:from=10.1.0.1+10.4.0.1"])];
const BLOCK: usize = 64 << 10;

pub(in crate::experiments) const ABOUT: About = About {
    name: "tesla/handlers",
    title: "Gain from compression and striping on links of 100 Mb/s",
    figure: "TESLA, sections 1 and 4.3",
    finding: "Services such as striping one flow over several connections fit the session layer.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let _undisturbed = undisturbed(run);
    run.congestion_control(CONGESTION_CONTROL);
    let rounds = run.choose(9, 3);
    run.param("rounds", rounds);
    run.steps(3 * rounds);
    let plot = Plot::histogram("Throughput", ("", ""), ("throughput", "MB/s"));
    let cases = [
        (Network::Link, &COMPRESSED, Content::Text, "compress relative to plain, text", 2.0),
        (
            Network::Link,
            &COMPRESSED,
            Content::Random,
            "compress relative to plain, random bytes",
            0.97,
        ),
        (
            Network::TwoLinks,
            &STRIPED,
            Content::Same,
            "stripe over two links, relative to one link",
            1.7,
        ),
    ];
    for (n, (network, setups, content, name, least)) in cases.into_iter().enumerate() {
        let world = World::build(network, run.journal())?;
        let (seconds, warm_up) = (run.choose(2.0, 1.0), 0.5);
        let load = Load { program: "read", block: BLOCK, content, seconds, warm_up };
        let found = medians(run, &world, setups, load, rounds)?;
        for (m, setup) in setups.iter().enumerate() {
            let label = format!("{}, {}", setup.name(), content.name());
            run.plot_bar(&plot, "median", (2 * n + m, &label), found[m] / 1e6);
        }
        run.at_least(name, found[1] / found[0], least);
    }
    Ok(())
}
