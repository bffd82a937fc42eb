//! Bounds on the size and cost of messages, for any input from the peer.

use bytes::Bytes;

use crate::sim::trickles::world::{address, serve, server};
use crate::time::{Duration, Instant};
use crate::trickles::client::{Client, Config};
use crate::trickles::continuation::{Continuation, Losses, Mode};
use crate::trickles::epoch::{Acks, Epoch};
use crate::trickles::keys::KeyRing;
use crate::trickles::proof::{self, Range};
use crate::trickles::replay::Replay;
use crate::trickles::server::{Refusal, Server, Settings};
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

/// The request of a client that returns `known`, sealed with the newest secret, and has received
/// all packets of the epoch up to the continuation's packet except `lost`.
fn request(server: &Server, known: Continuation, lost: &[u64]) -> Vec<u8> {
    let (ring, first) = (server.ring(), known.epoch.base);
    let (newest, of_nonces) = (ring.newest(), ring.get(known.nonces).unwrap());
    let known = Continuation { address: newest.address(address()), ..known };
    let series = of_nonces.series(known.connection, known.generation, address());
    let (mut nonces, mut next, mut ranges) = (of_nonces.nonces(series), first, Vec::new());
    for &end in lost.iter().chain(&[known.number + 1]) {
        if end > next {
            ranges.push(Range { first: next, last: end - 1, sum: nonces.sum(next, end - 1) });
        }
        next = end + 1;
    }
    let (mut bytes, mut proof, mut request) = (Vec::new(), Vec::new(), Vec::new());
    known.emit(newest, &mut bytes);
    proof::emit(first, &ranges, &mut proof);
    emit_returned(1, 0, &bytes, None, None, &proof, &mut request);
    request.push(0);
    request
}

/// A server, and the request of a client that has received only the first and last packets of a
/// window. The answer consists mostly of continuations without data.
fn lossy(window: u16, message: u16) -> (Server, Vec<u8>) {
    let server = server(Settings::default(), NOW);
    let mut known = known(window, message);
    let first = known.number;
    known.number += u64::from(window) - 1;
    let lost: Vec<u64> = (first + 1..known.number).collect();
    let request = request(&server, known, &lost);
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
fn a_group_is_no_longer_than_its_clients_limit() {
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
fn a_group_is_split_if_the_path_mtu_is_smaller_than_its_clients_limit() {
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

#[test]
fn a_request_that_names_an_entire_window_leaves_room_in_the_replay_window() {
    let (mut server, request) = lossy(65_534, 1_400);
    *server.replay_mut() = Replay::new(1 << 16, Duration::from_secs(30), [1, 2, 3, 4], NOW);
    assert!(request.len() < 130, "{} bytes", request.len());
    let messages = serve(&mut server, NOW, address(), 1 << 40, &request);
    assert_eq!(grouped(&messages).len(), 2_048);
    assert!(server.replay().is_fresh(NOW, NOW), "new continuations are accepted");
}

#[test]
fn a_refused_request_is_not_counted_as_a_recovery() {
    let (mut server, request) = lossy(100, 1_400);
    assert!(!serve(&mut server, NOW, address(), 1 << 40, &request).is_empty());
    assert!(matches!(server.handle(NOW, address(), &request), Err(Refusal::Replayed)));
    assert_eq!(server.stats().recoveries, 1);
}

/// Asserts that `request` gets an address token, which counts as renewed and not as moved.
fn assert_renewed(server: &mut Server, request: &[u8]) {
    let answer = serve(server, NOW, address(), 1 << 40, request);
    let token = Response::parse(&answer[0]).unwrap();
    assert!(answer.len() == 1 && matches!(token.form, Form::AddressToken(_)), "{token:?}");
    let stats = server.stats();
    assert_eq!((stats.renewed, stats.moved, stats.greedy), (1, 0, 0), "{stats:?}");
}

#[test]
fn a_dropped_secret_of_the_nonces_is_neither_a_move_nor_an_attack() {
    let mut server = server(Settings::default(), NOW);
    server.ring_mut().rotate(2, &[2; 32], 2);
    let short = request(&server, known(100, 1_400), &[]);
    let long = [&short[..], &[0; 60]].concat();
    // Drops secret 1, from which the nonces are derived, and keeps secret 2, which has sealed the
    // continuation.
    server.ring_mut().rotate(3, &[3; 32], 2);
    assert_renewed(&mut server, &long);
    assert!(matches!(server.handle(NOW, address(), &short), Err(Refusal::Expired)));
    assert_eq!((server.stats().stale, server.stats().greedy), (1, 0));
}

#[test]
fn an_epoch_ends_before_its_offsets_exceed_the_continuation() {
    let mut server = server(Settings::default(), NOW);
    let first = known(100, 1_400);
    for (offset, is_renewed) in [((1 << 31) - 1, false), (1 << 31, true)] {
        let known = Continuation { number: first.number + offset, ..first };
        let long = [request(&server, known, &[]), vec![0; 60]].concat();
        if is_renewed {
            assert_renewed(&mut server, &long);
        } else {
            assert!(!serve(&mut server, NOW, address(), 1 << 40, &long).is_empty());
            assert_eq!(server.stats().renewed, 0);
        }
    }
}

#[test]
fn an_overtaken_request_far_before_a_reported_loss_is_answered() {
    let mut server = server(Settings { make_up: 0, ..Settings::default() }, NOW);
    let first = known(5_000, 1_400);
    let at = |offset| Continuation { number: first.number + offset, ..first };
    let lost = first.number + 4_000;
    let report = request(&server, at(4_101), &[lost]);
    server.handle(NOW, address(), &report).unwrap();
    for offset in [21, 3_001, 3_999] {
        let overtaken = request(&server, at(offset), &[]);
        assert!(server.handle(NOW, address(), &overtaken).is_ok(), "{offset}");
    }
    for offset in [4_001, 4_103] {
        let denied = request(&server, at(offset), &[]);
        let refusal = server.handle(NOW, address(), &denied).unwrap_err();
        assert_eq!(refusal, Refusal::Forked { base: first.epoch.base }, "{offset}");
    }
}
