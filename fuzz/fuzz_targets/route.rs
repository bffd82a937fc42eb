//! Notifications about routes: no message makes the parser panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    viaduct_sys::fuzzed::route(bytes);
});
