//! Slides 33 and 34: response time by document size at 40 and 300 ms, with a connection for each
//! document and through a tunnel; and whether sessions of a tunnel hold each other up.

use std::time::Duration;

use anyhow::Result;

use super::browsing::{Browsed, Browsing, Way};
use super::neighbours;
use crate::example_tunnel::Links;
use crate::experiment::{About, Bound, Experiment, Plot, Run};
use crate::topology::programs::Documents;

/// The experiment.
pub(in crate::experiments) struct Delay;

/// Milliseconds there and back.
const RTTS: [u32; 2] = [40, 300];

impl Experiment for Delay {
    fn about(&self) -> About {
        About {
            name: "lfn/delay",
            title: "Response time by document size, with and without a tunnel",
            figure: "Taming the LFN, slides 33 and 34",
            finding: "Avoiding slow start for small documents is a huge win.",
        }
    }

    fn run(&self, run: &mut Run) -> Result<()> {
        let seconds = run.choose(60, 12);
        let ways: &[Way] = &[
            Way::Plain,
            Way::Tunnel(Links::tcp(1)),
            Way::Tunnel(Links::tcp(3)),
            Way::Tunnel(Links::quic()),
        ];
        Browsing::describe(run, seconds);
        run.steps(2);
        run.step("documents of all sizes")?;
        let duration = Duration::from_secs(seconds);
        let load = |rtt| move |&way| Browsing { way, rtt, beside: false, duration };
        let loads: Vec<_> = RTTS.iter().flat_map(|&rtt| ways.iter().map(load(rtt))).collect();
        let found: Vec<_> = loads.iter().zip(Browsing::all(run, &loads)?).collect();
        let sizes = Documents::new(run.seed()).sizes();
        for (load, browsed) in &found {
            draw(run, load, browsed, sizes);
        }
        for (load, browsed) in found.iter().filter(|(load, _)| load.rtt == 300) {
            let name = format!("300 ms, {}: median small document, RTT", load.way.name());
            let bound =
                if load.way == Way::Plain { Bound::AtLeast(2.0) } else { Bound::AtMost(1.3) };
            run.check(&name, browsed.small(0.5) / 300.0, bound);
        }
        run.step("a reader that has stopped, and a large session beside 20 small ones")?;
        neighbours::measure(run)
    }
}

/// One plot for each RTT, both axes logarithmic as in the slides.
fn draw(run: &mut Run, load: &Browsing, browsed: &Browsed, sizes: &[usize]) {
    let axes = (("document", "KB"), ("response time", "ms"));
    for (quantile, word) in [(0.5, "median"), (0.9, "90th percentile")] {
        let title = format!("Response time, {} ms there and back: {word}", load.rtt);
        let plot = Plot::line(&title, axes.0, axes.1).log_x().log_y();
        let series = run.series(&plot, &load.way.name());
        for &kb in sizes {
            let time = browsed.quantile(quantile, |other| other == kb);
            if time.is_finite() {
                run.point(series, kb as f64, time);
            }
        }
    }
}
