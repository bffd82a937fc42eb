//! FIGURES.md: the sheet of all checked claims. It is written from committed rows, and the rows are
//! updated from results.
//!
//! ```text
//!   results/*.json ── record ──> figures/<system>.toml ──┐
//!   (full runs)                  (rows, one per check)   ├── sheet ──> FIGURES.md
//!                                figures/FIGURES.md.in ──┘
//!                                (preface, sections)
//! ```

mod record;
mod rows;
mod sheet;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use self::rows::System;
use crate::experiment::{Ended, Outcome, load_all};
use crate::experiments;

/// Name of the sheet; the directory of the rows has its template, `FIGURES.md.in`.
const SHEET: &str = "FIGURES.md";

/// Rows and sheet, ready to be written.
#[derive(Debug)]
pub struct Figures {
    dir: PathBuf,
    systems: Vec<System>,
    sheet: String,
    notes: Vec<String>,
}

impl Figures {
    /// Reads the rows in `dir`, and records the results in `results` in these rows, if that
    /// directory exists. `commit` is the measured commit of results that do not name one. Writes no
    /// file. Fails if a file cannot be read or has an error, or a cell of the sheet is too long.
    pub fn new(dir: &Path, results: &Path, commit: Option<&str>) -> Result<Figures> {
        let mut systems = rows::load(dir)?;
        let template = dir.join(format!("{SHEET}.in"));
        let text = fs::read_to_string(&template)
            .with_context(|| format!("cannot read {}", template.display()))?;
        let outcomes = if results.is_dir() { load_all(results)? } else { Vec::new() };
        let mut notes = Vec::new();
        for outcome in outcomes.iter().filter(|outcome| counts(outcome)) {
            notes.extend(record::record(&mut systems, outcome, commit));
        }
        let sheet = sheet::render(&text, &systems)
            .with_context(|| format!("cannot write {SHEET} from {}", dir.display()))?;
        Ok(Figures { dir: dir.into(), systems, sheet, notes })
    }

    /// Returns the decisions left to the user, one line each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Writes the rows, and FIGURES.md into the parent of their directory. Returns the changed
    /// files.
    pub fn write(&self) -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for system in &self.systems {
            files.push((system.path(&self.dir), system.to_text()?));
        }
        files.push((self.sheet_path(), self.sheet.clone()));
        let mut changed = Vec::new();
        for (path, text) in files {
            if fs::read_to_string(&path).is_ok_and(|known| known == text) {
                continue;
            }
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
            changed.push(path);
        }
        Ok(changed)
    }

    /// Compares FIGURES.md with what [`Figures::write`] would write; fails at the first difference.
    pub fn check(&self) -> Result<()> {
        let path = self.sheet_path();
        let known =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        if known == self.sheet {
            return Ok(());
        }
        let same = known.lines().zip(self.sheet.lines()).take_while(|(is, to_be)| is == to_be);
        let line = same.count();
        bail!(
            "{}:{}: differs from what `viaduct lab report --figures` would write:\n{}",
            path.display(),
            line + 1,
            self.sheet.lines().nth(line).unwrap_or("the end of the file")
        )
    }

    fn sheet_path(&self) -> PathBuf {
        self.dir.parent().unwrap_or(&self.dir).join(SHEET)
    }
}

/// True if the result is from a complete run, not a quick one, of a known experiment.
fn counts(outcome: &Outcome) -> bool {
    let known = experiments::ALL.iter().any(|known| known.about.name == outcome.experiment);
    known && outcome.ended == Ended::Complete && !outcome.quick
}
