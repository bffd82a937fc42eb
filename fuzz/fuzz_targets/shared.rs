//! Messages between runs and the master that they share. A message that parses can be
//! emitted again unchanged.
#![no_main]

use libfuzzer_sys::fuzz_target;
use viaduct_proto::wrap::shared::{Down, RECORD, Up};
use viaduct_proto::wrap::{SECRET, Secret};

fuzz_target!(|input: &[u8]| {
    if let Some(up) = Up::parse(input) {
        assert_eq!(input.len(), RECORD);
        assert_eq!(Up::parse(&up.emit()), Some(up));
        assert_eq!(Down::parse(input), None);
    }
    if let Some(down) = Down::parse(input) {
        assert_eq!(Down::parse(&down.emit()), Some(down));
    }
    let secret = Secret::new([7; SECRET]);
    if let Some(rest) = secret.open(input) {
        assert_eq!([secret.bytes(), rest].concat(), input);
    }
    if let Some(secret) = Secret::parse(input) {
        assert_eq!(Secret::parse(secret.digits().as_bytes()), Some(secret));
    }
});
