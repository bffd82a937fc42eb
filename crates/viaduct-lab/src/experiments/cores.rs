//! Which cores are whose.

use anyhow::{Context, Result};
use viaduct_sys::thread::cores;

/// The first and the last of this machine's: as far from each other as can be.
pub(super) fn first_and_last() -> Result<(usize, usize)> {
    let all = cores();
    Ok((*all.first().context("no core")?, *all.last().context("no core")?))
}
