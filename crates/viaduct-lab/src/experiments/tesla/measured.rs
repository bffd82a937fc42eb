//! Alternating measurements of several configurations, so that drift over time affects all equally.
//! Each configuration is restarted for each round, and its client for each measurement, because
//! one process can be up to a tenth faster than another of the same program for its whole lifetime.

use super::setups::{Load, Setup, Testbed};
use super::world::World;
use crate::experiments::prelude::*;

/// Returns the measurements per load and configuration, in order. Entries at the same index were
/// measured in the same turn, one shortly after another, and may be compared in pairs. Each round
/// measures every configuration `turns` times; within a round, each turn reverses the order of the
/// turn before. Each load and round is a step of the run.
pub(super) fn by_turns(
    run: &mut Run,
    world: &World,
    setups: &[Setup],
    loads: &[Load],
    (rounds, turns): (usize, usize),
) -> Result<Vec<Vec<Vec<f64>>>> {
    let mut found = vec![vec![Vec::new(); setups.len()]; loads.len()];
    for round in 0..rounds {
        let testbeds = setups.iter().zip(0..).map(|(&setup, n)| Testbed::build(world, setup, n));
        let testbeds = testbeds.collect::<Result<Vec<_>>>()?;
        for (load, found) in loads.iter().zip(&mut found) {
            let Load { program, block, .. } = load;
            run.step(&format!("round {}: {program}, blocks of {block} bytes", round + 1))?;
            let mut order: Vec<usize> = (0..setups.len()).collect();
            for turn in 0..turns {
                if !(round + turn).is_multiple_of(2) {
                    order.reverse();
                }
                for &n in &order {
                    found[n].push(testbeds[n].measure(load)?);
                }
                order.sort_unstable();
            }
        }
    }
    Ok(found)
}

/// Returns the medians of each configuration under one load.
pub(super) fn medians(
    run: &mut Run,
    world: &World,
    setups: &[Setup],
    load: Load,
    rounds: usize,
) -> Result<Vec<f64>> {
    let found = by_turns(run, world, setups, &[load], (rounds, 1))?;
    Ok(found[0].iter().map(|values| median(values)).collect())
}

/// Returns the ratios of measurements of the same turn.
pub(super) fn ratios(over: &[f64], under: &[f64]) -> Vec<f64> {
    over.iter().zip(under).map(|(over, under)| over / under).collect()
}
