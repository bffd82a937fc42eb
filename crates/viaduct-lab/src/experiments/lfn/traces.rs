//! Slides 4, 5 and 24 to 26 of *Taming the LFN*: sequence numbers over time, and the stalls of
//! plain TCP.

use super::stalls::{Stack, Trace, Transfer, Worlds, thinned};
use crate::experiments::prelude::*;

struct Scene {
    name: &'static str,
    /// Round trip in milliseconds.
    rtt: u32,
    /// Queue and losses of the link, in addition to its rate and delay.
    link: &'static str,
    /// True if the window is below the path's capacity, so that only the listed packets are lost.
    held: bool,
    quick: bool,
}

/// Scenes of the slides: 40 and 300 ms without listed losses; at 600 ms a single loss, three
/// losses in one window, and a slow start that overshoots the queue.
const SCENES: [Scene; 5] = [
    Scene { name: "40 ms", rtt: 40, link: "queue=32kB", held: false, quick: false },
    Scene { name: "300 ms", rtt: 300, link: "queue=32kB", held: false, quick: false },
    Scene {
        name: "600 ms, one loss",
        rtt: 600,
        link: "queue=4s,loss=trace:700:1:100000:once",
        held: true,
        quick: true,
    },
    Scene {
        name: "600 ms, clustered losses",
        rtt: 600,
        link: "queue=4s,loss=trace:700:2:12:3:25:2:200:1:100000:once",
        held: true,
        quick: true,
    },
    Scene { name: "600 ms, overshoot", rtt: 600, link: "queue=64kB", held: false, quick: true },
];

const STACKS: [Stack; 3] = [Stack::Of1999, Stack::Today("cubic"), Stack::Today("bbr")];

/// Half of the bandwidth-delay product of 10 Mb/s and 600 ms.
const WINDOW: usize = 375_000;

/// Retransmission timeout of 1999 at 600 ms: the round trip plus a second.
const TIME_OUT: f64 = 1.6;

/// Seconds between points of a plotted trace.
const STEP: f64 = 0.1;

pub(in crate::experiments) const ABOUT: About = About {
    name: "lfn/traces",
    title: "Sequence numbers over time: the stalls of plain TCP",
    figure: "Taming the LFN, slides 4, 5, 24, 25 and 26",
    finding: "At 600 ms a fast retransmission stalls for 100 ms, clustered losses end in a \
              time-out of 3 seconds, an overshooting slow start stalls for 6.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let (quick, seconds) = (run.quick(), run.choose(30, 22));
    let scenes: Vec<_> = SCENES.iter().filter(|scene| scene.quick || !quick).collect();
    run.param("rate_mbit_per_s", 10);
    run.param("seconds", seconds);
    run.param("window_of_losses_from_a_list", WINDOW);
    run.param("of_1999", "no SACK, RACK, TLP, F-RTO; NewReno; IW 2; time-outs of a second");
    for name in ["reno", "cubic", "bbr"] {
        run.congestion_control(name);
    }
    run.param("a_stall_sends_less_than_mbit_per_s", 0.5);
    run.steps(1);
    run.step("all paths concurrently")?;
    let found = play(&scenes, &Worlds::of(run), Duration::from_secs(seconds))?;
    for (name, traces) in &found {
        plot_results(run, name, traces);
    }
    for (name, traces) in &found {
        draw(run, name, traces);
    }
    checks(run, &found);
    Ok(())
}

/// Name of a scene, and a trace for each stack.
type Played = (&'static str, Vec<Trace>);

/// Runs every scene with every stack concurrently, each in a world of its own.
fn play(scenes: &[&Scene], worlds: &Worlds, duration: Duration) -> Result<Vec<Played>> {
    parallel(scenes, |scene| {
        let text = format!("rate=10M,delay={}ms,{}", scene.rtt / 2, scene.link);
        let window = scene.held.then_some(WINDOW);
        let traces = parallel(STACKS, |stack| {
            Transfer { stack, link: link(&text), window, duration }.run(worlds)
        })?;
        Ok((scene.name, traces))
    })
}

/// Records the table of stalls.
fn plot_results(run: &mut Run, name: &str, traces: &[Trace]) {
    let x = SCENES.iter().position(|scene| scene.name == name).unwrap_or(0);
    type Figure = (&'static str, &'static str, fn(&Trace) -> f64);
    let figures: [Figure; 4] = [
        ("Longest stall", "s", Trace::longest_stall),
        ("Longest time without a new byte acknowledged", "s", Trace::longest_silence),
        ("Retransmitted segments", "", |trace| trace.again.len() as f64),
        ("Acknowledged", "Mb/s", |trace| trace.rate() / 1e6),
    ];
    for (title, unit, figure) in figures {
        let plot = Plot::histogram(title, ("path", ""), ("value", unit));
        for (stack, trace) in STACKS.iter().zip(traces) {
            run.plot_bar(&plot, &stack.name(), (x, name), figure(trace));
        }
    }
}

fn draw(run: &mut Run, name: &str, traces: &[Trace]) {
    let title = format!("Sequence numbers, {name}");
    let (time, sent) = (("time", "s"), ("sequence number", "MB"));
    let points = |bytes: &[(f64, f64)]| {
        thinned(bytes, STEP).into_iter().map(|(at, bytes)| (at, bytes / 1e6)).collect::<Vec<_>>()
    };
    let (line, dots) = (Plot::line(&title, time, sent), Plot::scatter(&title, time, sent));
    for (stack, trace) in STACKS.iter().zip(traces) {
        run.plot_points(&line, &stack.name(), points(&trace.sent));
    }
    run.plot_points(&dots, "1999, retransmitted", points(&traces[0].again));
}

fn checks(run: &mut Run, found: &[Played]) {
    let of = |name: &str| found.iter().find(|(known, _)| *known == name).map(|(_, traces)| traces);
    let stall = |name, stack: usize| of(name).map_or(f64::NAN, |t| t[stack].longest_stall());
    let silence = |name, stack: usize| of(name).map_or(f64::NAN, |t| t[stack].longest_silence());
    let [one, clustered, overshoot] =
        ["600 ms, one loss", "600 ms, clustered losses", "600 ms, overshoot"];
    run.at_most(
        &format!("{one}: stall of the TCP of 1999, s (no time-out)"),
        stall(one, 0),
        TIME_OUT,
    );
    for (name, least) in [(clustered, 3.0), (overshoot, 6.0)] {
        let check = format!("{name}: stall of the TCP of 1999, s (a time-out is {TIME_OUT})");
        run.at_least(&check, stall(name, 0), least);
        let check = format!("{name}: stall of the TCP of 1999, relative to today's (cubic)");
        run.at_least(&check, stall(name, 0) / stall(name, 1), 2.0);
    }
    if let (Some(short), Some(long)) = (of("40 ms"), of("300 ms")) {
        let name = "TCP of 1999: Mb/s at 300 ms, relative to 40 ms";
        run.at_most(name, long[0].rate() / short[0].rate(), 0.5);
    }
    let check = format!("{one}: longest time without new data today (cubic), RTT");
    run.at_least(&check, silence(one, 1) / 0.6, 1.0);
}
