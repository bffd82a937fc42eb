//! Rows of the sheet: `figures/<system>.toml`, one `[[row]]` each.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::experiments::wildcard;

/// Flag of a value that was measured in a quick run.
pub(super) const QUICK: &str = "quick";
/// Flag of a row without a check in the experiment.
pub(super) const NOT_CHECKED: &str = "not checked";
/// Flags of a row; FIGURES.md explains them.
const FLAGS: [&str; 5] =
    [QUICK, NOT_CHECKED, "not in CI", "form changed", "changed after a result"];

/// First line of a file of rows.
const HEAD: &str = "# Rows of FIGURES.md; `viaduct lab report --figures` reads and writes this \
                    file.\n\n";

/// Check of an experiment, or family of checks, with its last value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Row {
    /// Experiment; if another command measures the row, the heading of its section
    /// in docs/measurements.
    pub(super) experiment: String,
    /// Command, if it is not `viaduct lab run EXPERIMENT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) command: Option<String>,
    /// Paper and figure or section.
    pub(super) seed: String,
    /// Name of the check, or a description of the family.
    pub(super) claim: String,
    /// Pattern of the checks' names, if the claim is not the name of a check; `*` matches any text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) checks: Option<String>,
    /// Bound, as in `>= 0.9`, or a description of the bound.
    pub(super) bound: String,
    /// Last value.
    pub(super) last: String,
    /// Comparison of the value with the bound.
    pub(super) state: State,
    /// Flags; each is one of [`FLAGS`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) flags: Vec<String>,
    /// Day of the measurement, as in `2026-11-27`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) date: Option<String>,
    /// Commit that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) commit: Option<String>,
    /// True if `commit` is the commit that recorded the value, not the measured one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) noted: bool,
}

/// Comparison of a value with its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    /// The value satisfies the bound.
    Met,
    /// The value does not satisfy the bound.
    Short,
    /// Not measured yet.
    Pending,
    /// Value without a bound.
    Shown,
}

impl Row {
    /// True if the check `name` is in the family of this row.
    pub(super) fn has_in_family(&self, name: &str) -> bool {
        let pattern = self.checks.as_deref();
        pattern.is_some_and(|pattern| wildcard(pattern.as_bytes(), name.as_bytes()))
    }

    /// Returns the row's name for messages.
    pub(super) fn name(&self) -> String {
        format!("{}, {:?}", self.experiment, self.claim)
    }

    /// Returns the command that measures the row.
    pub(super) fn command(&self) -> String {
        match &self.command {
            Some(command) => command.clone(),
            None => run_command(&self.experiment),
        }
    }

    fn validate(&self) -> Result<()> {
        for flag in &self.flags {
            ensure!(
                FLAGS.contains(&flag.as_str()),
                "{}: no flag is named {flag:?}; the flags are {}",
                self.name(),
                FLAGS.join(", ")
            );
        }
        Ok(())
    }
}

/// Returns the command that runs `experiment` once.
pub(super) fn run_command(experiment: &str) -> String {
    format!("viaduct lab run {experiment}")
}

/// Rows of one system, in the order of the sheet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct System {
    /// Name of the file without its extension, as in `maelstrom`.
    pub(super) name: String,
    /// The rows.
    pub(super) rows: Vec<Row>,
}

/// File of rows.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    row: Vec<Row>,
}

impl System {
    /// Returns the path of the system's file in `dir`.
    pub(super) fn path(&self, dir: &Path) -> PathBuf {
        dir.join(format!("{}.toml", self.name))
    }

    /// Returns the text of the system's file.
    pub(super) fn to_text(&self) -> Result<String> {
        let rows = toml::to_string(&File { row: self.rows.clone() })
            .with_context(|| format!("cannot write the rows of {}", self.name))?;
        Ok(format!("{HEAD}{rows}"))
    }
}

/// Reads every file of rows in `dir`, ordered by name.
pub(super) fn load(dir: &Path) -> Result<Vec<System>> {
    let entries = fs::read_dir(dir)
        .with_context(|| format!("{}: cannot read the rows of FIGURES.md", dir.display()))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    paths.sort();
    paths.iter().map(|path| read(path)).collect()
}

fn read(path: &Path) -> Result<System> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let file: File =
        toml::from_str(&text).with_context(|| format!("{}: not a file of rows", path.display()))?;
    for row in &file.row {
        row.validate().with_context(|| format!("{}: a row has an error", path.display()))?;
    }
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Ok(System { name, rows: file.row })
}
