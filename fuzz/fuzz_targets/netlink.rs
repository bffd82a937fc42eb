//! Messages of netlink: whatever the kernel's socket gives, messages and attributes end, and lie
//! within the bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    assert!(viaduct_sys::fuzzed::netlink(bytes) <= bytes.len());
});
