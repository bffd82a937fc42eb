//! Experiments in their quick form, with real gateways. A quick form is shorter, but has the same
//! bounds as the full one. Checks that are too noisy on a busy machine with two cores are marked
//! "not in CI" in FIGURES.md; they are measured here, but their bounds are not asserted.
#![allow(clippy::unwrap_used)] // a test may panic

use std::sync::RwLock;

use viaduct_lab::binary::use_binary;
use viaduct_lab::experiment::{Ended, Options, Outcome, perform, print_table};
use viaduct_lab::experiments::select;

mod alone;
mod waiting;

/// Held for writing by an experiment that runs alone, for reading by those that run in parallel.
static MACHINE: RwLock<()> = RwLock::new(());

/// Runs an experiment, in its quick form or in full.
fn conduct(name: &str, quick: bool) -> Outcome {
    use_binary(env!("CARGO_BIN_EXE_viaduct"));
    let chosen = select(&[name.to_owned()]).unwrap();
    let outcome = perform(chosen[0], &Options { quick, quiet: quick, ..Options::default() });
    assert_eq!(outcome.ended, Ended::Complete, "{name}");
    outcome
}

/// Asserts that an experiment made `total` checks, all of measured values, that `of` selects
/// `chosen` of them, and that the selected ones satisfy their bounds.
fn assert_holds(outcome: &Outcome, total: usize, chosen: usize, of: impl Fn(&str) -> bool) {
    let table = print_table(outcome, false);
    assert_eq!(outcome.checks.len(), total, "{table}");
    for check in &outcome.checks {
        assert!(!check.value.is_nan(), "{}: not measured\n{table}", check.name);
    }
    let selected: Vec<_> = outcome.checks.iter().filter(|check| of(&check.name)).collect();
    assert_eq!(selected.len(), chosen, "{table}");
    for check in selected {
        assert!(check.holds, "{}\n{table}", check.name);
    }
}

/// Asserts that the value of the only check whose name contains `part` is at most `limit`, which is
/// looser than its bound.
fn assert_at_most(outcome: &Outcome, part: &str, limit: f64) {
    let found: Vec<_> = outcome.checks.iter().filter(|of| of.name.contains(part)).collect();
    let [check] = found[..] else { panic!("{part}: {found:?}") };
    assert!(
        check.value <= limit,
        "{} is {}\n{}",
        check.name,
        check.value,
        print_table(outcome, false)
    );
}
