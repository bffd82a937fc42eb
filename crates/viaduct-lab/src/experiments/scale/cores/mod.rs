//! Gateway with several workers: cost of a packet by the number of workers, and effects of a worker
//! that fails.

mod failure;
mod gateways;
mod plane;

use crate::experiments::prelude::*;

pub(in crate::experiments) const ABOUT: About = About {
    name: "scale/cores",
    title: "A gateway with several workers, compared with a single worker",
    figure: "beyond Maelstrom: more than one processor",
    finding: "The cost of a packet does not depend on the number of workers, and a failed worker \
              interrupts the repairs of its lanes for less than a second.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    run.steps(plane::STEPS + gateways::steps(run) + failure::STEPS);
    plane::run(run)?;
    gateways::run(run)?;
    failure::run(run)
}

fn rounded(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}
