//! Events for C: the contents of a request, and the reply under construction.
#![allow(unsafe_code)] // exported names, pointers of C

use std::ffi::c_int;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd as _;
use std::os::unix::fs::FileExt as _;

use bytes::Bytes;
use viaduct_proto::trickles::api::{Files, Kind, Minisocket, Piece, Reply, Stretch};
use viaduct_proto::trickles::keys::KeyRing;
use viaduct_proto::trickles::standard::{Place, Valid};

use crate::convert::{count, values};

/// Value of `ask` for bytes that no ask has requested.
const UNASKED: c_int = -1;

/// `minisock`: the right to answer an event.
#[derive(Debug)]
pub struct Minisock {
    pub(crate) event: Minisocket<'static>,
    pub(crate) reply: Reply,
    inputs: Vec<Input>,
    asks: Vec<Ask>,
    /// The first output continuation that was added to the reply.
    given: Option<Valid>,
    /// Bytes to send, by ask.
    stretches: Vec<(c_int, Stretch)>,
}

/// `struct msk_input`: points to bytes that live as long as the event.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Input {
    stream: u32,
    ends: c_int,
    start: u64,
    reserve: u64,
    position: u64,
    state: *const u8,
    state_length: usize,
    data: *const u8,
    length: usize,
}

/// `struct msk_ask`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Ask {
    ask: c_int,
    stream: u32,
    start: u64,
    end: u64,
    position: u64,
    length: u64,
    last: c_int,
    state: *const u8,
    state_length: usize,
}

/// `struct msk_range`: position of bytes in a stream.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Range {
    ask: c_int,
    stream: u32,
    position: u64,
    ends: c_int,
}

impl Minisock {
    pub(crate) fn new(event: Minisocket<'static>, ring: &KeyRing) -> Minisock {
        let mut reply = Reply::default();
        let (mut inputs, mut asks) = (Vec::new(), Vec::new());
        for input in event.inputs(ring) {
            match input {
                Ok(input) => {
                    let Place { stream, start, reserve, position } = input.place;
                    inputs.push(Input {
                        stream,
                        ends: input.ends.into(),
                        start,
                        reserve,
                        position,
                        state: input.state.as_ptr(),
                        state_length: input.state.len(),
                        data: input.bytes.as_ptr(),
                        length: input.bytes.len(),
                    });
                }
                Err(strange) => unknown(&mut reply, strange.stream),
            }
        }
        for asked in event.asks(ring) {
            match asked {
                Ok(asked) => asks.push(Ask {
                    ask: count(asked.index),
                    stream: asked.valid.stream,
                    start: asked.valid.start,
                    end: asked.valid.end,
                    position: asked.range.start,
                    length: asked.range.end - asked.range.start,
                    last: asked.valid.last.into(),
                    state: asked.state.as_ptr(),
                    state_length: asked.state.len(),
                }),
                Err(strange) => unknown(&mut reply, strange.stream),
            }
        }
        Minisock { event, reply, inputs, asks, given: None, stretches: Vec::new() }
    }

    /// Returns the place of an input, by its number in the event, and its length in bytes.
    pub(crate) fn input(&self, number: c_int) -> Option<(Place, u64)> {
        let input = self.inputs.get(usize::try_from(number).ok()?)?;
        let Input { stream, start, reserve, position, length, .. } = *input;
        Some((Place { stream, start, reserve, position }, length as u64))
    }

    /// Adds an output continuation to the reply.
    pub(crate) fn give(&mut self, valid: Valid, state: &[u8]) {
        self.given.get_or_insert(valid);
        self.reply.output(valid, state);
    }

    /// Adds bytes to the reply; the bytes for one ask must be contiguous, and all bytes without an
    /// ask must belong to one stream. Returns false if one of these rules is violated, or if the
    /// ask does not exist or belongs to another stream.
    #[must_use]
    pub(crate) fn put(&mut self, range: &Range, piece: Piece) -> bool {
        let Range { ask, stream, position, ends } = *range;
        let asked = self.asks.iter().find(|known| known.ask == ask);
        if ask != UNASKED && asked.is_none_or(|asked| asked.stream != stream) {
            return false;
        }
        let of = self.stretches.iter_mut().find(|(known, _)| *known == ask);
        if let Some((_, stretch)) = of {
            let fits = stretch.stream == stream && stretch.position + stretch.len() == position;
            stretch.pieces.push(piece);
            stretch.ends |= ends != 0;
            return fits;
        }
        let stretch = Stretch { stream, position, pieces: vec![piece], ends: ends != 0 };
        self.stretches.push((ask, stretch));
        true
    }

    /// Answers the asks with `data`, which begins at the position of the event's first ask. Asks at
    /// lower positions and of other streams are not answered, and bytes outside of all asks are
    /// left out. Without asks, `data` begins at the `start` of the first output continuation that
    /// was added; if none was added either, at the `start` of the first input.
    pub(crate) fn fill(&mut self, data: &Bytes) {
        let Some(first) = self.asks.first().copied() else { return self.put_unasked(data) };
        for ask in self.asks.clone().into_iter().filter(|ask| ask.stream == first.stream) {
            let Some(skip) = ask.position.checked_sub(first.position) else { continue };
            let from = usize::try_from(skip).unwrap_or(usize::MAX).min(data.len());
            let to = from.saturating_add(ask.length as usize).min(data.len());
            let ends = ask.last != 0 && ask.position + (to - from) as u64 == ask.end;
            let range = Range {
                ask: ask.ask,
                stream: ask.stream,
                position: ask.position,
                ends: ends.into(),
            };
            let _ = self.put(&range, Piece::Bytes(data.slice(from..to)));
        }
    }

    fn put_unasked(&mut self, data: &Bytes) {
        let of_input = self.inputs.first().map(|input| (input.stream, input.start, false));
        let given = self.given.map(|valid| {
            let whole = valid.start + data.len() as u64 == valid.end;
            (valid.stream, valid.start, valid.last && whole)
        });
        if let Some((stream, position, ends)) = given.or(of_input) {
            let range = Range { ask: UNASKED, stream, position, ends: ends.into() };
            let _ = self.put(&range, Piece::Bytes(data.clone()));
        }
    }

    pub(crate) fn finish(mut self) -> (Minisocket<'static>, Reply) {
        for (ask, stretch) in self.stretches {
            match usize::try_from(ask) {
                Ok(ask) => self.reply.answer(ask, stretch),
                Err(_) => self.reply.bring(stretch),
            };
        }
        (self.event, self.reply)
    }
}

fn unknown(reply: &mut Reply, stream: u32) {
    reply.reset(stream, viaduct_proto::trickles::standard::Reason::Unknown);
}

/// Reads files by their descriptors.
#[derive(Debug)]
pub(crate) struct Descriptors;

impl Files for Descriptors {
    fn read(&mut self, file: u64, offset: u64, out: &mut [u8]) -> bool {
        let Ok(fd) = c_int::try_from(file) else { return false };
        // SAFETY: the descriptor is not closed here, and the caller of `msk_sendfilev` keeps it
        // open during the call.
        let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
        fd >= 0 && file.read_exact_at(out, offset).is_ok()
    }
}

/// `msk_kind`
#[unsafe(no_mangle)]
pub extern "C" fn msk_kind(msk: &Minisock) -> c_int {
    match msk.event.kind() {
        Kind::Open => 0,
        Kind::Request => 1,
        Kind::Close => 2,
    }
}

/// `msk_connection`
#[unsafe(no_mangle)]
pub extern "C" fn msk_connection(msk: &Minisock) -> u64 {
    msk.event.connection()
}

/// `msk_inputs`
///
/// # Safety
/// `most` inputs can be written at `inputs`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_inputs(msk: &Minisock, inputs: *mut Input, most: c_int) -> c_int {
    // SAFETY: the caller upholds the safety section above.
    let places = unsafe { values(inputs, most) };
    places.iter_mut().zip(&msk.inputs).for_each(|(place, input)| {
        // The length of a released input is kept, to compute positions.
        let length = if input.data.is_null() { 0 } else { input.length };
        *place = Input { length, ..*input };
    });
    count(msk.inputs.len())
}

/// `msk_asks`
///
/// # Safety
/// `most` asks can be written at `asks`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_asks(msk: &Minisock, asks: *mut Ask, most: c_int) -> c_int {
    // SAFETY: the caller upholds the safety section above.
    let places = unsafe { values(asks, most) };
    places.iter_mut().zip(&msk.asks).for_each(|(place, ask)| *place = *ask);
    count(msk.asks.len())
}

/// `msk_rooms`
///
/// # Safety
/// `most` numbers can be written at `rooms`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_rooms(msk: &Minisock, rooms: *mut usize, most: c_int) -> c_int {
    // SAFETY: the caller upholds the safety section above.
    let places = unsafe { values(rooms, most) };
    places.iter_mut().zip(msk.event.room()).for_each(|(place, room)| *place = room);
    count(msk.event.room().len())
}

/// `msk_detach`
#[unsafe(no_mangle)]
pub extern "C" fn msk_detach(_fd: c_int, msk: &mut Minisock) -> c_int {
    // Pointers into the request become invalid when it is released.
    msk.inputs.iter_mut().for_each(|input| {
        input.state_length = 0;
        (input.state, input.data) = (std::ptr::null(), std::ptr::null());
    });
    msk.asks.iter_mut().for_each(|ask| (ask.state_length, ask.state) = (0, std::ptr::null()));
    msk.event.forget_request();
    0
}
