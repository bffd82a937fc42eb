//! Messages of NFQUEUE: messages without a packet are skipped, and a packet is no longer than its
//! message.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    assert!(viaduct_sys::fuzzed::nfqueue(bytes).is_none_or(|packet| packet.len() <= bytes.len()));
});
