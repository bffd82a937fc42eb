//! Experiments that need no namespaces, in their quick form: every check must hold.
#![allow(clippy::unwrap_used)] // a test may panic

use viaduct_lab::experiment::{Options, perform, print_table};
use viaduct_lab::experiments::select;

fn holds(name: &str) {
    let chosen = select(&[name.to_owned()]).expect("a name in the list");
    let options = Options { quick: true, quiet: true, ..Options::default() };
    let outcome = perform(chosen[0], &options);
    assert!(!outcome.checks.is_empty(), "{name} checks nothing");
    assert!(outcome.holds(), "{name}\n{}", print_table(&outcome, false));
}

#[test]
fn recovery() {
    holds("maelstrom/recovery");
}

#[test]
fn vs_reed_solomon() {
    holds("maelstrom/vs-reed-solomon");
}

#[test]
fn coprime() {
    holds("maelstrom/coprime");
}

#[test]
fn interleaves() {
    holds("maelstrom/interleaves");
}
