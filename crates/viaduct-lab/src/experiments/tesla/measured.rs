//! Measurements of several configurations by turns, so that what drifts with time hits none alone; each time with
//! all of them started anew: one process is up to a tenth quicker than another of the same program, for as long as
//! it lives.

use anyhow::Result;

use super::ways::{Load, Stall, Way};
use super::world::World;
use crate::experiment::Run;
use crate::experiments::statistics::median;

/// For each load each way's measurements, in their order: those of the same place are of the same time, and may
/// be compared in pairs. In a round the ways alternate `turns` times, forwards and backwards. A step of the run
/// for each load and round.
pub(super) fn by_turns(
    run: &mut Run,
    world: &World,
    ways: &[Way],
    loads: &[Load],
    (rounds, turns): (usize, usize),
) -> Result<Vec<Vec<Vec<f64>>>> {
    let mut found = vec![vec![Vec::new(); ways.len()]; loads.len()];
    for round in 0..rounds {
        let stalls = ways.iter().zip(0..).map(|(&way, n)| Stall::build(world, way, n));
        let stalls = stalls.collect::<Result<Vec<_>>>()?;
        for (load, found) in loads.iter().zip(&mut found) {
            let Load { program, block, .. } = load;
            run.step(&format!("round {}: {program} by blocks of {block}", round + 1))?;
            let mut order: Vec<usize> = (0..ways.len()).collect();
            for turn in 0..turns {
                if !(round + turn).is_multiple_of(2) {
                    order.reverse();
                }
                for &n in &order {
                    found[n].push(stalls[n].measure(load)?);
                }
                order.sort_unstable();
            }
        }
    }
    Ok(found)
}

/// The medians of each way's measurements under one load.
pub(super) fn medians(
    run: &mut Run,
    world: &World,
    ways: &[Way],
    load: Load,
    rounds: usize,
) -> Result<Vec<f64>> {
    let found = by_turns(run, world, ways, &[load], (rounds, 1))?;
    Ok(found[0].iter().map(|values| median(values)).collect())
}

/// The ratios of measurements of the same time.
pub(super) fn ratios(over: &[f64], under: &[f64]) -> Vec<f64> {
    over.iter().zip(under).map(|(over, under)| over / under).collect()
}
