//! Split connections compared with end-to-end ones, both under adaptive repairs.

use super::{Case, cases, describe, medians, world};
use crate::experiments::prelude::*;

const CASES: [Case; 4] = [
    ("no loss", "0", true),
    ("1 % single", "1%", true),
    ("5 % single", "5%", false),
    ("1 %, bursts of 30", "1%x30", false),
];
/// Minimum throughput of a split connection relative to an end-to-end one.
const SHARE: f64 = 0.95;

pub(in crate::experiments) const ABOUT: About = About {
    name: "maelstrom/split",
    title: "Split and end-to-end connections under the same repairs",
    figure: "Maelstrom 4.2: split mode and end-to-end mode",
    finding: "Split mode hides the long path from the hosts; the repairs are the same.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let (seconds, warm_up) = run.choose((20, 10), (8, 6));
    let rounds = run.choose(5, 1);
    describe(run, (seconds, warm_up), rounds);
    run.param("code", "auto");
    run.congestion_control("cubic");
    let cases = cases(run, &CASES);
    run.steps(3 * rounds * cases.len());
    let iperf = Iperf::tcp("cubic", seconds, warm_up);
    for (x, (case, loss, _)) in cases.into_iter().enumerate() {
        let [plain, whole, split] = medians(rounds, |round| {
            let mut rates = [0.0; 3];
            let mut world = world(run, loss, round)?;
            let ways = [
                ("plain", None),
                ("end to end", Some(GatewaySpec::default())),
                ("split", Some(GatewaySpec::default().split().congestion_control("cubic"))),
            ];
            for (rate, (way, spec)) in rates.iter_mut().zip(ways) {
                run.step(&format!("{case}, {way}"))?;
                if let Some(spec) = spec {
                    world.protect(&spec)?;
                }
                *rate = world.throughput(&iperf)?;
            }
            Ok(rates)
        })?;
        let plot = Plot::histogram("One cubic flow", ("loss", ""), ("throughput", "Mb/s"));
        for (name, rate) in [("plain kernel", plain), ("end to end", whole), ("split", split)] {
            run.plot_bar(&plot, name, (x, case), rate);
        }
        run.at_least(&format!("{case}: split, relative to end to end"), split / whole, SHARE);
    }
    Ok(())
}
