//! Netlink messages: for any bytes, parsing terminates, and messages and attributes are within the
//! bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    assert!(viaduct_sys::fuzzed::netlink(bytes) <= bytes.len());
});
