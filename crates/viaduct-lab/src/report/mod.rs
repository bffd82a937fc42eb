//! Reports: one self-contained HTML page of all results, and FIGURES.md.

mod axis;
mod before_after;
mod figures;
mod labels;
mod page;
mod plot;

use std::path::{Path, PathBuf};

use anyhow::Context;

pub use self::figures::Figures;
use crate::experiment::{Outcome, load_all};

/// Reads every result in `results` and writes `index.html` into `out`, which is created if missing.
/// Returns the path of the page.
pub fn write(results: &Path, out: &Path) -> anyhow::Result<PathBuf> {
    let outcomes = load_all(results)?;
    anyhow::ensure!(
        !outcomes.is_empty(),
        "{}: no results yet; `viaduct lab run NAME` writes some",
        results.display()
    );
    write_page(&outcomes, out)
}

/// Writes `index.html` about `outcomes` into `out`, created if missing. Returns the page's path.
pub fn write_page(outcomes: &[Outcome], out: &Path) -> anyhow::Result<PathBuf> {
    std::fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
    let path = out.join("index.html");
    std::fs::write(&path, page::render(outcomes)?)
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}
