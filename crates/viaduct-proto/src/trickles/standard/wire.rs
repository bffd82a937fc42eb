//! The bytes of standard continuations; *number* is of variable length.
//!
//! ```text
//!  input continuation    1 | stream | start | reserve | position: numbers     | sealed, or nothing
//!  output continuation   2 | stream | start | end: numbers | flags 1: 1 last | leave: number | sealed
//!    sealed              number of the secret 1 | code 16 | state
//!
//!  a request's data      segments, each
//!    1 input             ends 1 | input continuation, a number before it | bytes, a number before them
//!    2 close
//!    3 beyond            from: number     of what the input behind it yields, what stands there and beyond
//!
//!  a payload's user      notes, each with a number before it
//!    1 input continuation   2 output continuation
//!    3 closed            stream | position: numbers      no more than that is read of its input
//!    4 reset             stream: number | reason 1
//!    5 brings            from | to: numbers              what else comes with this answer
//! ```
//!
//! The first segment of a stream has a continuation at position 0 that is not sealed. An ask's user
//! continuation is an output continuation, as it came.

use super::{END, Place, Reason, Valid};
use crate::trickles::bytes::{Reader, put_counted, put_varint};
use crate::trickles::keys::KeyRing;

const INPUT: u8 = 1;
const OUTPUT: u8 = 2;
const CLOSED: u8 = 3;
const RESET: u8 = 4;
const BRINGS: u8 = 5;
const CLOSE: u8 = 2;
const BEYOND: u8 = 3;
const LAST: u8 = 1;

/// Longest standard continuation, in bytes: several go with one packet.
pub const MOST_STANDARD: usize = 768;

/// Longest state of the application's in one, in bytes: what else there is takes 51 at most.
pub const MOST_STATE: usize = 700;

/// A part of a request's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment<'a> {
    /// Bytes of an input stream.
    Input {
        /// The continuation that they follow, as it came; see [`open_place`].
        continuation: &'a [u8],
        /// Whether the stream ends with them.
        ends: bool,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// The client needs the connection no more.
    Close,
    /// The input behind it went with another request, too; of what it yields this one is to bring only
    /// what stands here and beyond.
    Beyond(u64),
}

/// The segments of a request's data, until they end or cannot be read.
#[derive(Clone, Copy, Debug)]
pub struct Segments<'a>(Reader<'a>);

impl<'a> Segments<'a> {
    /// Those in `data`.
    pub fn new(data: &'a [u8]) -> Self {
        Segments(Reader(data))
    }
}

impl<'a> Iterator for Segments<'a> {
    type Item = Segment<'a>;

    fn next(&mut self) -> Option<Segment<'a>> {
        match self.0.u8()? {
            INPUT => {
                let ends = self.0.u8()?;
                let continuation = self.0.counted()?;
                let bytes = self.0.counted()?;
                let sane = ends <= 1 && continuation.len() <= MOST_STANDARD;
                sane.then_some(Segment::Input { continuation, ends: ends == 1, bytes })
            }
            CLOSE => Some(Segment::Close),
            BEYOND => self.0.varint().map(Segment::Beyond),
            _ => None,
        }
    }
}

/// Appends a segment of `bytes`.
pub fn emit_segment(continuation: &[u8], ends: bool, bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&[INPUT, u8::from(ends)]);
    put_counted(out, continuation);
    put_counted(out, bytes);
}

/// Bytes of a segment beside its continuation and its bytes, at most.
pub const SEGMENT: usize = 2 + 2 + 3;

/// Appends the segment that closes a connection.
pub fn emit_close(out: &mut Vec<u8>) {
    out.push(CLOSE);
}

/// Appends the segment that has the answer to the input behind it brought from there on.
pub fn emit_beyond(from: u64, out: &mut Vec<u8>) {
    out.push(BEYOND);
    put_varint(out, from);
}

/// A note to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note<'a> {
    /// An input continuation: what it says, and its bytes.
    Input(Place, &'a [u8]),
    /// An output continuation: what it says, and its bytes.
    Output(Valid, &'a [u8]),
    /// No more than `position` bytes of the stream's input are read.
    Closed {
        /// The stream.
        stream: u32,
        /// Bytes that were read.
        position: u64,
    },
    /// The server does not go on with the stream.
    Reset {
        /// The stream.
        stream: u32,
        /// Why.
        reason: Reason,
    },
    /// The packets of this answer bring these bytes of the output.
    Brings {
        /// The first.
        from: u64,
        /// One behind the last.
        to: u64,
    },
}

/// The notes in a payload's user continuation, until they end or cannot be read.
#[derive(Clone, Copy, Debug)]
pub struct Notes<'a>(Reader<'a>);

impl<'a> Notes<'a> {
    /// Those in `user`.
    pub fn new(user: &'a [u8]) -> Self {
        Notes(Reader(user))
    }
}

impl<'a> Iterator for Notes<'a> {
    type Item = Note<'a>;

    fn next(&mut self) -> Option<Note<'a>> {
        let bytes = self.0.counted()?;
        let mut reader = Reader(bytes);
        let note = match reader.u8()? {
            INPUT => Note::Input(place(&mut Reader(bytes))?, bytes),
            OUTPUT => Note::Output(valid(&mut Reader(bytes))?, bytes),
            CLOSED => Note::Closed { stream: stream(&mut reader)?, position: reader.varint()? },
            RESET => Note::Reset { stream: stream(&mut reader)?, reason: reason(reader.u8()?)? },
            BRINGS => {
                let (from, to) = (reader.varint()?, reader.varint()?);
                (from <= to && to <= END).then_some(Note::Brings { from, to })?
            }
            _ => return None,
        };
        Some(note)
    }
}

/// Appends a note that no code protects: it is for the client alone.
///
/// # Panics
/// It is a continuation: [`emit_place`] and [`emit_valid`] make those.
pub fn emit_note(note: &Note, out: &mut Vec<u8>) {
    let mut bytes = Vec::new();
    match *note {
        Note::Closed { stream, position } => {
            bytes.push(CLOSED);
            put_varint(&mut bytes, stream.into());
            put_varint(&mut bytes, position);
        }
        Note::Reset { stream, reason } => {
            bytes.push(RESET);
            put_varint(&mut bytes, stream.into());
            bytes.push(reason as u8);
        }
        Note::Brings { from, to } => {
            bytes.push(BRINGS);
            put_varint(&mut bytes, from);
            put_varint(&mut bytes, to);
        }
        Note::Input(..) | Note::Output(..) => panic!("continuations are sealed"),
    }
    put_counted(out, &bytes);
}

/// Most bytes of a note that no code protects, the number before it among them.
pub const MOST_NOTE: usize = 2 + 1 + 2 * 9;

/// Appends a note: an input continuation with the application's `state`.
pub fn emit_place(ring: &KeyRing, place: &Place, state: &[u8], out: &mut Vec<u8>) {
    put_counted(out, &sealed_place(ring, place, state));
}

/// An input continuation with the application's `state`.
pub fn sealed_place(ring: &KeyRing, place: &Place, state: &[u8]) -> Vec<u8> {
    let mut bytes = first_place(place);
    ring.seal_standard(state, &mut bytes);
    bytes
}

/// The place that stands in what should be an input continuation and has nothing sealed, though it is
/// not the first of its stream: the server is to know the rest.
pub fn named_place(bytes: &[u8]) -> Option<Place> {
    let mut reader = Reader(bytes);
    let place = place(&mut reader)?;
    (reader.0.is_empty() && place.position > 0).then_some(place)
}

/// The continuation of a stream that begins, which is not sealed; or of a place whose continuation the server
/// may have.
pub fn first_place(place: &Place) -> Vec<u8> {
    let mut bytes = vec![INPUT];
    put_varint(&mut bytes, place.stream.into());
    for number in [place.start, place.reserve, place.position] {
        put_varint(&mut bytes, number);
    }
    bytes
}

/// Appends a note: an output continuation with the application's `state`.
pub fn emit_valid(ring: &KeyRing, valid: &Valid, state: &[u8], out: &mut Vec<u8>) {
    let mut bytes = vec![OUTPUT];
    put_varint(&mut bytes, valid.stream.into());
    put_varint(&mut bytes, valid.start);
    put_varint(&mut bytes, valid.end);
    bytes.push(if valid.last { LAST } else { 0 });
    put_varint(&mut bytes, valid.leave.into());
    ring.seal_standard(state, &mut bytes);
    put_counted(out, &bytes);
}

/// The place and the state in an input continuation; none if no secret of the ring has sealed it. The
/// first of a stream, at position 0, has no state and need not be sealed.
pub fn open_place<'a>(ring: &KeyRing, bytes: &'a [u8]) -> Option<(Place, &'a [u8])> {
    let mut reader = Reader(bytes);
    let place = place(&mut reader)?;
    if reader.0.is_empty() {
        return (place.position == 0).then_some((place, &[]));
    }
    let state = ring.open_standard(&bytes[..bytes.len() - reader.0.len()], reader.0)?;
    Some((place, state))
}

/// The range and the state in an output continuation; none if no secret of the ring has sealed it.
pub fn open_valid<'a>(ring: &KeyRing, bytes: &'a [u8]) -> Option<(Valid, &'a [u8])> {
    let mut reader = Reader(bytes);
    let valid = valid(&mut reader)?;
    let state = ring.open_standard(&bytes[..bytes.len() - reader.0.len()], reader.0)?;
    Some((valid, state))
}

/// The number of the secret that an output continuation says it is sealed by.
pub fn sealed_by(bytes: &[u8]) -> Option<u8> {
    let mut reader = Reader(bytes);
    valid(&mut reader)?;
    reader.u8()
}

/// The note of an output continuation that another secret than the newest has sealed, by the newest; None if that has
/// sealed it, or none.
pub fn reseal(ring: &KeyRing, bytes: &[u8]) -> Option<Vec<u8>> {
    let other = sealed_by(bytes)? != ring.newest().number();
    let (valid, state) = other.then(|| open_valid(ring, bytes)).flatten()?;
    let mut note = Vec::new();
    emit_valid(ring, &valid, state, &mut note);
    Some(note)
}

/// The stream that a continuation says it is of, whoever has made it.
pub fn claimed_stream(bytes: &[u8]) -> Option<u32> {
    let of_input = || place(&mut Reader(bytes)).map(|place| place.stream);
    valid(&mut Reader(bytes)).map(|valid| valid.stream).or_else(of_input)
}

fn place(reader: &mut Reader) -> Option<Place> {
    let _kind = reader.u8().filter(|&kind| kind == INPUT)?;
    let stream = stream(reader)?;
    let (start, reserve, position) = (reader.varint()?, reader.varint()?, reader.varint()?);
    let end = start.checked_add(reserve)?;
    let sane = end <= END && position <= END;
    sane.then_some(Place { stream, start, reserve, position })
}

fn valid(reader: &mut Reader) -> Option<Valid> {
    let _kind = reader.u8().filter(|&kind| kind == OUTPUT)?;
    let stream = stream(reader)?;
    let (start, end) = (reader.varint()?, reader.varint()?);
    let flags = reader.u8()?;
    let leave = reader.varint()?.try_into().ok()?;
    let sane = start <= end && end <= END && flags <= LAST;
    sane.then_some(Valid { stream, start, end, last: flags == LAST, leave })
}

fn stream(reader: &mut Reader) -> Option<u32> {
    reader.varint()?.try_into().ok()
}

fn reason(byte: u8) -> Option<Reason> {
    let all = [Reason::Refused, Reason::Changed, Reason::Unknown, Reason::Failed];
    all.into_iter().find(|&reason| reason as u8 == byte)
}
