//! Notices of routes: any message either concerns one of the prefixes or does not.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    viaduct_sys::fuzzed::route(bytes);
});
