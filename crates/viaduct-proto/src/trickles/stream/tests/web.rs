//! Many HTTP requests on one connection: all are answered, and none fails for lack of room.

use std::fmt::Write as _;

use super::world::{endpoint, way_back};
use super::{Config, State, at};
use crate::time::{Duration, Instant};
use crate::trickles::api::{Endpoint, Files};
use crate::trickles::standard::MAIN;
use crate::trickles::stream::Stream;
use crate::web::{Found, Request, Site, respond};

/// A site with a file of this size at every path.
struct Same(u64);

impl Files for Same {
    fn read(&mut self, _file: u64, offset: u64, out: &mut [u8]) -> bool {
        out.iter_mut().zip(offset..).for_each(|(place, at)| *place = at as u8);
        true
    }
}

impl Site for Same {
    fn find(&mut self, _request: &Request) -> (Found, u64) {
        (Found::File { size: self.0, modified: 9, nanos: 0 }, 1)
    }
}

struct World {
    now: Instant,
    client: Stream,
    server: Endpoint,
    site: Same,
}

impl World {
    fn new(config: Config, size: u64) -> World {
        let now = at(1.0);
        let (client, server) = (Stream::open(config, 7, now), endpoint(now));
        World { now, client, server, site: Same(size) }
    }

    /// Runs one round trip, and drops the answers for which `lost` returns true.
    fn turn(&mut self, mut lost: impl FnMut(usize) -> bool) {
        self.now += Duration::from_millis(20);
        if self.client.poll_timeout().is_some_and(|due| due <= self.now) {
            self.client.handle_timeout(self.now);
        }
        let mut answers = Vec::new();
        while let Some(request) = self.client.poll_transmit(self.now) {
            let event = self.server.accept(self.now, way_back(), &request).unwrap();
            let reply = respond(self.server.ring(), &event, &mut self.site);
            self.server.send(event, &reply, &mut self.site, |_, message| {
                answers.push(message.to_vec());
            });
        }
        for (index, answer) in answers.iter().enumerate() {
            if !lost(index) {
                self.client.handle(self.now, answer);
            }
        }
    }

    /// Runs `turns` round trips, and returns the number of bytes read.
    fn read(&mut self, stream: u32, turns: usize) -> usize {
        let mut read = 0;
        for _ in 0..turns {
            self.turn(|_| false);
            while let Some(data) = self.client.read(stream) {
                read += data.len();
            }
        }
        read
    }
}

/// A request whose path has `path` bytes.
fn get(path: usize) -> String {
    format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", "p".repeat(path))
}

/// Length of the response for a file of `size` bytes.
fn response(size: u64) -> usize {
    let mut world = World::new(Config::default(), size);
    world.client.write(MAIN, get(3).as_bytes());
    world.read(MAIN, 100)
}

#[test]
fn requests_with_unread_responses_wait_and_none_is_forgotten() {
    let (size, count) = (10_000, 150);
    let mut world = World::new(Config::default(), size);
    world.client.write(MAIN, get(3).repeat(count).as_bytes());
    (0..100).for_each(|_| world.turn(|_| false));
    assert!(!world.client.is_flushed(MAIN), "further requests wait until responses are read");
    assert_eq!(world.read(MAIN, 300), count * response(size));
    assert!(world.client.is_flushed(MAIN) && world.client.state(MAIN) == State::Open);
}

#[test]
fn parallel_requests_of_which_one_would_be_cut_are_all_answered() {
    for path in [150, 170, 400, 560] {
        let mut world = World::new(Config::default(), 700);
        let all: Vec<u32> =
            (0..10).map(|_| world.client.request(get(path).as_bytes(), 1 << 20).unwrap()).collect();
        let requests = |world: &World| world.client.stats().requests;
        let mut turns = 0;
        while all.iter().any(|&stream| world.client.state(stream) != State::Finished) {
            turns += 1;
            let states: Vec<State> = all.iter().map(|&at| world.client.state(at)).collect();
            assert!(turns < 10, "{path}: {states:?}");
            world.turn(|_| false);
            all.iter().for_each(|&stream| while world.client.read(stream).is_some() {});
        }
        println!("heads of {path} bytes: {turns} turns, {} requests", requests(&world));
    }
}

#[test]
fn an_input_for_which_asks_leave_no_room_is_sent_again_without_asks() {
    let size = 200_000;
    let length = response(size);
    // Either the head, or only the request line, fits in a message by itself.
    for (path, header) in [(480, 0), (540, 0), (480, 2_000)] {
        let config = Config { message: 1_085, request: 1_085, ..Config::default() };
        let mut world = World::new(config, size);
        world.client.write(MAIN, get(3).as_bytes());
        let mut read = world.read(MAIN, 4);
        assert!(read > 0 && read < length, "in the middle: {read}");
        let mut head = get(path);
        head.truncate(head.len() - 2);
        write!(head, "Cookie: {}\r\n\r\n", "c".repeat(header)).unwrap();
        world.client.write(MAIN, head.as_bytes());
        read += world.read(MAIN, 200);
        assert_eq!(world.client.state(MAIN), State::Open, "{path}, {header}");
        assert_eq!(read, 2 * length, "{path}, {header}");
    }
}

#[test]
fn a_response_whose_continuation_was_lost_is_not_forgotten() {
    // The continuations of eight such requests take two packets.
    let (size, count, path) = (3_000, 40, 73);
    let mut text = get(path).repeat(count);
    text.truncate(text.len() - 2);
    text.push_str("Connection: close\r\n\r\n");
    for (lost_turn, lost) in (1..8).flat_map(|turn| (0..3).map(move |lost| (turn, lost))) {
        let mut world = World::new(Config::default(), size);
        world.client.write(MAIN, text.as_bytes());
        (0..lost_turn).for_each(|_| world.turn(|_| false));
        world.turn(|index| index == lost);
        world.read(MAIN, 200);
        let state = world.client.state(MAIN);
        assert_eq!(state, State::Finished, "packet {lost} of round trip {lost_turn}");
    }
}
