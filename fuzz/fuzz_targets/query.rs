//! Queries to the packet cache. Arbitrary bytes are refused or parsed, and a querying host gets
//! only packets that were addressed to it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use viaduct_proto::repair::cache::Query;
use viaduct_proto::wire::ip::Header;

fuzz_target!(|input: (&[u8], Vec<&[u8]>)| {
    let (datagram, cached) = input;
    let asker = "10.2.0.1".parse().expect("an address");
    let Some(query) = Query::parse(asker, datagram) else { return };
    let found = query.find(cached.iter().copied());
    assert!(found.len() <= query.wanted.len() && found.len() <= cached.len());
    for packet in found {
        let header = Header::parse(&packet).expect("a packet");
        assert_eq!((header.destination, header.protocol), (asker, query.protocol));
    }
});
