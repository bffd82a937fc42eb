//! Connections to two stateless servers that take turns.

use super::*;
use crate::time::{Duration, Instant};
use crate::trickles::api::Endpoint;
use crate::trickles::packet::Return;
use crate::trickles::replay::Replay;
use crate::trickles::server::{Server, Settings};
use crate::trickles::standard::MAIN;
use crate::trickles::standard::wire::{emit_segment, first_place};
use crate::trickles::stream::{Config, Failure, State, Stream};
use crate::trickles::wire::request::{emit_open, emit_padding};
use crate::web::Listing;

/// The same file, which may change, at every path except `/none` and `/names`.
struct One {
    size: u64,
    modified: u64,
    /// Number of lookups so far.
    looks: usize,
    names: Listing,
    /// Responses begun: request line, status, bytes.
    log: Vec<(String, u16, u64)>,
}

impl Files for One {
    fn read(&mut self, _file: u64, offset: u64, out: &mut [u8]) -> bool {
        let salt = self.modified;
        out.iter_mut().zip(offset..).for_each(|(place, at)| *place = (at ^ at >> 8 ^ salt) as u8);
        true
    }
}

impl Site for One {
    fn find(&mut self, request: &Request) -> (Found, u64) {
        self.looks += 1;
        match request.path.first().map(Vec::as_slice) {
            Some(b"none") => return (Found::Nothing, 0),
            Some(b"names") => return (Found::Directory(self.names.clone()), 0),
            _ => {}
        }
        (Found::File { size: self.size, modified: self.modified, nanos: 0 }, 7)
    }

    fn has_log(&self) -> bool {
        true
    }

    fn log(&mut self, line: String, status: u16, bytes: u64) {
        self.log.push((line, status, bytes));
    }
}

struct World {
    now: Instant,
    client: Stream,
    servers: [Endpoint; 2],
    site: One,
}

impl World {
    fn new() -> World {
        let now = Instant::from_nanos(1 << 50);
        let server = || {
            let replay = Replay::new(1 << 16, Duration::from_secs(30), [1; 4], now);
            let ring = KeyRing::new(1, &[1; 32]);
            Endpoint::new(Server::new(Settings::default(), ring, replay), 100)
        };
        let client = Stream::open(Config::default(), 7, now);
        let site = One {
            size: 100_000,
            modified: 9,
            looks: 0,
            names: Listing::default(),
            log: Vec::new(),
        };
        World { now, client, servers: [server(), server()], site }
    }

    /// Makes a round trip. The servers answer alternately.
    fn turn(&mut self) {
        self.now += Duration::from_millis(20);
        let at = |text: &str| text.parse().unwrap();
        let to = Return::of_datagram(at("192.0.2.1:4000"), at("192.0.2.2:80"));
        let mut answers = Vec::new();
        while let Some(request) = self.client.poll_transmit(self.now) {
            self.servers.swap(0, 1);
            let server = &mut self.servers[0];
            let event = server.accept(self.now, to, &request).unwrap();
            let reply = respond(server.ring(), &event, &mut self.site);
            server.send(event, &reply, &mut self.site, |_, message| {
                answers.push(message.to_vec());
            });
        }
        answers.iter().for_each(|answer| self.client.handle(self.now, answer));
    }

    /// Sends these bytes, `step` at a time, and returns the bytes of the responses.
    fn ask(&mut self, text: &[u8], step: usize) -> Vec<u8> {
        let mut read = Vec::new();
        for part in text.chunks(step) {
            assert_eq!(self.client.write(MAIN, part), part.len());
            self.turn();
        }
        self.client.shutdown(MAIN);
        for _ in 0..60 {
            self.turn();
            while let Some(data) = self.client.read(MAIN) {
                read.extend_from_slice(&data);
            }
        }
        read
    }

    fn expected(&mut self, text: &[u8]) -> Vec<u8> {
        let (mut at, mut whole) = (0, Vec::new());
        while let Ok(Some((request, taken))) = Request::parse(&text[at..]) {
            at += taken;
            let (found, _) = self.site.find(&request);
            let plan = plan(&request, &found);
            for piece in plan.pieces(0..plan.len()) {
                match piece {
                    Piece::Bytes(bytes) => whole.extend_from_slice(&bytes),
                    Piece::File(range) => {
                        let start = whole.len();
                        whole.resize(start + (range.end - range.start) as usize, 0);
                        self.site.read(7, range.start, &mut whole[start..]);
                    }
                }
            }
        }
        whole
    }
}

#[test]
fn a_connection_in_pieces_to_two_servers_equals_the_plan() {
    let cookie = format!("Cookie: {}\r\n", "c".repeat(3_000));
    let text = format!(
        "GET /a.txt HTTP/1.1\r\nHost: h\r\n{cookie}\r\n\r\nHEAD /b HTTP/1.1\r\nHost: h\r\n\r\n\
         GET /c HTTP/1.1\r\nHost: h\r\nRange: bytes=500-40000\r\n\r\nGET /none HTTP/1.1\r\nHost: \
         h\r\n\r\n\
         GET /d HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
    );
    for step in [7, 1_000, 100_000] {
        let mut world = World::new();
        let expected = world.expected(text.as_bytes());
        let read = world.ask(text.as_bytes(), step);
        assert!(read == expected, "{step} at a time: {} of {}", read.len(), expected.len());
        assert_eq!(world.client.state(MAIN), State::Finished);
    }
}

#[test]
fn more_requests_than_begin_at_once_are_all_answered_before_the_end() {
    for count in [AT_ONCE - 1, AT_ONCE, AT_ONCE + 1, 3 * AT_ONCE, 100] {
        let mut world = World::new();
        let text = "GET /none HTTP/1.1\r\nHost: h\r\n\r\n".repeat(count);
        let expected = world.expected(text.as_bytes());
        assert_eq!(world.client.write(MAIN, text.as_bytes()), text.len());
        // No packet is sent before the end is known.
        assert!(world.ask(b"", 1) == expected, "{count}");
        assert_eq!(world.client.state(MAIN), State::Finished);
    }
}

#[test]
fn an_invalid_request_is_answered_and_ends_the_connection() {
    for (text, code) in [
        ("DELETE / HTTP/1.1\r\n\r\n", "405"),
        ("BREW / HTTP/1.1\r\n\r\n", "501"),
        ("GET / HTTP/1.1\r\n\r\n", "400"),
        ("GET /../x HTTP/1.1\r\n\r\n", "400"),
        (&format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(5_000)), "431"),
    ] {
        let mut world = World::new();
        let read = String::from_utf8(world.ask(text.as_bytes(), 10_000)).unwrap();
        assert!(read.starts_with(&format!("HTTP/1.1 {code}")), "{read}");
        assert_eq!(world.client.state(MAIN), State::Finished);
    }
    let mut world = World::new();
    assert_eq!(world.ask(b"GET / HT", 100), b"");
    assert_eq!(world.client.state(MAIN), State::Finished);
}

#[test]
fn a_file_that_changes_is_refused_and_not_mixed() {
    let mut world = World::new();
    world.client.write(MAIN, b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n");
    world.turn();
    world.turn();
    world.site.modified = 10;
    let mut read = Vec::new();
    for _ in 0..20 {
        world.turn();
        while let Some(data) = world.client.read(MAIN) {
            read.extend_from_slice(&data);
        }
    }
    assert_eq!(world.client.state(MAIN), State::Failed(Failure::Reset(Reason::Changed)));
    world.site.modified = 9;
    let expected = world.expected(b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n");
    assert!(!read.is_empty() && expected.starts_with(&read));
}

/// First packet with these inputs, which needs no address token.
fn opening(inputs: usize, text: &str) -> Vec<u8> {
    let mut message = Vec::new();
    emit_open(0, 7, 1_400, &mut message);
    emit_padding(0, &mut message);
    message.push(0);
    for stream in 0..inputs as u32 {
        let start = u64::from(stream) << 20;
        let place = Place { stream, start, reserve: 1 << 20, position: 0 };
        emit_segment(&first_place(&place), true, text.as_bytes(), &mut message);
    }
    message
}

#[test]
fn the_lookups_of_one_packet_are_bounded() {
    for (inputs, text) in [
        (60, "GET / HTTP/1.0\r\n\r\n".to_owned()),
        (6, "GET /names/ HTTP/1.0\r\nConnection: keep-alive\r\n\r\n".repeat(4)),
        (1, "GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n".repeat(25)),
    ] {
        let mut world = World::new();
        let at = |text: &str| text.parse().unwrap();
        let to = Return::of_datagram(at("192.0.2.1:4000"), at("192.0.2.2:80"));
        let message = opening(inputs, &text);
        let server = &mut world.servers[0];
        let event = server.accept(world.now, to, &message).unwrap();
        respond(server.ring(), &event, &mut world.site);
        assert!((1..=AT_ONCE).contains(&world.site.looks), "{inputs}: {}", world.site.looks);
    }
}

#[test]
fn streams_with_too_many_requests_for_one_packet_are_all_answered() {
    let mut world = World::new();
    let text = "GET /none HTTP/1.1\r\nHost: h\r\n\r\n".repeat(3 * AT_ONCE);
    let expected = world.expected(text.as_bytes());
    let streams: Vec<u32> =
        (0..20).map(|_| world.client.request(text.as_bytes(), 1 << 20).unwrap()).collect();
    let mut read = vec![Vec::new(); streams.len()];
    for _ in 0..200 {
        world.turn();
        for (stream, read) in streams.iter().zip(&mut read) {
            while let Some(data) = world.client.read(*stream) {
                read.extend_from_slice(&data);
            }
        }
    }
    for (stream, read) in streams.iter().zip(&read) {
        assert!(*read == expected, "{stream}: {} of {}", read.len(), expected.len());
        assert_eq!(world.client.state(*stream), State::Finished);
    }
}

#[test]
fn a_directory_is_redirected_to_and_its_page_is_sent_completely() {
    let mut world = World::new();
    let names = (0..5_000).map(|n| format!("file-{n}").into_bytes()).collect();
    world.site.names = Listing::new(&[b"names".to_vec()], names, false);
    let text =
        "GET /names?q=1 HTTP/1.1\r\nHost: h\r\n\r\nGET /names/?q=1 HTTP/1.1\r\nHost: h\r\n\r\n";
    let expected = world.expected(text.as_bytes());
    let read = world.ask(text.as_bytes(), 1_000);
    assert!(read == expected, "{} of {}", read.len(), expected.len());
    assert!(read.windows(26).any(|part| part == b"Location: /names/?q=1\r\nCon"));
    let log = world.site.log.iter().map(|(line, status, _)| (line.as_str(), *status));
    let right = [("GET /names?q=1 HTTP/1.1", 301), ("GET /names/ HTTP/1.1", 200)];
    assert_eq!(log.collect::<Vec<_>>(), right, "once each, however many packets they take");
    assert_eq!(world.site.log.iter().map(|entry| entry.2).sum::<u64>(), expected.len() as u64);
}

#[test]
fn a_page_is_neither_created_nor_copied_for_an_event() {
    let mut world = World::new();
    world.site.names = Listing::new(&[], vec![b"a".repeat(100); 1_000], false);
    let text = b"GET /names/ HTTP/1.1\r\nHost: h\r\n\r\n";
    let (request, _) = Request::parse(text).unwrap().unwrap();
    let first = Response::to(request, &mut world.site);
    let again = Response::again(&first.state, &mut world.site).unwrap();
    for response in [first, again] {
        let pieces = response.pieces(0..u64::MAX);
        let [_head, api::Piece::Bytes(page)] = &pieces[..] else { panic!("{pieces:?}") };
        assert_eq!(page.as_ptr(), world.site.names.page().as_ptr());
    }
}
