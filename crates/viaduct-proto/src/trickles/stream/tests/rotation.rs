//! Rotation of secrets between a request and its answer, and servers whose newest secrets
//! differ.

use super::events::ByHand;
use super::world::{Behaviour, Browser, Node, endpoint, object, serve, way_back};
use super::{DEFAULT_BEHAVIOUR, World, at};
use crate::time::Duration;
use crate::trickles::api::Endpoint;
use crate::trickles::stream::{Config, State};

const LENGTH: u64 = 400_000;

/// The secret with this number; 1 is the secret of [`endpoint`].
fn secret(number: u8) -> [u8; 32] {
    [if number == 1 { 3 } else { number }; 32]
}

/// Replaces the secrets of `server` by those with these numbers, the newest last.
fn give(server: &mut Endpoint, numbers: &[u8]) {
    for &number in numbers {
        server.server_mut().ring_mut().rotate(number, &secret(number), numbers.len());
    }
}

/// Fetches an object; `answers` returns the answers to the requests of each round. The client must
/// not see a loss, a timeout, or an address token.
fn fetch(mut answers: impl FnMut(u8, &ByHand, Vec<Vec<u8>>) -> Vec<Vec<u8>>) {
    let mut hand = ByHand::new();
    let stream = hand.stream.request(b"G400000 7\n", 1 << 20).unwrap();
    let mut read = Vec::new();
    for round in 0..40 {
        hand.now += Duration::from_millis(10);
        let requests = hand.requests();
        let answers = answers(round, &hand, requests);
        hand.take(&answers);
        read.extend(hand.read(stream));
    }
    let stats = hand.stream.stats();
    assert_eq!((stats.recoveries, stats.restarts, stats.probes, stats.lost), (0, 0, 0, 0));
    assert_eq!(hand.stream.state(stream), State::Finished, "{stats:?}");
    assert!(read == object(LENGTH, 7));
}

#[test]
fn secrets_are_rotated_between_a_request_and_its_answer() {
    for (detaches, apart) in [(false, 1), (false, 3), (true, 1), (true, 3)] {
        let mut server = endpoint(at(0.0));
        fetch(|round, hand, requests| {
            for request in requests {
                server.handle(hand.now, way_back(), &request, usize::MAX).unwrap();
            }
            if round % apart == 0 {
                let number = 2 + round / apart;
                server.server_mut().ring_mut().rotate(number, &secret(number), 50);
            }
            serve(&mut server, Behaviour { detaches, ..DEFAULT_BEHAVIOUR })
        });
        let stats = server.server().stats();
        assert_eq!((stats.refused(), stats.moved), (0, 0), "{stats:?}");
        assert_eq!(server.stats().outlived, 0);
    }
}

#[test]
fn an_event_is_answered_by_a_server_whose_newest_secret_is_another() {
    for (here_has, there_has) in [([2, 1], [1, 2]), ([1, 2], [2, 1])] {
        let (mut here, mut there) = (endpoint(at(0.0)), endpoint(at(0.0)));
        give(&mut here, &here_has);
        give(&mut there, &there_has);
        fetch(|round, hand, requests| {
            for request in requests {
                here.handle(hand.now, way_back(), &request, usize::MAX).unwrap();
            }
            let mut collection = Vec::new();
            let count =
                here.extract_events(hand.now, usize::MAX, |_| round % 4 != 1, &mut collection);
            assert_eq!(there.install_events(hand.now, &collection).taken, count);
            [serve(&mut here, DEFAULT_BEHAVIOUR), serve(&mut there, DEFAULT_BEHAVIOUR)].concat()
        });
        assert_eq!((here.server().stats().refused(), here.server().stats().moved), (0, 0));
        assert!(there.stats().installed > 20);
    }
}

#[test]
fn an_event_whose_secret_is_gone_is_counted_and_not_answered() {
    let mut hand = ByHand::new();
    hand.stream.request(b"G100 7\n", 100).unwrap();
    let open = hand.requests().remove(0);
    let mut server = endpoint(at(0.0));
    server.handle(hand.now, way_back(), &open, usize::MAX).unwrap();
    give(&mut server, &[2]);
    assert!(serve(&mut server, DEFAULT_BEHAVIOUR).is_empty());
    assert_eq!((server.stats().outlived, server.stats().sent), (1, 0));
    // A server that can decrypt the event, but cannot answer it, does not accept it either.
    let (mut here, mut there) = (endpoint(at(0.0)), endpoint(at(0.0)));
    here.handle(hand.now, way_back(), &open, usize::MAX).unwrap();
    give(&mut here, &[1, 2]);
    give(&mut there, &[2]);
    let mut collection = Vec::new();
    assert_eq!(here.extract_events(hand.now, usize::MAX, |_| true, &mut collection), 1);
    let done = there.install_events(hand.now, &collection);
    assert_eq!((done.taken, done.refused, there.stats().strange), (0, 1, 1));
}

#[test]
fn a_download_outlives_the_secret_that_it_began_with() {
    [false, true].into_iter().for_each(outlives);
}

/// Fetches an object while secrets are rotated. The server detaches requests if `detaches`.
fn outlives(detaches: bool) {
    let link = "rate=20M,delay=10ms,queue=200kB";
    let behaviour = Behaviour { detaches, ..DEFAULT_BEHAVIOUR };
    let mut world = World::new(Browser::new(Config::default()), behaviour, link, 3);
    let stream = world.browser().stream.request(b"G10000000 7\n", 1 << 30).unwrap();
    // The second secret is added as the newest one; the third replaces the first.
    for (seconds, number) in [(1.0, 2), (2.0, 3)] {
        world.sim.run_until(at(seconds));
        let Node::Server { endpoint, .. } = world.sim.node_mut(world.server) else { panic!() };
        endpoint.server_mut().ring_mut().rotate(number, &secret(number), 2);
    }
    // The transport's state is lost with the secret: the client gets an address token, as after a
    // move, and then slow start.
    world.sim.run_until(at(5.5));
    world.browser().pump();
    let stats = world.browser().stream.stats();
    assert_eq!(world.browser().stream.state(stream), State::Finished, "{stats:?}");
    assert!(world.browser().read[stream as usize] == object(10_000_000, 7));
    let endpoint = world.sim.node(world.server).endpoint();
    assert_eq!((endpoint.stats().unknown, endpoint.server().stats().opened), (0, 1));
}
