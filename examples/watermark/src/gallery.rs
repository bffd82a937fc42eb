//! Replies to events (section 6.2), computed only from the event, the secrets and the files.
//!
//! ```text
//!   GET /4711/cat.jpg     cat.jpg, with the mark of client 4711
//!   output continuation   1 | State      a part of the picture
//!                         2              no picture of that name
//!                         3              invalid request
//! ```
//!
//! A continuation covers the part between its first and last checkpoint. The next continuation is
//! computed when the client asks for the second half of the part. Three packets of this half carry
//! the next continuation in addition to their data (msk_setucont); the client makes a new request
//! for data that does not fit. Any of the three packets is sufficient. The last of them also
//! carries the last byte of the part, so a client that has the complete part also has the next
//! continuation.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use viaduct_proto::trickles::api::{Input, Kind, Minisocket, OutputRequest, Piece, Reply, Stretch};
use viaduct_proto::trickles::keys::KeyRing;
use viaduct_proto::trickles::standard::wire::emit_valid;
use viaduct_proto::trickles::standard::{Reason, Valid};
use viaduct_proto::web::{Body, Found, Method, Plan, Request, RequestError, plan};

use crate::mark::Key;
use crate::picture::Picture;
use crate::state::{MAX_STRIDES, State};

const PICTURE: u8 = 1;
const NOTHING: u8 = 2;
const REFUSED: u8 = 3;
/// Bytes sent without an ask with the first continuation: an initial window.
const FIRST: u64 = 14_000;
/// Number of strides in the first part. Each stride is decoded and marked to compute the checkpoint
/// after it. The part is short, because the client's address is not validated yet.
const FIRST_STRIDES: usize = 16;
const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: image/jpeg\r\nConnection: close\r\n\r\n";

/// Pictures and the key of their marks, both identical on all replicas.
#[derive(Debug)]
pub struct Gallery {
    key: Key,
    pictures: BTreeMap<String, Picture>,
}

/// New continuation: its valid range, and its state as bytes.
type Made = (Valid, Vec<u8>);

impl Gallery {
    /// Creates a gallery without pictures.
    pub fn new(key: Key) -> Gallery {
        Gallery { key, pictures: BTreeMap::new() }
    }

    /// Adds a picture under a name.
    pub fn add(&mut self, name: &str, picture: Picture) {
        self.pictures.insert(name.to_owned(), picture);
    }

    /// Returns the reply to an event.
    pub fn respond(&self, ring: &KeyRing, event: &Minisocket<'_>) -> Reply {
        let mut reply = Reply::default();
        let mut speaks = false;
        for input in event.inputs(ring) {
            let begun = std::mem::replace(&mut speaks, true);
            match input {
                // Only one input of an event is answered. The client retransmits the others.
                Ok(_) if begun => {}
                Ok(input) => self.begin(&input, &mut reply),
                Err(strange) => {
                    reply.reset(strange.stream, Reason::Unknown);
                }
            }
        }
        // Ask `n` belongs to the `n`th packet that has room.
        let with_room: Vec<usize> =
            event.room().enumerate().filter(|(_, room)| *room > 0).map(|(at, _)| at).collect();
        // The address of a client that opens a connection is not validated, so the next part is
        // computed only when the client asks again.
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

    /// Reads a request, and replies with the continuation of its answer.
    fn begin(&self, input: &Input<'_>, reply: &mut Reply) {
        let place = input.place;
        let whole = match Request::parse(input.bytes) {
            // The client sends an incomplete request again, with more bytes. Requests to this
            // service fit in one packet.
            Ok(None) if !input.ends => {
                reply.input(place, []);
                return;
            }
            Ok(None) => Err(RequestError::Malformed),
            Ok(Some((request, _))) => Ok(request),
            Err(wrong) => Err(wrong),
        };
        let all = place.after(input.bytes.len() as u64).position;
        let (valid, state) = self.promise(&whole, place.stream, place.start);
        // The client may have reserved too little for the picture.
        if valid.end > place.region().end {
            reply.reset(place.stream, Reason::Refused);
            return;
        }
        let asked = OutputRequest {
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

    fn promise(&self, request: &Result<Request, RequestError>, stream: u32, start: u64) -> Made {
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

    /// Answers an ask. `packet` is the packet that may carry the next continuation, if any. `next`
    /// caches the next continuation, which is computed for only one part in each event.
    fn give<'m>(
        &self,
        ring: &KeyRing,
        asked: &OutputRequest<'m>,
        packet: Option<usize>,
        next: &mut Option<(&'m [u8], Made)>,
        reply: &mut Reply,
    ) {
        if needs_next(asked) {
            // If the next continuation cannot be sent, the data are withheld as well, and the
            // client asks for them again.
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

    /// Returns the bytes of an ask; `None` if the picture is no longer served.
    fn stretch(&self, asked: &OutputRequest<'_>) -> Option<Stretch> {
        let OutputRequest { valid, range, .. } = asked;
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

    /// Returns the bytes in `range` of the response: HTTP head and picture.
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

    /// Computes the continuation of the part that follows the part of an ask.
    fn next(&self, asked: &OutputRequest<'_>) -> Option<Made> {
        let state = part(asked.state)?;
        let picture = self.of(&state)?;
        let (stride, at) = state.last();
        let checkpoints = picture.checkpoints(&self.key, state.client, stride, at, MAX_STRIDES);
        let next = State { stride, checkpoints, ..state };
        Some(made(&next, picture, asked.valid.stream, false))
    }
}

/// Parses the continuation of a picture; `None` for other continuations.
fn part(state: &[u8]) -> Option<State> {
    State::parse(state.strip_prefix(&[PICTURE])?)
}

/// Builds the continuation of a part; `first` is true for the first part of a picture.
fn made(state: &State, picture: &Picture, stream: u32, first: bool) -> Made {
    let (stride, end) = state.last();
    let place = |offset: u64| state.start + HEAD.len() as u64 + offset;
    let start = if first { state.start } else { place(state.checkpoints[0].offset) };
    let last = stride == picture.strides();
    let valid = Valid { stream, start, end: place(end.offset), last, leave: 0 };
    (valid, [&[PICTURE], &state.emit()[..]].concat())
}

/// Returns whether the answer to an ask must carry the next continuation.
fn needs_next(asked: &OutputRequest<'_>) -> bool {
    let Valid { start, end, last, .. } = asked.valid;
    let length = end - start;
    let marks = [end - length / 2, end - length / 4, end - 1];
    !last && length > 0 && marks.iter().any(|mark| asked.range.contains(mark))
}

/// Returns the HTTP response to a request that gets no picture; `None` for other kinds.
fn failure(kind: u8) -> Option<Vec<u8>> {
    let plan = match kind {
        NOTHING => {
            let request = Request::parse(b"GET / HTTP/1.0\r\n\r\n").ok()??.0;
            plan(&request, &Found::Nothing)
        }
        REFUSED => Plan::refuse(RequestError::Malformed),
        _ => return None,
    };
    match plan.body {
        Body::Bytes(body) => Some([plan.head, body].concat()),
        Body::Page(_) | Body::File(_) => None,
    }
}
