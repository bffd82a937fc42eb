//! What an event is answered with (section 6.2): from the event, the secrets and the files alone.
//!
//! ```text
//!   GET /4711/cat.jpg     cat.jpg, with the mark of client 4711
//!   output continuation   1 | State      a part of the picture
//!                         2              nothing of that name
//!                         3              no request of this kind
//! ```
//!
//! A continuation yields what its checkpoints reach. The next one is made while packets of the last half of
//! it are asked for: it is put into three of them, beside their data (msk_setucont), and what has no room then
//! is asked for again. Each of the three would do. In the last of them is the last byte, so no client has all
//! of a part without what the next one takes.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use viaduct_proto::trickles::api::{Asked, Input, Kind, Minisocket, Piece, Reply, Stretch};
use viaduct_proto::trickles::keys::KeyRing;
use viaduct_proto::trickles::standard::wire::emit_valid;
use viaduct_proto::trickles::standard::{Reason, Valid};
use viaduct_proto::web::{Body, Found, Method, Plan, Request, Wrong, plan};

use crate::mark::Key;
use crate::picture::Picture;
use crate::state::{MAX_STRIDES, State};

const PICTURE: u8 = 1;
const NOTHING: u8 = 2;
const REFUSED: u8 = 3;
/// Bytes that come with the promise, unasked: a first window.
const FIRST: u64 = 14_000;
/// Strides of the first part: who asks has proven nothing yet, and each is read and marked for the checkpoint behind it.
const FIRST_STRIDES: usize = 16;
const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: image/jpeg\r\nConnection: close\r\n\r\n";

/// The pictures, and the key of their marks. Replicas have the same.
#[derive(Debug)]
pub struct Gallery {
    key: Key,
    pictures: BTreeMap<String, Picture>,
}

/// A continuation in the making.
type Made = (Valid, Vec<u8>);

impl Gallery {
    /// Without pictures.
    pub fn new(key: Key) -> Gallery {
        Gallery { key, pictures: BTreeMap::new() }
    }

    /// One more.
    pub fn add(&mut self, name: &str, picture: Picture) {
        self.pictures.insert(name.to_owned(), picture);
    }

    /// The answer to an event.
    pub fn respond(&self, ring: &KeyRing, event: &Minisocket<'_>) -> Reply {
        let mut reply = Reply::default();
        let mut speaks = false;
        for input in event.inputs(ring) {
            let begun = std::mem::replace(&mut speaks, true);
            match input {
                // One at a time: what nothing is said to is sent again.
                Ok(_) if begun => {}
                Ok(input) => self.begin(&input, &mut reply),
                Err(strange) => {
                    reply.reset(strange.stream, Reason::Unknown);
                }
            }
        }
        // The ask of each packet, of those that have room.
        let with_room: Vec<usize> =
            event.room().enumerate().filter(|(_, room)| *room > 0).map(|(at, _)| at).collect();
        // Who opens a connection has proven nothing: the next part is made for him when he asks once more.
        let proven = event.kind() == Kind::Request;
        let mut next = None;
        for asked in event.asks(ring) {
            match asked {
                Ok(asked) => {
                    let packet = with_room.get(asked.index).copied();
                    let packet = packet.filter(|_| proven && !speaks);
                    self.give(ring, &asked, packet, &mut next, &mut reply);
                }
                Err(strange) => {
                    reply.reset(strange.stream, Reason::Unknown);
                }
            }
        }
        reply
    }

    /// Reads a request, and promises the answer.
    fn begin(&self, input: &Input<'_>, reply: &mut Reply) {
        let place = input.place;
        let whole = match Request::parse(input.bytes) {
            // What has not all come, comes again with more; a packet holds what is asked here.
            Ok(None) if !input.ends => {
                reply.input(place, []);
                return;
            }
            Ok(None) => Err(Wrong::Malformed),
            Ok(Some((request, _))) => Ok(request),
            Err(wrong) => Err(wrong),
        };
        let all = place.after(input.bytes.len() as u64).position;
        let (valid, state) = self.promise(&whole, place.stream, place.start);
        // There is room in the region for any picture: but whoever asks may have reserved less.
        if valid.end > place.region().end {
            reply.reset(place.stream, Reason::Refused);
            return;
        }
        let asked = Asked {
            index: 0,
            valid,
            state: &state,
            range: place.start..valid.end.min(place.start + FIRST),
        };
        if let Some(stretch) = self.stretch(&asked) {
            reply.bring(stretch);
        }
        reply.closed(place.stream, all).output(valid, state);
    }

    fn promise(&self, request: &Result<Request, Wrong>, stream: u32, start: u64) -> Made {
        let wanted = request.as_ref().ok().filter(|request| request.method == Method::Get);
        let found = wanted.and_then(|request| {
            let [client, name] = &request.path[..] else { return None };
            let (client, name) = (str::from_utf8(client).ok()?, str::from_utf8(name).ok()?);
            Some((client.parse().ok()?, self.pictures.get(name)?))
        });
        if let Some((client, picture)) = found {
            let checkpoints =
                picture.checkpoints(&self.key, client, 0, picture.first(), FIRST_STRIDES);
            let print = picture.print();
            let state = State { print, client, start, stride: 0, checkpoints };
            return made(&state, picture, stream, true);
        }
        let kind = if wanted.is_some() { NOTHING } else { REFUSED };
        let end = start + failure(kind).map_or(0, |text| text.len() as u64);
        (Valid { stream, start, end, last: true, leave: 0 }, vec![kind])
    }

    /// Answers an ask, in packet `packet` if that may bring the part behind: `next`, of one part for each event.
    fn give<'m>(
        &self,
        ring: &KeyRing,
        asked: &Asked<'m>,
        packet: Option<usize>,
        next: &mut Option<(&'m [u8], Made)>,
        reply: &mut Reply,
    ) {
        if needs_next(asked) {
            // Without it the end of this part is no good: it is asked for again.
            let Some(packet) = packet else { return };
            if next.is_none() {
                *next = self.next(asked).map(|made| (asked.state, made));
            }
            let Some((of, (next, state))) = next else { return };
            if *of != asked.state {
                return;
            }
            let mut note = Vec::new();
            emit_valid(ring, next, state, &mut note);
            reply.set_user(packet, note);
        }
        match self.stretch(asked) {
            Some(stretch) => reply.answer(asked.index, stretch),
            None => reply.reset(asked.valid.stream, Reason::Changed),
        };
    }

    /// The bytes that are asked for; none if the picture is another by now.
    fn stretch(&self, asked: &Asked<'_>) -> Option<Stretch> {
        let Asked { valid, range, .. } = asked;
        let bytes = match part(asked.state) {
            Some(state) => self.bytes(&state, self.of(&state)?, range),
            None => {
                let text = failure(*asked.state.first()?)?;
                let place = |at: u64| ((at - valid.start) as usize).min(text.len());
                text[place(range.start)..place(range.end)].to_vec()
            }
        };
        let ends = valid.last && range.end == valid.end;
        let pieces = vec![Piece::Bytes(Bytes::from(bytes))];
        Some(Stretch { stream: valid.stream, position: range.start, pieces, ends })
    }

    fn of(&self, state: &State) -> Option<&Picture> {
        self.pictures.values().find(|picture| picture.print() == state.print)
    }

    /// The bytes that are asked for, of head and picture.
    fn bytes(&self, state: &State, picture: &Picture, range: &Range<u64>) -> Vec<u8> {
        let range = range.start - state.start..range.end - state.start;
        let head = HEAD.len() as u64;
        let place = |at: u64| (at.min(head)) as usize;
        let mut bytes = HEAD[place(range.start)..place(range.end)].to_vec();
        let range = range.start.saturating_sub(head)..range.end.saturating_sub(head);
        if !range.is_empty() {
            let from = state.before(range.start);
            bytes.extend(picture.bytes(&self.key, state.client, from, range));
        }
        bytes
    }

    /// The part behind that of an ask.
    fn next(&self, asked: &Asked<'_>) -> Option<Made> {
        let state = part(asked.state)?;
        let picture = self.of(&state)?;
        let (stride, at) = state.last();
        let checkpoints = picture.checkpoints(&self.key, state.client, stride, at, MAX_STRIDES);
        let next = State { stride, checkpoints, ..state };
        Some(made(&next, picture, asked.valid.stream, false))
    }
}

/// What a continuation of a picture says.
fn part(state: &[u8]) -> Option<State> {
    State::parse(state.strip_prefix(&[PICTURE])?)
}

/// The continuation of a part.
fn made(state: &State, picture: &Picture, stream: u32, first: bool) -> Made {
    let (stride, end) = state.last();
    let place = |offset: u64| state.start + HEAD.len() as u64 + offset;
    let start = if first { state.start } else { place(state.checkpoints[0].offset) };
    let last = stride == picture.strides();
    let valid = Valid { stream, start, end: place(end.offset), last, leave: 0 };
    (valid, [&[PICTURE], &state.emit()[..]].concat())
}

/// Whether the packet of an ask is one of those that bring the next continuation.
fn needs_next(asked: &Asked<'_>) -> bool {
    let Valid { start, end, last, .. } = asked.valid;
    let length = end - start;
    let marks = [end - length / 2, end - length / 4, end - 1];
    !last && length > 0 && marks.iter().any(|mark| asked.range.contains(mark))
}

/// What is said where there is no picture.
fn failure(kind: u8) -> Option<Vec<u8>> {
    let plan = match kind {
        NOTHING => {
            let request = Request::parse(b"GET / HTTP/1.0\r\n\r\n").ok()??.0;
            plan(&request, &Found::Nothing)
        }
        REFUSED => Plan::refuse(Wrong::Malformed),
        _ => return None,
    };
    match plan.body {
        Body::Bytes(body) => Some([plan.head, body].concat()),
        Body::Page(_) | Body::File(_) => None,
    }
}
