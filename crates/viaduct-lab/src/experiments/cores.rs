//! Assignment of processor cores.

use anyhow::{Context, Result};
use viaduct_sys::process::thread::cores;

/// Returns the first and the last core of this machine, which are as far apart as possible.
pub(super) fn first_and_last() -> Result<(usize, usize)> {
    let all = cores();
    Ok((*all.first().context("no core")?, *all.last().context("no core")?))
}
