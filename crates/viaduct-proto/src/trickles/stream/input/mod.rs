//! Inputs of the streams: written bytes, which are kept until the server has consumed them.
//!
//! | file | contents |
//! |---|---|
//! | here | [`Inputs`]: all streams of a connection |
//! | `one` | a stream, and the part of its input in flight |
//! | `feed` | the parcels of the transport's requests |

mod feed;
mod one;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use bytes::{Buf as _, Bytes};

use super::Failure;
use crate::trickles::client::HEAD;
use crate::trickles::standard::Place;
use one::{Flight, Input, MAX_TRIES, Reach};

#[derive(Debug, Default)]
pub(super) struct Inputs {
    streams: BTreeMap<u32, Input>,
    /// Maximum length of the input in a request that carries nothing else.
    whole: usize,
    /// Streams with input to send.
    ready: BTreeSet<u32>,
    /// Stream that was served last.
    last: u32,
    /// Number of the next parcel.
    parcel: u64,
    /// True if the connection is to be closed.
    pub(super) close: bool,
    /// Number of requests that may be sent now.
    spare: usize,
    /// Streams with a segment in the last parcel.
    taken: Vec<u32>,
    /// Streams whose input may be sent again to request more of its output.
    eager: VecDeque<u32>,
    /// Output that is expected in answers: stream, parcel, range.
    pub(super) promised: VecDeque<(u32, u64, Range<u64>)>,
}

impl Inputs {
    /// Sets the maximum length of requests to `request` bytes.
    pub(super) fn within(&mut self, request: usize) {
        self.whole = request.saturating_sub(HEAD);
    }

    pub(super) fn begin(&mut self, place: Place) {
        self.streams.insert(place.stream, Input::new(place));
    }

    pub(super) fn room(&self, stream: u32, most: usize) -> usize {
        let input = self.streams.get(&stream).filter(|input| input.is_writing());
        input.map_or(0, |input| most.saturating_sub(input.buffer.len()))
    }

    pub(super) fn is_writing(&self, stream: u32) -> bool {
        self.streams.get(&stream).is_some_and(Input::is_writing)
    }

    /// Accepts as much of `data` as fits in a buffer of `most` bytes, and returns the number of
    /// accepted bytes.
    pub(super) fn write(&mut self, stream: u32, data: &[u8], most: usize) -> usize {
        let taken = self.room(stream, most).min(data.len());
        if let Some(input) = self.streams.get_mut(&stream) {
            input.buffer.extend_from_slice(&data[..taken]);
        }
        self.update_ready(stream);
        taken
    }

    pub(super) fn shutdown(&mut self, stream: u32) {
        if let Some(input) = self.streams.get_mut(&stream) {
            input.ends = true;
        }
        self.update_ready(stream);
    }

    pub(super) fn is_flushed(&self, stream: u32) -> bool {
        self.streams.get(&stream).is_none_or(|input| input.closed || input.buffer.is_empty())
    }

    pub(super) fn failure(&self, stream: u32) -> Option<Failure> {
        self.streams.get(&stream)?.failure
    }

    /// Sets the number of continuations that are kept for a stream's unread output.
    pub(super) fn keeps(&mut self, stream: u32, kept: usize) {
        if let Some(input) = self.streams.get_mut(&stream) {
            input.kept = kept;
        }
        self.update_ready(stream);
    }

    /// Counts an output continuation in the answer to `parcel`.
    pub(super) fn yielded(&mut self, stream: u32, kept: usize, parcel: Option<u64>) {
        if let Some(input) = self.streams.get_mut(&stream) {
            input.yielded(parcel);
        }
        self.keeps(stream, kept);
    }

    /// Returns whether a stream has no more input to send, and all its segments were answered.
    pub(super) fn is_over(&self, stream: u32) -> bool {
        let is_over = |input: &Input| input.closed || input.ends && input.flights.is_empty();
        self.streams.get(&stream).is_none_or(is_over)
    }

    pub(super) fn forget(&mut self, stream: u32) {
        self.streams.remove(&stream);
        self.ready.remove(&stream);
        self.skip_done();
    }

    /// Processes a note in the answer to `parcel`: the server has read up to `place`, and sent
    /// `continuation`. Returns whether the note is new.
    pub(super) fn consumed(
        &mut self,
        place: &Place,
        continuation: Bytes,
        parcel: Option<u64>,
    ) -> bool {
        let Some(input) = self.streams.get_mut(&place.stream) else { return false };
        let taken = place.position.checked_sub(input.place.position);
        let Some(taken) = taken.filter(|&taken| taken <= input.buffer.len() as u64) else {
            return false;
        };
        if place.region() != input.place.region() {
            return false;
        }
        if !input.advance(taken as usize, parcel) {
            return false;
        }
        input.buffer.advance(taken as usize);
        input.place = *place;
        input.continuation = continuation;
        input.unasked = None;
        self.update_ready(place.stream);
        self.skip_done();
        true
    }

    /// Processes a note that the server will not read beyond `position`.
    pub(super) fn closed(&mut self, stream: u32, position: u64) {
        let Some(input) = self.streams.get_mut(&stream) else { return };
        if position >= input.place.position {
            input.closed = true;
            input.buffer.clear();
            input.flights.clear();
            input.unasked = None;
        }
        self.update_ready(stream);
        self.skip_done();
    }

    /// Moves a settled parcel's segments, which will not be answered, back to the unsent input.
    pub(super) fn settle(&mut self, parcel: u64, changed: &mut BTreeSet<u32>) {
        let mut settled = Vec::new();
        for (&stream, input) in &mut self.streams {
            let of_parcel = |flight: &Flight| flight.parcel == parcel;
            let Some(at) = input.flights.iter().position(of_parcel) else { continue };
            // The server did not accept the later segments either.
            input.flights.truncate(at);
            input.unasked = None;
            input.reach.shrink();
            input.tries += u32::from(at == 0);
            if input.tries > MAX_TRIES {
                input.failure = Some(Failure::Stalled);
                changed.insert(stream);
            }
            settled.push(stream);
        }
        settled.into_iter().for_each(|stream| self.update_ready(stream));
        self.skip_done();
    }

    /// Moves all segments in flight back to the unsent input, because no answers will arrive.
    pub(super) fn forget_flight(&mut self) {
        for input in self.streams.values_mut() {
            input.flights.clear();
            input.reach = Reach::default();
            input.unasked = None;
        }
        let streams: Vec<u32> = self.streams.keys().copied().collect();
        streams.into_iter().for_each(|stream| self.update_ready(stream));
        self.skip_done();
    }

    /// Drops streams from the front of `eager` if repeating their input can request no more output.
    fn skip_done(&mut self) {
        let more =
            |input: &Input| input.unasked.as_ref().is_some_and(|unasked| !unasked.is_empty());
        while let Some(stream) = self.eager.front()
            && !self.streams.get(stream).is_some_and(more)
        {
            self.eager.pop_front();
        }
    }

    /// Updates the membership of a stream in `ready`.
    fn update_ready(&mut self, stream: u32) {
        if self.streams.get(&stream).is_some_and(Input::is_ready) {
            self.ready.insert(stream);
        } else {
            self.ready.remove(&stream);
        }
    }
}
