//! Stateless server: requests of one download without loss, and their answers written out with
//! data. Each request is answered with about two packets. The time is CPU time of the thread.
//!
//! `cargo bench -p viaduct-proto --bench trickles`

mod clock;

use std::collections::VecDeque;
use std::hint::black_box;
use std::net::SocketAddr;

use bytes::Bytes;
use clock::ThreadTime;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use viaduct_proto::time::{Duration, Instant};
use viaduct_proto::trickles::client::{Client, Config};
use viaduct_proto::trickles::keys::KeyRing;
use viaduct_proto::trickles::replay::Replay;
use viaduct_proto::trickles::server::{Event, Server, Settings};
use viaduct_proto::trickles::wire::{Payload, Request};

const REQUESTS: usize = 10_000;
const DATA: [u8; 1_400] = [7; 1_400];

fn server() -> Server {
    let replay = Replay::new(1 << 20, Duration::from_secs(30), [1, 2, 3, 4], Instant::ZERO);
    Server::new(Settings::default(), KeyRing::new(1, &[1; 32]), replay)
}

fn from() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], 4_000))
}

/// Answers one request; each message is passed to `send`.
fn serve(server: &mut Server, message: &[u8], out: &mut Vec<u8>, mut send: impl FnMut(&[u8])) {
    let grant = server.handle(Instant::ZERO, from(), message).expect("an answer");
    let (mut asks, ring) = (Request::parse(message).expect("a request").groups, server.ring());
    let mut user = Vec::new();
    if matches!(grant.event, Event::Open { .. }) {
        ring.seal_user(b"stream", &mut user);
    }
    for (index, permit) in grant.permits().enumerate() {
        let mut payload = Payload { user: &user, ..Payload::default() };
        if let Some((sealed, ask)) = asks.next() {
            assert!(ring.open_user(sealed).is_some());
            payload.position = ask.position;
            payload.data = &DATA[..(ask.length as usize).min(permit.room)];
        }
        out.clear();
        assert!(grant.emit(ring, index, &payload, out));
        send(out);
    }
}

/// Requests of a download.
fn requests() -> Vec<Vec<u8>> {
    let mut server = server();
    let mut open = Bytes::from_static(b"GET");
    let mut client = Client::open(Config::default(), 5, Instant::ZERO);
    let (mut requests, mut out, mut flight) = (Vec::new(), Vec::new(), VecDeque::new());
    while requests.len() < REQUESTS {
        while let Some(request) = client.poll_transmit(Instant::ZERO, &mut open) {
            serve(&mut server, &request, &mut out, |message| flight.push_back(message.to_vec()));
            requests.push(request);
        }
        let message = flight.pop_front().expect("the download continues");
        client.handle(Instant::ZERO, &message);
        while let Some(arrived) = client.poll_arrived() {
            if !arrived.user.is_empty() {
                client.want(0, 1 << 40, arrived.user);
            }
        }
    }
    requests
}

fn answers(criterion: &mut Criterion<ThreadTime>) {
    let requests = requests();
    let mut group = criterion.benchmark_group("server");
    group.throughput(Throughput::Elements(requests.len() as u64));
    group.sample_size(10);
    group.bench_function("requests", |bencher| {
        let mut out = Vec::new();
        bencher.iter_batched(
            server,
            |mut server| {
                for request in &requests {
                    serve(&mut server, request, &mut out, |message| {
                        black_box(message.len());
                    });
                }
                server
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().with_measurement(ThreadTime);
    targets = answers
}
criterion_main!(benches);
