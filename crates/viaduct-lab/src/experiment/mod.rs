//! What an experiment is, how it is run and what it leaves.
//!
//! An experiment describes itself ([`About`]) and measures ([`Experiment::run`]); all it finds it
//! tells its [`Run`] at once: parameters, points, checks. So nothing is lost when it is cut short,
//! and a repeat is simply a second call: points at the same x become a mean with an error bar.
//!
//! ```text
//!   runner ── calls N times ──> Experiment::run(&mut Run)
//!      |                            | step("loss 1 %")?       progress; ends here on Ctrl-C
//!      |                            | param, series, point    what was set, what came out
//!      |                            └ check(value, bound)     what must hold
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

/// What an experiment says of itself.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// System and subject: `maelstrom/throughput-loss`.
    pub name: &'static str,
    /// One line for people.
    pub title: &'static str,
    /// The paper and its figure or section: `Maelstrom, Figure 9`.
    pub figure: &'static str,
    /// What the paper found, in one sentence.
    pub finding: &'static str,
}

/// Something to measure.
pub trait Experiment: Sync {
    /// What it says of itself.
    fn about(&self) -> About;

    /// Measures once, telling `run` all that it finds.
    ///
    /// # Errors
    /// If the measurement cannot be done, or was stopped; what `run` was told is kept.
    fn run(&self, run: &mut Run) -> anyhow::Result<()>;
}
