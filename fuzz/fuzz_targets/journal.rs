//! The journal of changes to a machine: arbitrary bytes are parsed or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use viaduct_sys::journal;

fuzz_target!(|input: &[u8]| {
    let _ = journal::count(input);
});
