//! Section 6.1: throughput of the relay, beside what others have, on one core.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::contenders::{ALL, Arena, Running};
use crate::experiment::{About, Bound, Experiment, Plot, Run};
use crate::experiments::statistics::median;
use crate::load::{Load, Shape};
use crate::topology::cpu_time;

/// The experiment.
pub(in crate::experiments) struct Throughput;

/// What is measured.
struct Kind {
    name: &'static str,
    shape: Shape,
    /// What a second brings: the unit, and how many of the load's counts are one.
    unit: (&'static str, f64),
    /// What processor time is told for: so many counts.
    cost: (&'static str, f64),
}

const KINDS: [Kind; 3] = [
    Kind {
        name: "1 flow",
        shape: Shape::Bulk(1),
        unit: ("Gb/s", 1e9 / 8.0),
        cost: ("CPU-s per GB", 1e9),
    },
    Kind {
        name: "8 flows",
        shape: Shape::Bulk(8),
        unit: ("Gb/s", 1e9 / 8.0),
        cost: ("CPU-s per GB", 1e9),
    },
    Kind {
        name: "connections",
        shape: Shape::Requests(64),
        unit: ("thousands a second", 1e3),
        cost: ("CPU-s per 100,000", 1e5),
    },
];

/// Before what counts: the flows' windows open, caches warm.
const WARM_UP: Duration = Duration::from_millis(300);
/// Of HAProxy's, at least and at most.
const LEAST_RATE: f64 = 0.97;
const MOST_COST: f64 = 1.05;

impl Experiment for Throughput {
    fn about(&self) -> About {
        About {
            name: "miniproxy/throughput",
            title: "Throughput of the relay on one core, beside HAProxy, nginx and Varnish",
            figure: "Miniproxy, section 6.1",
            finding: "One flow through Miniproxy is about 5 % faster than through Varnish: 1.534 \
                      against 1.462 Gb/s.",
        }
    }

    fn run(&self, run: &mut Run) -> Result<()> {
        let rounds = run.choose(11, 5);
        let seconds = run.choose(2.0, 0.7);
        // Those that are no check's business are measured once if time is short.
        let others = run.choose(rounds, 1);
        run.param("rounds", rounds);
        run.param("seconds_each", seconds);
        run.param("load", "HTTP, bodies from the page cache and dropped by the receiver's kernel");
        run.congestion_control("cubic");
        let arena = Arena::build(run.journal(), &ALL)?;
        run.param("core_of_load", arena.cores.0);
        run.param("core_of_proxy", arena.cores.1);
        run.steps(KINDS.len() * (2 * rounds + (ALL.len() - 2) * others));
        for kind in &KINDS {
            let mut found = ALL.map(|_| Vec::new());
            for round in 0..rounds {
                for n in order(round) {
                    if n >= 2 && round >= others {
                        continue;
                    }
                    run.step(&format!("{}, {}, round {}", kind.name, ALL[n].name(), round + 1))?;
                    let window = Duration::from_secs_f64(seconds);
                    found[n].push(measure(&arena, &arena.running()[n], kind, window)?);
                }
            }
            draw(run, kind, &found);
        }
        Ok(())
    }
}

/// One window of one contender.
#[derive(Clone, Copy, Debug)]
struct Sample {
    rate: f64,
    cost: f64,
}

/// There and back, so that what drifts with time hits none alone.
fn order(round: usize) -> Vec<usize> {
    let all = 0..ALL.len();
    if round.is_multiple_of(2) { all.collect() } else { all.rev().collect() }
}

fn measure(arena: &Arena, who: &Running, kind: &Kind, window: Duration) -> Result<Sample> {
    let load = Load::start(arena.pair.load(), arena.cores.0, kind.shape, who.address);
    thread::sleep(WARM_UP);
    let now = || (Instant::now(), load.done(), cpu_time(who.pid));
    let before = now();
    thread::sleep(window);
    let after = now();
    let done = (after.1 - before.1) as f64;
    ensure!(done > 0.0 && load.failed() == 0, "{} connections failed", load.failed());
    Ok(Sample {
        rate: done / kind.unit.1 / (after.0 - before.0).as_secs_f64(),
        cost: (after.2 - before.2).as_secs_f64() / (done / kind.cost.1),
    })
}

fn draw(run: &mut Run, kind: &Kind, found: &[Vec<Sample>]) {
    let name = kind.name;
    let rates = Plot::histogram(&format!("Rate, {name}"), ("", ""), ("rate", kind.unit.0));
    let costs = Plot::histogram(&format!("Cost, {name}"), ("", ""), ("cost", kind.cost.0));
    let middle = |n: usize, value: fn(&Sample) -> f64| {
        median(&found[n].iter().map(value).collect::<Vec<_>>())
    };
    for (plot, value) in [(&rates, (|s| s.rate) as fn(&Sample) -> f64), (&costs, |s| s.cost)] {
        let series = run.series(plot, "median");
        for (n, contender) in ALL.iter().enumerate() {
            run.labelled_point(series, n as f64, middle(n, value), contender.name());
        }
    }
    let ratio = |value| middle(VIADUCT, value) / middle(HAPROXY, value);
    let bound = Bound::AtLeast(LEAST_RATE);
    run.check(&format!("{name}: rate over HAProxy's"), ratio(|s| s.rate), bound);
    if matches!(kind.shape, Shape::Bulk(_)) {
        let bound = Bound::AtMost(MOST_COST);
        run.check(&format!("{name}: CPU-s per GB over HAProxy's"), ratio(|s| s.cost), bound);
    }
}

/// Where they stand among all.
const VIADUCT: usize = 0;
const HAPROXY: usize = 1;
