//! Slides 33 and 34 of *Taming the LFN*: response time by document size, at round trips of 40 and
//! 300 ms. The documents are fetched over a direct connection for each document, over a connection
//! for each document through a tunnel, over two Squids with a connection for each document, and
//! over two Squids with persistent connections through a tunnel. [`neighbours`] then measures small
//! sessions in a tunnel, during a large session and during a session whose reader has stopped.

use super::browsing::{Browsed, Browsing, Setup, Windows};
use super::neighbours;
use crate::example_tunnel::Links;
use crate::experiments::prelude::*;
use crate::topology::programs::{Connections, Documents};

/// Round trips in milliseconds.
const RTTS: [u32; 2] = [40, 300];

/// The slides' two configurations of Squids without a tunnel between them: TCP windows of at most
/// 64 KB, and large ones. Both open a connection per document.
const SQUIDS: [Setup; 2] = [
    Setup::Squid(Windows::Plain, Connections::OneEach),
    Setup::Squid(Windows::Large, Connections::OneEach),
];
/// Maximum median response time of small documents with a tunnel between the Squids, relative to
/// the better of the [`SQUIDS`]. The tunnel saves the handshake, one of two round trips, so about
/// 0.5 is expected; the bound is the same as in [`mux`](super::mux).
const MAX_OF_SQUID: f64 = 0.75;

pub(in crate::experiments) const ABOUT: About = About {
    name: "lfn/delay",
    title: "Response time by document size, with and without a tunnel",
    figure: "Taming the LFN, slides 33 and 34",
    finding: "Avoiding slow start for small documents is a huge win.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let seconds = run.choose(60, 12);
    let setups: &[Setup] = &[
        Setup::Plain,
        Setup::Tunnel(Links::tcp(1)),
        Setup::Tunnel(Links::tcp(3)),
        Setup::Tunnel(Links::quic()),
    ];
    Browsing::describe(run, seconds);
    run.steps(2);
    run.step("documents of all sizes")?;
    let duration = Duration::from_secs(seconds);
    let load = |rtt| move |&setup| Browsing { setup, rtt, concurrent: false, duration };
    let tunnels = [1, 3].map(|count| Setup::SquidTunnel(Links::tcp(count)));
    let squids: Vec<Setup> =
        run.choose([&SQUIDS[..], &tunnels], [&SQUIDS[..1], &tunnels[1..]]).concat();
    let with_squid: &[u32] = run.choose(&RTTS, &RTTS[..1]);
    let loads = RTTS.iter().flat_map(|&rtt| setups.iter().map(load(rtt)));
    let loads = loads.chain(with_squid.iter().flat_map(|&rtt| squids.iter().map(load(rtt))));
    let loads: Vec<_> = loads.collect();
    let found: Vec<_> = loads.iter().zip(Browsing::all(run, &loads)?).collect();
    let sizes = Documents::new(run.seed()).sizes();
    for (load, browsed) in &found {
        draw(run, load, browsed, sizes);
    }
    compare_with_squids(run, &found);
    let at_300 = |load: &Browsing| load.rtt == 300 && setups.contains(&load.setup);
    for (load, browsed) in found.iter().filter(|(load, _)| at_300(load)) {
        let name = format!(
            "300 ms, {}: median response time of small documents, in round trips",
            load.setup.name()
        );
        let bound =
            if load.setup == Setup::Plain { Bound::AtLeast(2.0) } else { Bound::AtMost(1.3) };
        run.check(&name, browsed.small(0.5) / 300.0, bound);
    }
    run.step("a reader that has stopped, and a large session concurrent with 20 small ones")?;
    neighbours::measure(run)
}

/// Checks slide 33 and, in a full run, slide 34: compares two Squids connected by a tunnel with the
/// better of the [`SQUIDS`].
fn compare_with_squids(run: &mut Run, found: &[(&Browsing, Browsed)]) {
    for rtt in RTTS {
        let at = || found.iter().filter(move |(load, _)| load.rtt == rtt);
        let squids = at().filter(|(load, _)| SQUIDS.contains(&load.setup));
        let best = squids.map(|(_, browsed)| browsed.small(0.5)).fold(f64::INFINITY, f64::min);
        for (load, browsed) in at().filter(|(load, _)| matches!(load.setup, Setup::SquidTunnel(_)))
        {
            let setup = load.setup.name();
            let name = format!(
                "{rtt} ms, Squid over {setup}: median response time of small documents, \
                 relative to Squid alone"
            );
            run.at_most(&name, browsed.small(0.5) / best, MAX_OF_SQUID);
        }
    }
}

/// Adds the response times of a load to the two plots for its round trip: the median, and the 90th
/// percentile. Both axes are logarithmic, as in the slides.
fn draw(run: &mut Run, load: &Browsing, browsed: &Browsed, sizes: &[usize]) {
    let axes = (("document", "KB"), ("response time", "ms"));
    for (quantile, word) in [(0.5, "median"), (0.9, "90th percentile")] {
        let title = format!("Response time, {} ms round trip: {word}", load.rtt);
        let plot = Plot::line(&title, axes.0, axes.1).log_x().log_y();
        let name = load.setup.name();
        let squid = if matches!(load.setup, Setup::SquidTunnel(_)) { "Squid over " } else { "" };
        let series = run.series(&plot, &format!("{squid}{name}"));
        for &kb in sizes {
            let time = browsed.quantile(quantile, |other| other == kb);
            if time.is_finite() {
                run.point(series, kb as f64, time);
            }
        }
    }
}
