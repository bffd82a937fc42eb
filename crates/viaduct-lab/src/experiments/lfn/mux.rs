//! Slides 27 to 31 and 38 of *Taming the LFN*: a child Squid and its parent over a link of 10 Mb/s
//! with a round trip of 300 ms, with default settings, with large windows, and through a tunnel of
//! one or more links.

use super::browsing::{Browsed, Browsing, Setup, Windows};
use super::stalled_link;
use crate::example_tunnel::Links;
use crate::experiments::prelude::*;
use crate::topology::programs::Connections;

const RTT: u32 = 300;
/// Maximum number of links at which 20 requests per second leave no link idle long enough for its
/// congestion window to be reset.
const WARM: usize = 5;

/// Configurations without a tunnel; the first two are the slides'.
const SQUIDS: [Setup; 4] = [
    Setup::Squid(Windows::Plain, Connections::OneEach),
    Setup::Squid(Windows::Large, Connections::OneEach),
    Setup::Squid(Windows::Plain, Connections::Kept),
    Setup::Squid(Windows::Large, Connections::Kept),
];

pub(in crate::experiments) const ABOUT: About = About {
    name: "lfn/mux",
    title: "Two Squids over a long link, with and without a tunnel",
    figure: "Taming the LFN, slides 27 to 31 and 38",
    finding: "Without other traffic one link might be best, but a stall of this link is very \
              bad; too many links are counterproductive; separate connections with large \
              windows carry less.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let seconds = run.choose(60, 9);
    let counts: &[usize] = run.choose(&[1, 3, 5, 7, 10], &[1, 3]);
    let tunnels = counts.iter().map(|count| Setup::SquidTunnel(Links::tcp(*count)));
    let growing = Setup::SquidGrowing(3);
    let setups: Vec<Setup> = SQUIDS.into_iter().chain(tunnels).chain([growing]).collect();
    Browsing::describe(run, seconds);
    run.param("rtt_ms", RTT);
    run.param("squid", "Debian's, examples/squid; nothing cached");
    run.steps(3);
    for concurrent in [false, true] {
        run.step(if concurrent { "with a concurrent flow" } else { "no other traffic" })?;
        let duration = Duration::from_secs(seconds);
        // With a concurrent flow, a quick run includes only the slides' configurations.
        let few = concurrent && run.quick();
        let tunnel = |setup: &Setup| matches!(setup, Setup::SquidTunnel(_));
        let setups: Vec<_> = setups
            .iter()
            .filter(|setup| !few || tunnel(setup) || SQUIDS[..2].contains(setup))
            .collect();
        let loads: Vec<_> = setups
            .iter()
            .map(|&&setup| Browsing { setup, rtt: RTT, concurrent, duration })
            .collect();
        let found = Browsing::all(run, &loads)?;
        let found: Vec<_> = setups.into_iter().copied().zip(found).collect();
        plot_results(run, concurrent, &found);
        if concurrent {
            checks_with_flow(run, &found);
        } else {
            checks(run, &found);
        }
    }
    run.step("a link that falls silent")?;
    stalled_link::measure(run)
}

fn plot_results(run: &mut Run, concurrent: bool, found: &[(Setup, Browsed)]) {
    let what = if concurrent { "a concurrent flow" } else { "no other traffic" };
    type Figure = (&'static str, &'static str, fn(&Browsed) -> f64);
    let figures: [Figure; 6] = [
        ("Small documents, median", "ms", |b| b.small(0.5)),
        ("Small documents, 90th percentile", "ms", |b| b.small(0.9)),
        ("Documents of 20 KB and more, median", "ms", large),
        ("All documents, 99th percentile", "ms", |b| b.quantile(0.99, |_| true)),
        ("Documents that never arrived", "", |b| b.never() as f64),
        ("Concurrent TCP flow", "Mb/s", |b| b.concurrent.unwrap_or(f64::NAN)),
    ];
    for (title, unit, figure) in figures {
        let plot = Plot::histogram(title, ("configuration", ""), ("value", unit));
        let bars = found.iter().map(|(setup, browsed)| (setup.name(), figure(browsed)));
        run.plot_bars(&plot, what, bars);
    }
    let plot = Plot::line(&format!("Arrived, {what}"), ("time", "s"), ("rate", "KB/s"));
    for (setup, browsed) in found {
        let kb = browsed.kb_by_second().into_iter().enumerate();
        run.plot_points(&plot, &setup.name(), kb.map(|(second, kb)| (second as f64, kb)));
    }
}

fn large(browsed: &Browsed) -> f64 {
    browsed.quantile(0.5, |kb| kb >= 20)
}

fn checks(run: &mut Run, found: &[(Setup, Browsed)]) {
    let (squids, tunnels) = found.split_at(SQUIDS.len());
    for (setup, browsed) in tunnels {
        for (squid, other) in squids {
            // A persistent connection already saves the handshake's round trip, so no gain is
            // expected.
            let most = if squid.keeps_connections() { 1.02 } else { 0.75 };
            let name = format!(
                "{}: median of small documents, relative to {}",
                setup.name(),
                squid.name()
            );
            run.at_most(&name, browsed.small(0.5) / other.small(0.5), most);
        }
        // A busy link is past slow start; a new connection of Squid is not. With more links than
        // the load keeps busy, each link is idle for so long that its congestion window is reset:
        // the slides find that too many links are counterproductive.
        let best = squids.iter().map(|(_, squid)| large(squid)).fold(f64::INFINITY, f64::min);
        let name = format!(
            "{}: median of documents of 20 KB and more, relative to the best Squid",
            setup.name()
        );
        let most = if setup.links().count <= WARM { 0.8 } else { 1.02 };
        run.at_most(&name, large(browsed) / best, most);
        let slowest = |browsed: &Browsed| browsed.quantile(0.99, |_| true);
        let best = squids.iter().map(|(_, squid)| slowest(squid)).fold(f64::INFINITY, f64::min);
        let name =
            format!("{}: slowest 1 % of all documents, relative to the best Squid", setup.name());
        run.at_most(&name, slowest(browsed) / best, 1.0);
        let name = format!("{}: documents that never arrived", setup.name());
        run.at_most(&name, browsed.never() as f64, 0.0);
    }
}

/// Checks slides 27 and 38: the remaining gain with background traffic. A full queue lengthens
/// all round trips; a tunnel still saves the round trip of a connection's handshake.
fn checks_with_flow(run: &mut Run, found: &[(Setup, Browsed)]) {
    let one_each = |setup: Setup| matches!(setup, Setup::Squid(_, Connections::OneEach));
    let squids = found.iter().filter(|(setup, _)| one_each(*setup));
    let best = squids.map(|(_, squid)| squid.small(0.5)).fold(f64::INFINITY, f64::min);
    let tunnels = found.iter().filter(|(setup, _)| matches!(setup, Setup::SquidTunnel(_)));
    for (setup, browsed) in tunnels {
        let name = format!(
            "concurrent flow, {}: median of small documents, relative to Squid",
            setup.name()
        );
        run.at_most(&name, browsed.small(0.5) / best, 0.75);
        let name = format!("concurrent flow, {}: documents that never arrived", setup.name());
        run.at_most(&name, browsed.never() as f64, 0.0);
    }
}
