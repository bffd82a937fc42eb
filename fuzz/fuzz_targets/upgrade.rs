//! Messages between the two processes of an upgrade: arbitrary bytes are parsed or refused, and a
//! parsed message keeps within its bounds and is emitted unaltered.
#![no_main]

use libfuzzer_sys::fuzz_target;
use viaduct_proto::upgrade::{MAX_DESCRIPTORS, MAX_SERVICE_DESCRIPTORS, Message};

fuzz_target!(|input: &[u8]| {
    let Some((&descriptors, bytes)) = input.split_first() else { return };
    if let Ok(message) = Message::parse(bytes, usize::from(descriptors)) {
        let most = match message {
            Message::Service(_) => MAX_SERVICE_DESCRIPTORS,
            _ => MAX_DESCRIPTORS,
        };
        assert!(message.descriptors() <= most);
        if let Ok(again) = message.emit() {
            let parsed = Message::parse(&again, usize::from(descriptors)).expect("our own bytes");
            assert_eq!(parsed, message);
        }
    }
});
