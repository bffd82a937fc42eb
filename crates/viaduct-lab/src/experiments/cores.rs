//! Assignment of processor cores.

use anyhow::{Context, Result};
use viaduct_sys::process::thread::cores;

/// Returns the lowest and the highest number of the cores on which this thread may run. They
/// usually share no physical core.
pub(super) fn first_and_last() -> Result<(usize, usize)> {
    let all = cores();
    Ok((*all.first().context("no core")?, *all.last().context("no core")?))
}
