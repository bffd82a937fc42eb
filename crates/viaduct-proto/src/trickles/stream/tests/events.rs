//! Events in the queue of a server. The tests themselves pass messages between client and server.

use super::world::{Behaviour, digest, endpoint, object, serve, way_back};
use super::{Config, DEFAULT_BEHAVIOUR, Failure, State, at};
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use crate::trickles::standard::{MAIN, Reason};
use crate::trickles::stream::Stream;

/// A client's stream whose messages the test passes on.
pub(super) struct ByHand {
    pub(super) now: Instant,
    pub(super) stream: Stream,
}

impl ByHand {
    pub(super) fn new() -> ByHand {
        ByHand { now: at(1.0), stream: Stream::open(Config::default(), 5, at(1.0)) }
    }

    pub(super) fn requests(&mut self) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.stream.poll_transmit(self.now)).collect()
    }

    pub(super) fn take(&mut self, messages: &[Vec<u8>]) {
        messages.iter().for_each(|message| self.stream.handle(self.now, message));
    }

    pub(super) fn read(&mut self, stream: u32) -> Vec<u8> {
        std::iter::from_fn(|| self.stream.read(stream)).flatten().collect()
    }
}

#[test]
fn continuations_of_dropped_secrets_are_reported() {
    let mut server = endpoint(at(0.0));
    let mut hand = ByHand::new();
    let stream = hand.stream.request(b"G200000 7\n", 1 << 20).unwrap();
    for request in hand.requests() {
        server.handle(hand.now, way_back(), &request, usize::MAX).unwrap();
    }
    hand.take(&serve(&mut server, DEFAULT_BEHAVIOUR));
    // Only the new secret is left, so even the transport continuation is unknown.
    server.server_mut().ring_mut().rotate(9, &[9; 32], 1);
    for _ in 0..100 {
        for request in hand.requests() {
            let _ = server.handle(hand.now, way_back(), &request, usize::MAX);
        }
        hand.take(&serve(&mut server, DEFAULT_BEHAVIOUR));
        if let Some(due) = hand.stream.poll_timeout() {
            hand.now = hand.now.max(due);
            hand.stream.handle_timeout(hand.now);
        }
    }
    let unknown = State::Failed(Failure::Reset(Reason::Unknown));
    assert_eq!(hand.stream.state(stream), unknown, "{:?}", hand.stream.stats());
}

#[test]
fn events_of_one_server_are_answered_by_another() {
    let (mut here, mut there) = (endpoint(at(0.0)), endpoint(at(0.0)));
    let mut hand = ByHand::new();
    let stream = hand.stream.request(b"G200000 7\n", 1 << 20).unwrap();
    let mut read = Vec::new();
    let mut moved = 0;
    for round in 0..60 {
        hand.now += Duration::from_millis(10);
        let mut turn = Rng::from_seed(round);
        for request in hand.requests() {
            here.handle(hand.now, way_back(), &request, usize::MAX).unwrap();
        }
        // Some of the waiting events are moved to the other server.
        let mut collection = Vec::new();
        moved += here.extract_events(hand.now, usize::MAX, |_| turn.chance(0.5), &mut collection);
        let mut altered = collection.clone();
        if let Some(byte) = altered.last_mut() {
            *byte ^= 1;
            assert_eq!(there.install_events(hand.now, &altered).refused, 1, "the altered event");
            let first = there.waiting();
            let again = there.install_events(hand.now, &collection);
            assert_eq!((again.taken, again.refused), (1, first), "each once");
        }
        let answers =
            [serve(&mut here, DEFAULT_BEHAVIOUR), serve(&mut there, DEFAULT_BEHAVIOUR)].concat();
        hand.take(&answers);
        read.extend(hand.read(stream));
    }
    assert!(read == object(200_000, 7) && hand.stream.state(stream) == State::Finished);
    assert!(moved > 20 && here.stats().extracted == there.stats().installed);
    // The events are too old to be installed.
    let mut collection = Vec::new();
    let late = hand.stream.request(b"G10 7\n", 20).unwrap();
    let requests = hand.requests();
    requests.iter().for_each(|r| here.handle(hand.now, way_back(), r, usize::MAX).unwrap());
    assert!(!requests.is_empty());
    assert_eq!(here.extract_events(hand.now, 30, |_| true, &mut collection), 0, "none fits");
    let moved = here.extract_events(hand.now, usize::MAX, |_| true, &mut collection);
    assert_eq!(moved, requests.len());
    let later = hand.now + Duration::from_secs(60);
    assert_eq!(there.install_events(later, &collection).taken, 0);
    assert_eq!(hand.stream.state(late), State::Open);
}

#[test]
fn a_detached_event_is_answered_later_and_a_dropped_one_requested_again() {
    let mut server = endpoint(at(0.0));
    let mut hand = ByHand::new();
    hand.stream.write(MAIN, b"G100 7\n");
    let open = hand.requests().remove(0);
    server.handle(hand.now, way_back(), &open, usize::MAX).unwrap();
    let mut event = server.poll_event().unwrap();
    let place = event.inputs(server.ring()).next().unwrap().unwrap().place;
    event.forget_request();
    assert!(event.inputs(server.ring()).next().is_none(), "the request was released");
    let mut reply = crate::trickles::api::Reply::default();
    reply.reset(place.stream, Reason::Refused);
    let mut out = Vec::new();
    server.send(event, &reply, &mut (), |_, message| out.push(message.to_vec()));
    hand.take(&out);
    let refused = State::Failed(Failure::Reset(Reason::Refused));
    assert_eq!(hand.stream.state(MAIN), refused);

    let mut hand = ByHand::new();
    hand.stream.write(MAIN, b"G100 7\n");
    for request in hand.requests() {
        server.handle(hand.now, way_back(), &request, usize::MAX).unwrap();
        let event = server.poll_event().unwrap();
        server.drop_event(event);
    }
    hand.now = hand.stream.poll_timeout().unwrap();
    hand.stream.handle_timeout(hand.now);
    for request in hand.requests() {
        server.handle(hand.now, way_back(), &request, usize::MAX).unwrap();
    }
    hand.take(&serve(&mut server, DEFAULT_BEHAVIOUR));
    assert_eq!(hand.read(MAIN), object(100, 7));
    assert_eq!(server.stats().dropped, 1);
}

#[test]
fn detached_events_are_answered_like_others() {
    let (mut server, mut hand) = (endpoint(at(0.0)), ByHand::new());
    let behaviour = Behaviour { detaches: true, ..DEFAULT_BEHAVIOUR };
    let get = hand.stream.request(b"G200000 7\n", 1 << 20).unwrap();
    let mut wanted = Vec::new();
    let (mut both, mut said) = (0, Vec::new());
    for round in 0..60 {
        hand.now += Duration::from_millis(10);
        // Uploads are sent with the asks, and answered with their data.
        if round < 40 {
            let put = hand.stream.request(format!("U{round}").as_bytes(), 16).unwrap();
            said.push((put, digest(round.to_string().as_bytes(), [0; 2])));
        }
        for request in hand.requests() {
            server.handle(hand.now, way_back(), &request, usize::MAX).unwrap();
            let event = crate::trickles::wire::Request::parse(&request).unwrap();
            both += usize::from(event.groups.count() > 0 && !event.data.is_empty());
        }
        hand.take(&serve(&mut server, behaviour));
        wanted.extend(hand.read(get));
    }
    assert!(wanted == object(200_000, 7));
    for (put, digest) in said {
        assert_eq!(hand.read(put), digest.map(u64::to_be_bytes).concat());
    }
    assert!(both > 2, "requests with asks and inputs: {both}");
}

#[test]
fn the_queue_is_bounded_and_keeps_no_answered_events() {
    let mut server = endpoint(at(0.0));
    for n in 0..1_500 {
        let mut stream = Stream::open(Config::default(), n, at(1.0));
        stream.write(MAIN, b"G100 7\n");
        let open = stream.poll_transmit(at(1.0)).unwrap();
        server.handle(at(1.0), way_back(), &open, usize::MAX).unwrap();
    }
    assert_eq!((server.waiting(), server.stats().overflowed), (1_000, 500));
    assert_eq!(serve(&mut server, DEFAULT_BEHAVIOUR).len(), 1_000);
    assert_eq!(server.waiting(), 0);
}

#[test]
fn a_closed_connection_is_reported() {
    let mut server = endpoint(at(0.0));
    let mut hand = ByHand::new();
    hand.stream.write(MAIN, b"G100 7\n");
    for _ in 0..4 {
        for request in hand.requests() {
            server.handle(hand.now, way_back(), &request, usize::MAX).unwrap();
        }
        hand.take(&serve(&mut server, DEFAULT_BEHAVIOUR));
    }
    assert_eq!(hand.read(MAIN), object(100, 7));
    hand.stream.close();
    let requests = hand.requests();
    assert_eq!(requests.len(), 1);
    server.handle(hand.now, way_back(), &requests[0], usize::MAX).unwrap();
    assert_eq!(server.poll_event().unwrap().kind(), crate::trickles::api::Kind::Close);
}
