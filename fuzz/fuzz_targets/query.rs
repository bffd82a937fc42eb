//! Queries to the packet cache. Arbitrary bytes are refused or parsed, and a querying host gets
//! only packets that were addressed to it.
#![no_main]

use std::net::IpAddr;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use viaduct_fuzz::{Bytes, packet};
use viaduct_proto::repair::cache::Query;
use viaduct_proto::wire::ip::{Header, MutableFields};

#[derive(Arbitrary, Debug)]
struct Input {
    raw: Bytes,
    /// Fields of a valid query.
    protocol: bool,
    length: u8,
    port: u16,
    offset: u16,
    /// Bytes that the wanted packets have, repeated.
    wanted: Vec<u8>,
    cached: Vec<Cached>,
}

/// Packet in the cache: all bytes after its IP header are equal.
#[derive(Arbitrary, Debug)]
struct Cached {
    v6: bool,
    length: u8,
    filler: u8,
    from_asker: bool,
}

fuzz_target!(|input: Input| {
    let cached = |of: &Cached| {
        let from = if of.from_asker { 0 } else { 1 };
        packet(from, of.v6, of.length.into(), of.filler, MutableFields::default())
    };
    let cached: Vec<_> = input.cached.iter().map(cached).collect();
    let protocol = if input.protocol { 17 } else { 6 };
    let length = 1 + input.length % 16;
    let head = [&[protocol, length][..], &input.port.to_be_bytes(), &input.offset.to_be_bytes()];
    let mut valid = [b"VDC1".as_slice(), &head.concat()].concat();
    valid.extend(input.wanted.iter().flat_map(|byte| vec![*byte; length.into()]));
    for datagram in [&input.raw.0, &valid] {
        find(datagram, &cached);
    }
});

fn find(datagram: &[u8], cached: &[Vec<u8>]) {
    // A host of the first site.
    let asker: IpAddr = [10, 0, 0, 1].into();
    let Some(query) = Query::parse(asker, datagram) else { return };
    let found = query.find(cached.iter().map(Vec::as_slice));
    assert!(found.len() <= query.wanted.len() && found.len() <= cached.len());
    for packet in found {
        let header = Header::parse(&packet).expect("a packet");
        assert_eq!((header.destination, header.protocol), (asker, query.protocol));
    }
}
