//! Packets that the kernel holds in a queue: what is no packet is passed over, and a packet's bytes
//! are those of the message.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    assert!(viaduct_sys::fuzzed::nfqueue(bytes).is_none_or(|packet| packet.len() <= bytes.len()));
});
