//! Figure 8: volleys of one byte a second.

use anyhow::Result;

use super::measured::medians;
use super::undisturbed::undisturbed;
use super::ways::{Load, OFFLOADED, PASSING, Way};
use super::world::{Between, CONGESTION_CONTROL, World};
use crate::bench::Content;
use crate::experiment::{About, Bound, Experiment, Plot, Run};

/// The experiment.
pub(in crate::experiments) struct Latency;

/// In the order in which they are shown.
const ALL: [Way; 6] =
    [Way::Plain, Way::TcpProxies, Way::UnixProxies, PASSING, OFFLOADED, Way::Crypt];
const PLAIN: usize = 0;
const VIADUCT: usize = 3;
const OFFLOAD: usize = 4;

impl Experiment for Latency {
    fn about(&self) -> About {
        About {
            name: "tesla/latency",
            title: "One-byte volleys a second: plain, through proxies, and with handlers",
            figure: "TESLA, Figure 8",
            finding: "TESLA does 4000 volleys a second where the plain program does 7000, and a \
                      little more than through TCP proxies; encryption costs nothing beyond that.",
        }
    }

    fn run(&self, run: &mut Run) -> Result<()> {
        let _undisturbed = undisturbed(run);
        let rounds = run.choose(15, 3);
        run.param("rounds", rounds);
        run.congestion_control(CONGESTION_CONTROL);
        run.steps(2 * rounds);
        for between in [Between::Loopback, Between::Link] {
            measure(run, between, rounds)?;
        }
        Ok(())
    }
}

fn measure(run: &mut Run, between: Between, rounds: usize) -> Result<()> {
    let world = World::build(between, run.journal())?;
    let seconds = run.choose(0.5, 0.3);
    let content = Content::Same;
    let load = Load { program: "volley", block: 1, content, seconds, warm_up: 0.1 };
    let found = medians(run, &world, &ALL, load, rounds)?;
    let title = format!("Volleys, {}", between.name());
    let plot = Plot::histogram(&title, ("", ""), ("volleys", "a second"));
    let series = run.series(&plot, "median");
    for (n, way) in ALL.iter().enumerate() {
        run.labelled_point(series, n as f64, found[n], way.name());
    }
    // A quick run is short, and beside other tests: on two cores that somebody else uses as well, each
    // of the four further wake-ups of a volley waits for its turn.
    let (offloaded, passing) = run.choose((0.95, 0.75), (0.75, 0.3));
    let over = |n: usize| found[n] / found[PLAIN];
    let name = |what: &str| format!("{}: {what} over plain", between.name());
    run.check(&name("offloaded"), over(OFFLOAD), Bound::AtLeast(offloaded));
    run.check(&name("viaduct"), over(VIADUCT), Bound::AtLeast(passing));
    Ok(())
}
