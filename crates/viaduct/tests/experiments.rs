//! The experiments that need real gateways, in their quick form: every check must hold.

use viaduct_lab::experiment::{Options, perform, print_table};
use viaduct_lab::experiments::select;
use viaduct_lab::gateways::use_binary;

fn holds(name: &str) {
    use_binary(env!("CARGO_BIN_EXE_viaduct"));
    let chosen = select(&[name.to_owned()]).expect("a name in the list");
    let options = Options { quick: true, quiet: true, ..Options::default() };
    let outcome = perform(chosen[0], &options);
    assert!(!outcome.checks.is_empty(), "{name} checks nothing");
    assert!(outcome.holds(), "{name}\n{}", print_table(&outcome, false));
}

#[test]
fn burst() {
    holds("maelstrom/burst");
}
