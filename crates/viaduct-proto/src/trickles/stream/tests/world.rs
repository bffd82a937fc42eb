//! A stateless server of objects and uploads, and a client's stream, over simulated links.
//!
//! ```text
//!   G line         LENGTH SEED\n    LENGTH bytes made from SEED; several lines: in order
//!   U bytes...     consumed in pieces; the output is their hash and count
//! ```

use std::collections::VecDeque;

use bytes::Bytes;

use crate::rng::Rng;
use crate::sim::{Machine, Port};
use crate::time::{Duration, Instant};
use crate::trickles::api::{
    Endpoint, Files, Input, Kind, Minisocket, OutputRequest, Piece, Reply, Stretch,
};
use crate::trickles::keys::KeyRing;
use crate::trickles::packet::Return;
use crate::trickles::replay::Replay;
use crate::trickles::server::{Server, Settings};
use crate::trickles::standard::{Place, Reason, Valid};
use crate::trickles::stream::{Config, Stream};

/// Byte `at` of the object of `seed`.
pub(super) fn byte(seed: u64, at: u64) -> u8 {
    ((at ^ at >> 8 ^ at >> 16).wrapping_mul(31) ^ seed) as u8
}

pub(super) fn object(length: u64, seed: u64) -> Vec<u8> {
    (0..length).map(|at| byte(seed, at)).collect()
}

/// Answer of the server to an upload.
pub(super) fn digest(bytes: &[u8], so_far: [u64; 2]) -> [u64; 2] {
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    [bytes.iter().fold(so_far[0], step), so_far[1] + bytes.len() as u64]
}

fn words<const N: usize>(state: &[u8]) -> Option<[u64; N]> {
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(state.chunks(8)) {
        *word = u64::from_be_bytes(bytes.try_into().ok()?);
    }
    (state.len() == 8 * N).then_some(words)
}

fn state(tag: u8, words: &[u64]) -> Vec<u8> {
    let mut state = vec![tag];
    words.iter().for_each(|word| state.extend_from_slice(&word.to_be_bytes()));
    state
}

/// Objects, as files by seed.
struct Objects;

impl Files for Objects {
    fn read(&mut self, file: u64, offset: u64, out: &mut [u8]) -> bool {
        out.iter_mut().zip(offset..).for_each(|(place, at)| *place = byte(file, at));
        true
    }
}

/// Behaviour of the server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Behaviour {
    /// Maximum number of bytes that the server consumes of a packet.
    pub(super) max_consumed: usize,
    /// True if the server knows the length of an object before it has sent the object.
    pub(super) knows_length: bool,
    /// Maximum length of messages that the path delivers, to the server and back, in bytes.
    pub(super) longest: [usize; 2],
    /// True if the server knows the limit of the path back.
    pub(super) fits: bool,
    /// True if the server detaches requests before it answers.
    pub(super) detaches: bool,
}

/// The application: a function of the event.
fn answer(ring: &KeyRing, event: &Minisocket, behaviour: Behaviour) -> Reply {
    let mut reply = Reply::default();
    for input in event.inputs(ring) {
        match input {
            Ok(input) => read(&input, behaviour, &mut reply),
            Err(strange) => {
                reply.reset(strange.stream, Reason::Unknown);
            }
        }
    }
    let rooms: Vec<u64> = event.room().map(|room| room as u64).filter(|&room| room > 0).collect();
    for asked in event.asks(ring) {
        if let Ok(OutputRequest { index, range, .. }) = &asked {
            assert!(range.end - range.start <= rooms[*index]);
        }
        match asked {
            Ok(asked) => yield_range(&asked, &mut reply),
            Err(strange) => {
                reply.reset(strange.stream, Reason::Unknown);
            }
        }
    }
    reply
}

fn read(input: &Input, behaviour: Behaviour, reply: &mut Reply) {
    let place = input.place;
    let (tag, known, bytes, skipped) = match (input.state.split_first(), input.bytes) {
        (Some((&tag, known)), bytes) => (tag, known, bytes, 0),
        (None, [tag, bytes @ ..]) => (*tag, &[][..], bytes, 1),
        (None, []) => {
            reply.closed(place.stream, 0);
            return;
        }
    };
    if tag == b'U' {
        let so_far = words(known).unwrap_or_default();
        let taken = &bytes[..bytes.len().min(behaviour.max_consumed)];
        let digest = digest(taken, so_far);
        if input.ends && taken.len() == bytes.len() {
            let said: Vec<u8> = digest.map(u64::to_be_bytes).concat();
            let (stream, start) = (place.stream, place.start);
            let end = start + said.len() as u64;
            let valid = Valid { stream, start, end, last: true, leave: 0 };
            let stretch = Stretch {
                stream,
                position: start,
                pieces: vec![Piece::Bytes(said.into())],
                ends: true,
            };
            reply.closed(stream, place.position + skipped + taken.len() as u64);
            reply.output(valid, state(b'D', &digest)).bring(stretch);
        } else {
            reply.input(place.after(skipped + taken.len() as u64), state(b'U', &digest));
        }
        return;
    }
    let [at] = words(known).unwrap_or([place.start]);
    let line = bytes.iter().position(|&byte| byte == b'\n');
    let Some(line) = line.filter(|&line| line < behaviour.max_consumed) else {
        if input.ends {
            let valid = Valid { stream: place.stream, start: at, end: at, last: true, leave: 0 };
            reply.closed(place.stream, place.position + skipped + bytes.len() as u64);
            reply.output(valid, state(b'O', &[0, 0, at]));
        } else {
            reply.input(place.after(skipped), state(b'G', &[at]));
        }
        return;
    };
    let text = std::str::from_utf8(&bytes[..line]).unwrap();
    let (length, seed) = text.split_once(' ').unwrap();
    let (length, seed): (u64, u64) = (length.parse().unwrap(), seed.parse().unwrap());
    let taken = skipped + line as u64 + 1;
    let next = place.after(taken);
    let last = input.ends && taken as usize == input.bytes.len();
    if last {
        reply.closed(place.stream, next.position);
    } else {
        reply.input(next, state(b'G', &[at + length]));
    }
    yield_object(&place, [length, seed, at], last, behaviour, reply);
}

fn yield_object(
    place: &Place,
    object: [u64; 3],
    last: bool,
    behaviour: Behaviour,
    reply: &mut Reply,
) {
    let [length, seed, start] = object;
    let fits = length.min(place.region().end - start);
    let end = if behaviour.knows_length { start + fits } else { place.region().end };
    let last_known = last && behaviour.knows_length && fits == length;
    let valid = Valid { stream: place.stream, start, end, last: last_known, leave: 0 };
    let pieces = vec![Piece::File { file: seed, offset: 0, length: fits }];
    let ends = last && fits == length;
    let tag = if last { b'L' } else { b'O' };
    reply.output(valid, state(tag, &object));
    reply.bring(Stretch { stream: place.stream, position: start, pieces, ends });
}

fn yield_range(asked: &OutputRequest, reply: &mut Reply) {
    let stretch =
        |pieces, position, ends| Stretch { stream: asked.valid.stream, position, pieces, ends };
    if let Some(said) = asked.state.strip_prefix(b"D") {
        let skip = (asked.range.start - asked.valid.start) as usize;
        let piece = Piece::Bytes(Bytes::copy_from_slice(&said[skip..]));
        reply.answer(asked.index, stretch(vec![piece], asked.range.start, true));
        return;
    }
    let (&tag, words_of) = asked.state.split_first().unwrap();
    let [length, seed, start] = words(words_of).unwrap();
    let from = asked.range.start.min(start + length);
    let to = asked.range.end.min(start + length);
    let piece = Piece::File { file: seed, offset: from - start, length: to - from };
    let ends = tag == b'L' && to == start + length;
    reply.answer(asked.index, stretch(vec![piece], from, ends));
}

pub(super) fn endpoint(now: Instant) -> Endpoint {
    let ring = KeyRing::new(1, &[3; 32]);
    let replay = Replay::new(1 << 22, Duration::from_secs(30), [1, 2, 3, 4], now);
    Endpoint::new(Server::new(Settings::default(), ring, replay), 1_000)
}

pub(super) fn way_back() -> Return {
    let at = |text: &str| text.parse().unwrap();
    Return::of_datagram(at("192.0.2.1:4000"), at("192.0.2.2:80"))
}

/// Answers all events in the queue.
pub(super) fn serve(endpoint: &mut Endpoint, behaviour: Behaviour) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    while let Some(mut event) = endpoint.poll_event() {
        if event.kind() == Kind::Close {
            endpoint.drop_event(event);
            continue;
        }
        if behaviour.fits {
            event.fit(behaviour.longest[1]);
        }
        let reply = answer(endpoint.ring(), &event, behaviour);
        if behaviour.detaches {
            event.forget_request();
        }
        endpoint.send(event, &reply, &mut Objects, |_, message| out.push(message.to_vec()));
    }
    out
}

/// A client, the data still to be written, and the data that was read.
#[derive(Debug)]
pub(super) struct Browser {
    pub(super) stream: Stream,
    pub(super) now: Instant,
    /// Bytes still to be written, each with its stream.
    pub(super) to_write: VecDeque<(u32, Vec<u8>)>,
    pub(super) read: Vec<Vec<u8>>,
    /// If set, the client reads only at random times.
    pub(super) slow: Option<Rng>,
}

impl Browser {
    pub(super) fn new(config: Config) -> Self {
        Browser {
            stream: Stream::open(config, 77, Instant::ZERO),
            now: Instant::ZERO,
            to_write: VecDeque::new(),
            read: vec![Vec::new()],
            slow: None,
        }
    }

    /// Queues `data` to be written to a stream, which then ends.
    pub(super) fn write(&mut self, stream: u32, data: Vec<u8>) {
        self.to_write.push_back((stream, data));
        self.pump();
    }

    pub(super) fn pump(&mut self) {
        for (stream, data) in &mut self.to_write {
            let written = self.stream.write(*stream, data);
            data.drain(..written);
            if data.is_empty() {
                self.stream.shutdown(*stream);
            }
        }
        self.to_write.retain(|(_, data)| !data.is_empty());
        if self.slow.as_mut().is_some_and(|rng| rng.chance(0.97)) {
            return;
        }
        while let Some(stream) = self.stream.poll_changed() {
            let at = stream as usize;
            self.read.resize(self.read.len().max(at + 1), Vec::new());
            while let Some(data) = self.stream.read(stream) {
                self.read[at].extend_from_slice(&data);
            }
        }
    }
}

/// A node of the simulation.
#[derive(Debug)]
pub(super) enum Node {
    Client(Box<Browser>),
    Server { endpoint: Box<Endpoint>, behaviour: Behaviour, now: Instant, out: VecDeque<Vec<u8>> },
}

impl Node {
    pub(super) fn browser(&mut self) -> &mut Browser {
        let Node::Client(browser) = self else { panic!("no client") };
        browser
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        let Node::Server { endpoint, .. } = self else { panic!("no server") };
        endpoint
    }
}

impl Machine for Node {
    fn handle_packet(&mut self, now: Instant, _port: Port, packet: Vec<u8>) {
        match self {
            Node::Client(browser) => {
                browser.now = now;
                browser.stream.handle(now, &packet);
                browser.pump();
            }
            Node::Server { endpoint, behaviour, now: clock, out } => {
                *clock = now;
                let [there, back] = behaviour.longest;
                if packet.len() <= there {
                    let _ = endpoint.handle(now, way_back(), &packet, usize::MAX);
                }
                let answers = serve(endpoint, *behaviour).into_iter();
                out.extend(answers.filter(|answer| answer.len() <= back));
            }
        }
    }

    fn poll_transmit(&mut self) -> Option<(Port, Vec<u8>)> {
        let message = match self {
            Node::Client(browser) => browser.stream.poll_transmit(browser.now),
            Node::Server { out, .. } => out.pop_front(),
        };
        Some((0, message?))
    }

    fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Node::Client(browser) => browser.stream.poll_timeout(),
            Node::Server { .. } => None,
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        if let Node::Client(browser) = self {
            browser.now = now;
            browser.stream.handle_timeout(now);
            browser.pump();
        }
    }
}
