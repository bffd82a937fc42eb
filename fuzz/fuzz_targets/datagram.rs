//! Packets with a UDP datagram: parsed parts are within the packet, and emitted packets parse
//! again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use viaduct_proto::wire::datagram::{Datagram, MAX_QUOTED, emit, undelivered};

fuzz_target!(|input: &[u8]| {
    let parsed = Datagram::parse(input);
    let Some((datagram, payload)) = Datagram::split(input) else { return };
    let ends = |of: &Datagram| (of.source, of.destination);
    assert_eq!(parsed.as_ref().map(ends), Some(ends(&datagram)));
    assert!(payload.len() <= input.len());
    let (source, destination) = (datagram.source, datagram.destination);
    if let Some(packet) = emit(source, destination, payload) {
        let (again, same) = Datagram::split(&packet).expect("an emitted packet parses");
        assert_eq!((again.source, again.destination, same), (source, destination, payload));
    }
    if source.is_ipv4() == destination.is_ipv4() {
        let packet = undelivered(source, destination, [3, 3], payload);
        assert!(packet.len() <= MAX_QUOTED + 200, "{}", packet.len());
        let quoted = &payload[..payload.len().min(MAX_QUOTED)];
        assert!(packet.ends_with(quoted), "the payload is quoted");
    }
});
