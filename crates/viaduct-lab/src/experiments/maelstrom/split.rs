//! Split connections compared with end-to-end ones, both under adaptive repairs.

use anyhow::Result;

use super::super::statistics::median;
use super::link;
use crate::experiment::{About, Plot, Run};
use crate::gateways::GatewaySpec;
use crate::topology::programs::Iperf;
use crate::world::World;

/// Losses, and whether a quick run includes them.
const CASES: [(&str, &str, bool); 4] = [
    ("no loss", "0", true),
    ("1 % single", "1%", true),
    ("5 % single", "5%", false),
    ("1 %, bursts of 30", "1%x30", false),
];
/// Minimum throughput of a split connection relative to an end-to-end one.
const SHARE: f64 = 0.95;

pub(in crate::experiments) const ABOUT: About = About {
    name: "maelstrom/split",
    title: "Split connections and whole ones under the same repairs",
    figure: "Maelstrom 4.2: split mode and end-to-end mode",
    finding: "Split mode hides the long way from hosts; the repairs are the same.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let (seconds, warm_up) = run.choose((20, 10), (8, 6));
    let rounds = run.choose(5, 1);
    let quick = run.quick();
    run.param("link", "200 Mb/s, 50 ms one way, queue 100 ms");
    run.param("mtu", "hosts 1200, WAN 1500");
    run.param("code", "auto");
    run.param("seconds", seconds);
    run.param("warm_up", warm_up);
    run.param("rounds", rounds);
    run.congestion_control("cubic");
    let cases: Vec<_> = CASES.iter().filter(|(.., in_quick)| !quick || *in_quick).collect();
    run.steps(3 * rounds * cases.len());
    for (x, (case, loss, _)) in cases.iter().enumerate() {
        let mut rates = [const { Vec::new() }; 3];
        for round in 0..rounds {
            let config = format!("rate=200M,delay=50ms,queue=100ms,loss={loss}");
            let seed = run.seed() + round as u64;
            let mut world = World::new((1200, 1500), &link(&config), seed, run.journal())?;
            let ways = [
                ("plain", None),
                ("end to end", Some(GatewaySpec::default())),
                ("split", Some(GatewaySpec::default().split())),
            ];
            for (rates, (way, spec)) in rates.iter_mut().zip(ways) {
                run.step(&format!("{case}, {way}"))?;
                if let Some(spec) = spec {
                    world.protect(&spec)?;
                }
                let iperf = Iperf::tcp("cubic", seconds, warm_up);
                rates.push(iperf.run(world.a1(), world.b1())?.received / 1e6);
            }
        }
        let [plain, whole, split] = rates.map(|of| median(&of));
        let plot = Plot::histogram("One cubic flow", ("loss", ""), ("throughput", "Mb/s"));
        for (name, rate) in [("plain kernel", plain), ("end to end", whole), ("split", split)] {
            let series = run.series(&plot, name);
            run.labelled_point(series, x as f64, rate, case);
        }
        run.at_least(&format!("{case}: split over end to end"), split / whole, SHARE);
    }
    Ok(())
}
