//! Measurements of several configurations by turns, so that what drifts with time hits none alone.

use anyhow::Result;

use super::ways::{Load, Stall};
use crate::experiment::Run;
use crate::experiments::statistics::median;

/// The medians of each stall's measurements under one load, in their order.
pub(super) fn medians(
    run: &mut Run,
    stalls: &[Stall<'_>],
    load: &Load,
    rounds: usize,
) -> Result<Vec<f64>> {
    let mut found = vec![Vec::new(); stalls.len()];
    by_turns(run, stalls, load, rounds, &mut found)?;
    Ok(found.iter().map(|values| median(values)).collect())
}

/// So many more measurements of each, to those that were `found` before.
pub(super) fn by_turns(
    run: &mut Run,
    stalls: &[Stall<'_>],
    load: &Load,
    rounds: usize,
    found: &mut [Vec<f64>],
) -> Result<()> {
    for _ in 0..rounds {
        let round = found[0].len();
        run.step(&format!("{} by blocks of {}, round {}", load.program, load.block, round + 1))?;
        let mut order: Vec<usize> = (0..stalls.len()).collect();
        if !round.is_multiple_of(2) {
            order.reverse();
        }
        for n in order {
            found[n].push(stalls[n].measure(load)?);
        }
    }
    Ok(())
}
