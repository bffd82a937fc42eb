//! HTTP file server over Trickles: the answer to an event depends only on the event and the files
//! (sections 4 and 6.2).
//!
//! ```text
//!   input   state: position of the next response 8 | digest of a head   (at the beginning: none)
//!   output  state: fingerprint 16 | 1, digest of the head  or  2, why the request is refused 1
//! ```
//!
//! Every stream is like a connection of HTTP/1.1: it carries the heads of requests in, and
//! responses out, one after the other. Any byte of a response can be generated again from the
//! digest of its request and the file. The fingerprint of a response is a hash of its head, which
//! has the file's size and time, and of its body if that is not a file. A response that has changed
//! is therefore refused, not continued with other content, even by a replica that has another copy.

use ring::digest;

use super::digest::{Digest, MAX_DIGEST};
use super::{Body, Found, Piece, Plan, Request, RequestError, plan};
use crate::trickles::api::{self, Files, Input, Minisocket, OutputRequest, Reply, Stretch};
use crate::trickles::bytes::Reader;
use crate::trickles::keys::KeyRing;
use crate::trickles::standard::{Place, Reason, Valid};

/// Length of a fingerprint in bytes.
const FINGERPRINT: usize = 16;
/// Maximum number of responses that the inputs of one event begin, over all streams. A new client
/// has not proved its address, and each response costs a file lookup. Clients send inputs of at
/// most this many streams together.
const AT_ONCE: usize = 8;
const REQUEST: u8 = 1;
const REFUSED: u8 = 2;

/// Source of the files.
pub trait Site: Files {
    /// Looks up the object at the request's path; returns it with its number for [`Files::read`].
    fn find(&mut self, request: &Request) -> (Found, u64);

    /// Returns whether [`Site::log`] is to be called.
    fn has_log(&self) -> bool {
        false
    }

    /// Logs a new response: the request line, the status and the length in bytes. Retransmitted
    /// parts are not logged again, but a request that the client repeats after a loss is logged
    /// again.
    fn log(&mut self, line: String, status: u16, bytes: u64) {
        let _ = (line, status, bytes);
    }
}

/// Answers an event.
pub fn respond(ring: &KeyRing, event: &Minisocket, site: &mut impl Site) -> Reply {
    let mut reply = Reply::default();
    read(ring, event, site, &mut reply);
    answer(ring, event, site, &mut reply);
    reply
}

/// Reads the client's inputs.
fn read(ring: &KeyRing, event: &Minisocket, site: &mut impl Site, reply: &mut Reply) {
    let inputs: Vec<_> = event.inputs(ring).collect();
    let (mut left, mut behind) = (AT_ONCE, inputs.len());
    for input in inputs {
        behind -= 1;
        match input {
            // The client repeats an input that is not answered. An acknowledgement without progress
            // would make the client abandon the input.
            Ok(_) if left == 0 => {}
            // Reserves a response for each of the remaining inputs, as far as possible.
            Ok(input) => left -= take(&input, left.saturating_sub(behind).max(1), site, reply),
            Err(strange) => {
                reply.reset(strange.stream, Reason::Unknown);
            }
        }
    }
}

/// Answers the client's requests for parts of responses.
fn answer(ring: &KeyRing, event: &Minisocket, site: &mut impl Site, reply: &mut Reply) {
    let packets = event.room().filter(|&room| room > 0).count();
    let mut known: Vec<(&[u8], Option<Response>)> = Vec::new();
    for asked in event.asks(ring) {
        match asked {
            // No packet of the reply has room for this part.
            Ok(asked) if asked.index >= packets => {}
            Ok(asked) => {
                let at = known.iter().position(|(state, _)| *state == asked.state);
                let at = at.unwrap_or_else(|| {
                    known.push((asked.state, Response::again(asked.state, site)));
                    known.len() - 1
                });
                give(&asked, known[at].1.as_ref(), reply);
            }
            Err(strange) => {
                reply.reset(strange.stream, Reason::Unknown);
            }
        }
    }
}

#[derive(Debug)]
struct Response {
    plan: Plan,
    file: u64,
    state: Vec<u8>,
}

impl Response {
    /// Response to a request that has just been read.
    fn begin(request: Result<Request, RequestError>, site: &mut impl Site) -> Response {
        let line = |request: &Result<Request, RequestError>| {
            request.as_ref().map_or_else(|_| "-".to_owned(), Request::line)
        };
        let line = site.has_log().then(|| line(&request));
        let response = match request {
            Ok(request) => Response::to(request, site),
            Err(why) => Response::refuse(why),
        };
        if let Some(line) = line {
            site.log(line, response.plan.status, response.plan.len());
        }
        response
    }

    fn to(mut request: Request, site: &mut impl Site) -> Response {
        let (found, file) = site.find(&request);
        let plan = plan(&request, &found);
        // Only a redirect repeats the query.
        if plan.status != 301 {
            request.query = None;
        }
        let digest = Digest::of(request).emit();
        if digest.len() > MAX_DIGEST {
            return Response::refuse(RequestError::TooLong);
        }
        Response::new(plan, file, &[&[REQUEST], &digest[..]].concat())
    }

    fn refuse(why: RequestError) -> Response {
        Response::new(Plan::refuse(why), 0, &[REFUSED, why as u8])
    }

    fn new(plan: Plan, file: u64, of: &[u8]) -> Response {
        let state = [&fingerprint(&plan), of].concat();
        Response { plan, file, state }
    }

    /// Response that a continuation's state describes; `None` if the response has changed since.
    fn again(state: &[u8], site: &mut impl Site) -> Option<Response> {
        let mut reader = Reader(state);
        let _fingerprint = reader.take(FINGERPRINT)?;
        let response = match reader.u8()? {
            REQUEST => Response::to(Digest::parse(reader.0)?.into_request()?, site),
            REFUSED => Response::refuse(wrong(reader.u8()?)?),
            _ => return None,
        };
        (response.state == state).then_some(response)
    }

    /// Pieces of the response in `range`.
    fn pieces(&self, range: std::ops::Range<u64>) -> Vec<api::Piece> {
        let piece = |piece: Piece| match piece {
            Piece::Bytes(bytes) => api::Piece::Bytes(bytes),
            Piece::File(part) => api::Piece::File {
                file: self.file,
                offset: part.start,
                length: part.end - part.start,
            },
        };
        self.plan.pieces(range).map(piece).collect()
    }
}

/// Reads at most `most` heads, and begins their responses. Returns the number of responses begun.
fn take(input: &Input, most: usize, site: &mut impl Site, reply: &mut Reply) -> usize {
    let Some((mut at, mut digest)) = known(input) else {
        reply.reset(input.place.stream, Reason::Failed);
        return 0;
    };
    let mut place = input.place;
    let region = place.region();
    let mut brought =
        Stretch { stream: place.stream, position: at, pieces: Vec::new(), ends: false };
    let mut rest = input.bytes;
    let mut begun = 0;
    while begun < most {
        let response = match digest.read(rest) {
            Ok((consumed, request)) => {
                place = place.after(consumed as u64);
                rest = &rest[consumed..];
                request.map(|request| Response::begin(Ok(request), site))
            }
            Err(why) => {
                place = place.after(rest.len() as u64);
                rest = &[];
                Some(Response::begin(Err(why), site))
            }
        };
        let Some(response) = response else { break };
        begun += 1;
        digest = Digest::default();
        let length = response.plan.len();
        let fits = length.min(region.end - at);
        let ends = !response.plan.keep_alive || input.ends && rest.is_empty();
        let last = ends && fits == length;
        let (stream, end) = (place.stream, at + fits);
        let valid = Valid { stream, start: at, end, last, leave: 0 };
        brought.pieces.extend(response.pieces(0..fits));
        reply.output(valid, response.state);
        at = end;
        brought.ends = last;
        if ends || fits < length {
            finish(place, rest, brought, reply);
            return begun;
        }
    }
    if input.ends && begun < most {
        // No further head can be complete: an empty response ends the stream.
        let valid = Valid { stream: place.stream, start: at, end: at, last: true, leave: 0 };
        reply.output(
            valid,
            [&[0; FINGERPRINT][..], &[REFUSED, RequestError::Malformed as u8]].concat(),
        );
        brought.ends = true;
        finish(place, rest, brought, reply);
        return begun;
    }
    let state = [&at.to_be_bytes()[..], &digest.emit()].concat();
    reply.input(place, state).bring(brought);
    begun
}

/// Ends the reading of the stream.
fn finish(place: Place, rest: &[u8], brought: Stretch, reply: &mut Reply) {
    reply.closed(place.stream, place.after(rest.len() as u64).position).bring(brought);
}

/// Position of the next response, and the digest of its request so far.
fn known(input: &Input) -> Option<(u64, Digest)> {
    if input.state.is_empty() {
        return Some((input.place.start, Digest::default()));
    }
    let mut reader = Reader(input.state);
    let at =
        reader.u64().filter(|&at| at >= input.place.start && at <= input.place.region().end)?;
    Some((at, Digest::parse(reader.0)?))
}

/// Answers a request for a part of a response.
fn give(asked: &OutputRequest, response: Option<&Response>, reply: &mut Reply) {
    let valid = asked.valid;
    let Some(response) = response else {
        reply.reset(valid.stream, Reason::Changed);
        return;
    };
    let range = asked.range.start - valid.start..asked.range.end - valid.start;
    let ends = valid.last && asked.range.end == valid.end;
    let (stream, position) = (valid.stream, asked.range.start);
    reply.answer(asked.index, Stretch { stream, position, pieces: response.pieces(range), ends });
}

/// Hash that identifies a response.
fn fingerprint(plan: &Plan) -> [u8; FINGERPRINT] {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(&(plan.head.len() as u64).to_be_bytes());
    context.update(&plan.head);
    match &plan.body {
        Body::Bytes(bytes) => context.update(bytes),
        Body::Page(listing) => context.update(listing.fingerprint()),
        Body::File(range) => context.update(&range.start.to_be_bytes()),
    }
    let mut fingerprint = [0; FINGERPRINT];
    fingerprint.copy_from_slice(&context.finish().as_ref()[..FINGERPRINT]);
    fingerprint
}

fn wrong(byte: u8) -> Option<RequestError> {
    let all = [
        RequestError::Malformed,
        RequestError::Method,
        RequestError::TooLong,
        RequestError::Version,
        RequestError::Unknown,
    ];
    all.into_iter().find(|&wrong| wrong as u8 == byte)
}

#[cfg(test)]
mod tests;
