//! Wire format of standard continuations; a *number* has a variable length.
//!
//! ```text
//!  input continuation   1 | stream | start | reserve | position: numbers | sealed, or nothing
//!  output continuation  2 | stream | start | end: numbers | flags 1: 1 last | leave: number
//!                         | sealed
//!    sealed             number of the secret 1 | MAC 16 | state
//!
//!  a request's data      segments, each
//!    1 input             ends 1 | input continuation* | bytes*         *: preceded by its length
//!    2 close
//!    3 beyond            from: number     send the next input's output from this position
//!
//!  a payload's user      notes, each preceded by its length
//!    1 input continuation   2 output continuation
//!    3 closed            stream | position: numbers      the server reads input only up to there
//!    4 reset             stream: number | reason 1
//!    5 brings            from | to: numbers              output in this answer without an ask
//! ```
//!
//! The first segment of a stream has an unsealed continuation at position 0. The user continuation
//! of an ask is an output continuation, as the server sent it.

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

/// Maximum length of a standard continuation, in bytes; a packet carries several.
pub const MAX_STANDARD: usize = 768;

/// Maximum length of the application's state in a standard continuation, in bytes; the other fields
/// have at most 51.
pub const MAX_STATE: usize = 700;

/// Part of a request's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment<'a> {
    /// Bytes of an input stream.
    Input {
        /// The continuation before the bytes, as received; see [`open_place`].
        continuation: &'a [u8],
        /// True if the stream ends with these bytes.
        ends: bool,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// The client no longer needs the connection.
    Close,
    /// The input in the next segment was also sent with another request. The answer to this request
    /// should contain only the output from this position.
    Beyond(u64),
}

/// Iterator over the segments of a request's data, up to the first malformed one.
#[derive(Clone, Copy, Debug)]
pub struct Segments<'a>(Reader<'a>);

impl<'a> Segments<'a> {
    /// Segments in `data`.
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
                let sane = ends <= 1 && continuation.len() <= MAX_STANDARD;
                sane.then_some(Segment::Input { continuation, ends: ends == 1, bytes })
            }
            CLOSE => Some(Segment::Close),
            BEYOND => self.0.varint().map(Segment::Beyond),
            _ => None,
        }
    }
}

/// Appends an input segment.
pub fn emit_segment(continuation: &[u8], ends: bool, bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&[INPUT, u8::from(ends)]);
    put_counted(out, continuation);
    put_counted(out, bytes);
}

/// Maximum length of a segment without its continuation and its bytes.
pub const SEGMENT: usize = 2 + 2 + 3;

/// Appends the segment that closes a connection.
pub fn emit_close(out: &mut Vec<u8>) {
    out.push(CLOSE);
}

/// Appends a [`Segment::Beyond`].
pub fn emit_beyond(from: u64, out: &mut Vec<u8>) {
    out.push(BEYOND);
    put_varint(out, from);
}

/// Note to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note<'a> {
    /// Input continuation: its public part, and all its bytes.
    Input(Place, &'a [u8]),
    /// Output continuation: its public part, and all its bytes.
    Output(Valid, &'a [u8]),
    /// The server reads only `position` bytes of the stream's input.
    Closed {
        /// Number of the stream.
        stream: u32,
        /// Number of bytes that were read.
        position: u64,
    },
    /// The stream is reset.
    Reset {
        /// Number of the stream.
        stream: u32,
        /// Reason for the reset.
        reason: Reason,
    },
    /// The packets of this answer contain this range of the output, for which there was no ask.
    Brings {
        /// Position of the first byte.
        from: u64,
        /// Position after the last byte.
        to: u64,
    },
}

/// Iterator over the notes in a payload's user continuation, up to the first malformed one.
#[derive(Clone, Copy, Debug)]
pub struct Notes<'a>(Reader<'a>);

impl<'a> Notes<'a> {
    /// Notes in `user`.
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

/// Appends a note without a MAC, because the client does not return it. Panics if the note is a
/// continuation, which [`emit_place`] or [`emit_valid`] emits.
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
        Note::Input(..) | Note::Output(..) => panic!("a continuation must be sealed"),
    }
    put_counted(out, &bytes);
}

/// Maximum length of a note without a MAC, with its length field.
pub const MAX_NOTE: usize = 2 + 1 + 2 * 9;

/// Appends an input continuation with the application's `state` as a note.
pub fn emit_place(ring: &KeyRing, place: &Place, state: &[u8], out: &mut Vec<u8>) {
    put_counted(out, &sealed_place(ring, place, state));
}

/// An input continuation with the application's `state`.
pub fn sealed_place(ring: &KeyRing, place: &Place, state: &[u8]) -> Vec<u8> {
    let mut bytes = first_place(place);
    ring.seal_standard(state, &mut bytes);
    bytes
}

/// Parses an input continuation that has no sealed part and is not the first of its stream. Its
/// place names a continuation that the server may have cached.
pub fn named_place(bytes: &[u8]) -> Option<Place> {
    let mut reader = Reader(bytes);
    let place = place(&mut reader)?;
    (reader.0.is_empty() && place.position > 0).then_some(place)
}

/// Input continuation without a sealed part: the first of a stream, or one whose place names a
/// continuation that the server may have cached.
pub fn first_place(place: &Place) -> Vec<u8> {
    let mut bytes = vec![INPUT];
    put_varint(&mut bytes, place.stream.into());
    for number in [place.start, place.reserve, place.position] {
        put_varint(&mut bytes, number);
    }
    bytes
}

/// Appends an output continuation with the application's `state` as a note.
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

/// Opens an input continuation: place and state. `None` if it was not sealed with a secret of the
/// ring. The first continuation of a stream, at position 0, has no state and need not be sealed.
pub fn open_place<'a>(ring: &KeyRing, bytes: &'a [u8]) -> Option<(Place, &'a [u8])> {
    let mut reader = Reader(bytes);
    let place = place(&mut reader)?;
    if reader.0.is_empty() {
        return (place.position == 0).then_some((place, &[]));
    }
    let state = ring.open_standard(&bytes[..bytes.len() - reader.0.len()], reader.0)?;
    Some((place, state))
}

/// Opens an output continuation: range and state; `None` if no secret of the ring sealed it.
pub fn open_valid<'a>(ring: &KeyRing, bytes: &'a [u8]) -> Option<(Valid, &'a [u8])> {
    let mut reader = Reader(bytes);
    let valid = valid(&mut reader)?;
    let state = ring.open_standard(&bytes[..bytes.len() - reader.0.len()], reader.0)?;
    Some((valid, state))
}

/// Number of the secret that an output continuation names; the MAC is not verified.
pub fn sealed_by(bytes: &[u8]) -> Option<u8> {
    let mut reader = Reader(bytes);
    valid(&mut reader)?;
    reader.u8()
}

/// Seals an output continuation again with the newest secret, and returns it as a note. `None` if
/// it is sealed with the newest secret already, or with a secret that is not in the ring.
pub fn reseal(ring: &KeyRing, bytes: &[u8]) -> Option<Vec<u8>> {
    let other = sealed_by(bytes)? != ring.newest().number();
    let (valid, state) = other.then(|| open_valid(ring, bytes)).flatten()?;
    let mut note = Vec::new();
    emit_valid(ring, &valid, state, &mut note);
    Some(note)
}

/// Number of the stream that a continuation names; the MAC is not verified.
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
