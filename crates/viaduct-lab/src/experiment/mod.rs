//! Experiments: their interface, their execution and their results.
//!
//! An experiment describes itself ([`About`]) and measures ([`Experiment::run`]). It reports every
//! finding to its [`Run`] immediately: parameters, points, checks. An interrupted experiment
//! therefore keeps its findings. A repeat is another call of the same function; points at the same
//! x then become a mean with an error bar.
//!
//! ```text
//!   runner ── calls N times ──> Experiment::run(&mut Run)
//!      |                            | step("loss 1 %")?       progress; ends here on Ctrl-C
//!      |                            | param, series, point    settings, results
//!      |                            └ check(value, bound)     conditions that must hold
//!      └──> Outcome ──> table (people) · results/<name>.json (report) · exit status (make)
//! ```
//!
//! A new experiment is one file in [`crate::experiments`] and one line in its list.

mod machine;
mod outcome;
mod progress;
mod run;
mod runner;
mod store;
mod table;

pub use machine::Machine;
pub use outcome::{Axis, Bound, Check, Ended, Kind, Outcome, Plot, Point, Series, student_95};
pub use run::{Run, SeriesId};
pub use runner::{Options, perform};
pub use store::{StoreError, load_all, save, save_as};
pub(crate) use table::number;
pub use table::print_table;

/// Description of an experiment.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// System and subject: `maelstrom/throughput-loss`.
    pub name: &'static str,
    /// Title in one line.
    pub title: &'static str,
    /// Paper and figure or section: `Maelstrom, Figure 9`.
    pub figure: &'static str,
    /// The paper's finding, in one sentence.
    pub finding: &'static str,
}

/// A measurement.
pub trait Experiment: Sync {
    /// Returns the description.
    fn about(&self) -> About;

    /// Measures once and reports all findings to `run`. Fails if the measurement cannot be done
    /// or was stopped; findings reported to `run` are kept.
    fn run(&self, run: &mut Run) -> anyhow::Result<()>;
}
