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
    for round in 0..rounds {
        run.step(&format!("{} by blocks of {}, round {}", load.program, load.block, round + 1))?;
        let mut order: Vec<usize> = (0..stalls.len()).collect();
        if !round.is_multiple_of(2) {
            order.reverse();
        }
        for n in order {
            found[n].push(stalls[n].measure(load)?);
        }
    }
    Ok(found.iter().map(|values| median(values)).collect())
}
