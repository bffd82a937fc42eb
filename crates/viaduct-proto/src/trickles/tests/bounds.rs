//! Bounds on the size and cost of messages, for any input from the peer.

use bytes::Bytes;

use crate::sim::trickles::world::{address, serve, server};
use crate::time::Instant;
use crate::trickles::client::{Client, Config};
use crate::trickles::continuation::{Continuation, Losses, Mode};
use crate::trickles::epoch::{Acks, Epoch};
use crate::trickles::keys::KeyRing;
use crate::trickles::proof::{self, Range};
use crate::trickles::server::{Server, Settings};
use crate::trickles::wire::request::emit_returned;
use crate::trickles::wire::response::{self, Head, Kind};
use crate::trickles::wire::{Form, Payload, Response};

const NOW: Instant = Instant::from_nanos(1_000_000_000_000);

/// A continuation in a window of `window` packets, of a client that accepts messages of
/// `message` bytes.
fn known(window: u16, message: u16) -> Continuation {
    let acks = Acks { delayed: true, by_request: false };
    let epoch = Epoch { base: 1_000, start: window, ssthresh: window, acks };
    Continuation {
        mode: Mode::Begun,
        connection: 5,
        generation: 0,
        tag: 7,
        epoch,
        number: epoch.base,
        timestamp: NOW.as_nanos() / 1_000,
        rtt: 1_000,
        nonces: 1,
        address: 0,
        message,
        burst: 8,
        delta: true,
        losses: Losses::default(),
    }
}

/// A server, and the request of a client that has received only the first and last packets of a
/// window. The answer consists mostly of continuations without data.
fn lossy(window: u16, message: u16) -> (Server, Vec<u8>) {
    let server = server(Settings::default(), NOW);
    let keys = server.ring().newest();
    let mut known = Continuation {
        nonces: keys.number(),
        address: keys.address(address()),
        ..known(window, message)
    };
    let first = known.number;
    known.number += u64::from(window) - 1;
    let mut nonces = keys.nonces(known.connection);
    let mut range = |number| Range { first: number, last: number, sum: nonces.of(number) };
    let ranges = [range(first), range(known.number)];
    let (mut bytes, mut proof, mut request) = (Vec::new(), Vec::new(), Vec::new());
    known.emit(keys, &mut bytes);
    proof::emit(first, &ranges, &mut proof);
    emit_returned(1, 0, &bytes, None, None, &proof, &mut request);
    request.push(0);
    (server, request)
}

/// The packets of an answer that are in groups.
fn grouped(messages: &[Vec<u8>]) -> Vec<u64> {
    let of = |message| match Response::parse(message).unwrap().form {
        Form::Group(group) => group.packets().map(|(number, ..)| number).collect(),
        _ => Vec::new(),
    };
    messages.iter().map(Vec::as_slice).flat_map(of).collect()
}

#[test]
fn a_group_is_no_longer_than_its_client_takes() {
    let numbers = |message: u16| {
        let (mut server, request) = lossy(100, message);
        let messages = serve(&mut server, NOW, address(), 1 << 40, &request);
        assert!(messages.iter().all(|answer| answer.len() <= message.into()), "{message}");
        grouped(&messages)
    };
    let most = numbers(1_400);
    assert!(most.len() > 32, "{most:?}");
    assert!([512, 600, 700].map(numbers).iter().all(|fewer| *fewer == most));
}

#[test]
fn a_group_becomes_several_where_the_path_mtu_is_smaller_than_its_client_said() {
    let (mut server, request) = lossy(100, 1_400);
    let mut grant = server.handle(NOW, address(), &request).unwrap();
    let emit = |grant: &crate::trickles::server::Grant, server: &Server| -> Vec<Vec<u8>> {
        let message = |at| {
            let mut message = Vec::new();
            assert!(grant.emit(server.ring(), at, &Payload::default(), &mut message));
            message
        };
        (0..grant.permits().len()).map(message).collect()
    };
    let wide = emit(&grant, &server);
    grant.fit(512);
    let narrow = emit(&grant, &server);
    assert!(wide.iter().any(|message| message.len() > 512));
    assert!(narrow.iter().all(|message| message.len() <= 512));
    assert_eq!(grouped(&wide), grouped(&narrow));
}

#[test]
fn an_unrequested_generation_is_refused() {
    let ring = KeyRing::new(1, &[1; 32]);
    let mut client = Client::open(Config::default(), 7, NOW);
    client.want(0, 1 << 40, Bytes::from_static(b"u"));
    let mut feed = Bytes::from_static(b"GET");
    let mut said = |client: &mut Client, known: &Continuation, address_token: bool| {
        let (tag, generation, number) = (7, known.generation, known.number);
        let head = Head { tag, generation, number, nonce: 1 };
        let kind = if address_token { Kind::AddressToken } else { Kind::Fresh };
        let mut message = Vec::new();
        response::emit(ring.newest(), (kind, head), known, &Payload::default(), &mut message);
        client.handle(NOW, &message);
        while client.poll_transmit(NOW, &mut feed).is_some() {}
        client.stats().refused
    };
    let mut known = known(u16::MAX, 1_400);
    let address_token = Continuation { mode: Mode::AddressToken, ..known };
    assert_eq!(said(&mut client, &address_token, true), 0);
    assert_eq!(said(&mut client, &known, false), 0);
    assert_eq!(client.in_flight(), usize::from(u16::MAX));
    for refused in 1..9 {
        known.generation += 1;
        known.epoch.base += 1 << 20;
        known.number = known.epoch.base;
        assert_eq!(said(&mut client, &known, false), refused);
    }
}
