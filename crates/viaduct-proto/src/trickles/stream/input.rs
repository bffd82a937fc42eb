//! What is written, until it is consumed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use bytes::{Buf as _, Bytes, BytesMut};

use super::Failure;
use crate::trickles::client::Feed;
use crate::trickles::standard::Place;
use crate::trickles::standard::wire::{
    MOST_NOTE, SEGMENT, emit_beyond, emit_close, emit_segment, first_place,
};

/// Most segments in a request: the first packet of its answer must hold what is said to them.
const MOST_SEGMENTS: usize = 8;
/// Least bytes of a stream that a further segment is made for.
const WORTHWHILE: usize = 64;
/// Most segments of a stream that are on their way.
const MOST_AHEAD: usize = 64;
/// After so many requests with nothing said to what they took along a stream fails.
const MOST_TRIES: u32 = 32;
/// Bytes of an output that are asked for with its input alone, before there is a continuation, at most.
const EAGER: u64 = 32 << 10;

/// The input streams of a connection.
#[derive(Debug, Default)]
pub(super) struct Inputs {
    streams: BTreeMap<u32, Input>,
    /// Those that have something to send.
    ready: BTreeSet<u32>,
    /// The stream that was served last.
    last: u32,
    parcel: u64,
    close: bool,
    /// Requests that may be sent now.
    spare: usize,
    /// The streams that were taken along last, whose output may be asked for with the same input.
    taken: Vec<u32>,
    eager: VecDeque<u32>,
    /// Of which stream requests that are sent bring what, by parcel.
    promised: VecDeque<(u32, u64, Range<u64>)>,
}

#[derive(Debug)]
struct Input {
    place: Place,
    continuation: Bytes,
    /// What was written behind `place`.
    buffer: BytesMut,
    /// Nothing follows.
    ends: bool,
    /// The server reads no more.
    closed: bool,
    /// What requests have taken along of which nothing was said yet, in the order of the bytes.
    flights: VecDeque<Flight>,
    reach: Reach,
    /// The server has taken nothing of this.
    refused: Option<Flight>,
    tries: u32,
    failure: Option<Failure>,
    /// What of the output no request brings yet, and may be asked for with the input alone.
    unasked: Option<Range<u64>>,
}

/// What a request has taken along.
#[derive(Clone, Copy, Debug)]
struct Flight {
    parcel: u64,
    bytes: usize,
    /// The end was told.
    ends: bool,
    /// More was there than room for it.
    cut: bool,
}

/// How many segments may be on their way. Those behind the first name a place alone: the server may have
/// the continuation of it, which it has just made. Where it has not, as replicas that answer in turn have not,
/// or where it consumes no whole packets, there is one at a time.
#[derive(Debug)]
struct Reach {
    segments: usize,
    /// So many are to be consumed before there are more.
    wait: u32,
    /// That much, when next something was in vain.
    patience: u32,
}

impl Default for Reach {
    fn default() -> Self {
        Reach { segments: 1, wait: 0, patience: 0 }
    }
}

impl Reach {
    fn grow(&mut self) {
        if self.wait > 0 {
            self.wait -= 1;
            return;
        }
        self.segments = (self.segments + 1).min(MOST_AHEAD);
        self.patience /= 2;
    }

    fn shrink(&mut self) {
        if self.segments <= 2 {
            self.patience = (2 * self.patience + 1).min(63);
        }
        self.segments = (self.segments / 2).max(1);
        self.wait = self.patience;
    }
}

impl Input {
    fn is_ready(&self) -> bool {
        let more = match (self.flights.back(), self.refused) {
            (None, Some(before)) => self.buffer.len() > before.bytes || self.ends && !before.ends,
            (None, None) => !self.buffer.is_empty() || self.ends,
            (Some(last), _) => {
                let left = self.buffer.len() - self.sent();
                let worth = left >= WORTHWHILE || self.ends;
                last.cut && worth && self.flights.len() < self.reach.segments
            }
        };
        more && !self.closed && self.failure.is_none()
    }

    /// Bytes that are on their way.
    fn sent(&self) -> usize {
        self.flights.iter().map(|flight| flight.bytes).sum()
    }

    /// The server has read `taken` bytes more, and said so in answer to `parcel`; false if that is no news.
    fn advance(&mut self, taken: usize, parcel: Option<u64>) -> bool {
        let (mut left, mut done) = (taken, None);
        while let Some(&first) = self.flights.front().filter(|first| first.bytes <= left) {
            left -= first.bytes;
            self.flights.pop_front();
            self.reach.grow();
            done = Some(first);
        }
        if taken == 0 && done.is_none() {
            // It takes nothing of the first, or this was said of what was before it.
            let Some(&first) = self.flights.front().filter(|first| Some(first.parcel) == parcel)
            else {
                return false;
            };
            self.refused = Some(first);
            self.flights.clear();
            // It will not take more of the same.
            if first.cut {
                self.failure = Some(Failure::Stalled);
            }
            return true;
        }
        self.refused = None;
        if left > 0 && self.flights.pop_front().is_some() {
            // What is behind was said for another place.
            self.flights.clear();
            self.reach.shrink();
        }
        self.closed |= done.is_some_and(|flight| flight.ends);
        true
    }
}

impl Inputs {
    pub(super) fn begin(&mut self, place: Place) {
        let input = Input {
            place,
            continuation: first_place(&place).into(),
            buffer: BytesMut::new(),
            ends: false,
            closed: false,
            flights: VecDeque::new(),
            reach: Reach::default(),
            refused: None,
            tries: 0,
            failure: None,
            unasked: None,
        };
        self.streams.insert(place.stream, input);
    }

    pub(super) fn room(&self, stream: u32, most: usize) -> usize {
        let input = self.streams.get(&stream).filter(|input| !input.closed && !input.ends);
        input.map_or(0, |input| most.saturating_sub(input.buffer.len()))
    }

    /// Takes as much of `data` as `most` bytes of buffer have room for.
    pub(super) fn write(&mut self, stream: u32, data: &[u8], most: usize) -> usize {
        let taken = self.room(stream, most).min(data.len());
        if let Some(input) = self.streams.get_mut(&stream) {
            input.buffer.extend_from_slice(&data[..taken]);
        }
        self.look(stream);
        taken
    }

    pub(super) fn shutdown(&mut self, stream: u32) {
        if let Some(input) = self.streams.get_mut(&stream) {
            input.ends = true;
        }
        self.look(stream);
    }

    pub(super) fn is_flushed(&self, stream: u32) -> bool {
        self.streams.get(&stream).is_none_or(|input| input.closed || input.buffer.is_empty())
    }

    pub(super) fn failure(&self, stream: u32) -> Option<Failure> {
        self.streams.get(&stream)?.failure
    }

    pub(super) fn forget(&mut self, stream: u32) {
        self.streams.remove(&stream);
        self.ready.remove(&stream);
        self.skip_done();
    }

    pub(super) fn close(&mut self) {
        self.close = true;
    }

    /// The server has read up to `place`, and gives `continuation`, in answer to `parcel`. Whether that is
    /// news.
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
        input.tries = 0;
        input.unasked = None;
        self.look(place.stream);
        self.skip_done();
        true
    }

    /// The server reads nothing beyond `position`.
    pub(super) fn closed(&mut self, stream: u32, position: u64) {
        let Some(input) = self.streams.get_mut(&stream) else { return };
        if position >= input.place.position {
            input.closed = true;
            input.buffer.clear();
            input.flights.clear();
            input.unasked = None;
        }
        self.look(stream);
        self.skip_done();
    }

    /// No answer to this parcel will come any more: what it had is sent again.
    pub(super) fn settle(&mut self, parcel: u64, changed: &mut BTreeSet<u32>) {
        let mut settled = Vec::new();
        for (&stream, input) in &mut self.streams {
            let of_parcel = |flight: &Flight| flight.parcel == parcel;
            let Some(at) = input.flights.iter().position(of_parcel) else { continue };
            // Nor was anything behind it understood.
            input.flights.truncate(at);
            input.unasked = None;
            input.reach.shrink();
            input.tries += u32::from(at == 0);
            if input.tries > MOST_TRIES {
                input.failure = Some(Failure::Stalled);
                changed.insert(stream);
            }
            settled.push(stream);
        }
        settled.into_iter().for_each(|stream| self.look(stream));
        self.skip_done();
    }

    /// No answer to anything will come any more.
    pub(super) fn forget_flight(&mut self) {
        for input in self.streams.values_mut() {
            input.flights.clear();
            input.reach = Reach::default();
            input.unasked = None;
        }
        let streams: Vec<u32> = self.streams.keys().copied().collect();
        streams.into_iter().for_each(|stream| self.look(stream));
        self.skip_done();
    }

    /// Forgets streams at the front of which nothing more is to be asked for ahead.
    fn skip_done(&mut self) {
        let more =
            |input: &Input| input.unasked.as_ref().is_some_and(|unasked| !unasked.is_empty());
        while let Some(stream) = self.eager.front()
            && !self.streams.get(stream).is_some_and(more)
        {
            self.eager.pop_front();
        }
    }

    /// The next promise: a stream, the parcel that brings it something, and what.
    pub(super) fn poll_promised(&mut self) -> Option<(u32, u64, Range<u64>)> {
        self.promised.pop_front()
    }

    /// Notes whether a stream has something to send.
    fn look(&mut self, stream: u32) {
        if self.streams.get(&stream).is_some_and(Input::is_ready) {
            self.ready.insert(stream);
        } else {
            self.ready.remove(&stream);
        }
    }

    /// The streams that are ready, in turn.
    fn in_turn(&self) -> Vec<u32> {
        // Of what several inputs yield an answer brings one's: each has a request of its own, if it can.
        let each = self.ready.len() <= self.spare;
        let most = if each { 1 } else { MOST_SEGMENTS };
        let behind = self.ready.range(self.last.saturating_add(1)..);
        behind.chain(self.ready.range(..=self.last)).copied().take(most).collect()
    }
}

impl Feed for Inputs {
    fn is_pending(&self) -> bool {
        self.close || !self.ready.is_empty()
    }

    fn take(&mut self, room: usize, out: &mut Vec<u8>) -> Option<u64> {
        let start = out.len();
        if std::mem::take(&mut self.close) {
            emit_close(out);
            return None;
        }
        let parcel = self.parcel;
        self.taken.clear();
        for stream in self.in_turn() {
            let Some(input) = self.streams.get_mut(&stream) else { continue };
            let left = room - (out.len() - start);
            let sent = input.sent();
            let position = input.place.position + sent as u64;
            let ahead = first_place(&Place { position, ..input.place });
            let continuation =
                if input.flights.is_empty() { &input.continuation[..] } else { &ahead };
            let head = continuation.len() + SEGMENT;
            let Some(most) = left.checked_sub(head) else { break };
            let waiting = &input.buffer[sent..];
            let bytes = waiting.len().min(most);
            let cut = bytes < waiting.len();
            if cut && bytes < WORTHWHILE {
                break;
            }
            let ends = input.ends && !cut;
            emit_segment(continuation, ends, &waiting[..bytes], out);
            // Of an input that is whole any part of the output can be made at once.
            let whole = ends && position == 0;
            let region = input.place.region();
            input.unasked = whole.then(|| region.start..region.end.min(region.start + EAGER));
            input.flights.push_back(Flight { parcel, bytes, ends, cut });
            self.taken.push(stream);
            self.last = stream;
            self.look(stream);
        }
        (out.len() > start).then(|| {
            self.parcel += 1;
            parcel
        })
    }

    fn spare(&mut self, requests: usize) {
        self.spare = requests;
    }

    fn brings(&mut self, bytes: u64) {
        // Of several inputs the last one's output is brought.
        let last = self.taken.last().copied();
        for stream in std::mem::take(&mut self.taken) {
            let Some(input) = self.streams.get_mut(&stream) else { continue };
            let (Some(unasked), Some(flight)) = (&mut input.unasked, input.flights.back()) else {
                continue;
            };
            let brought = if Some(stream) == last { bytes } else { 0 };
            let to = unasked.end.min(unasked.start + brought);
            self.promised.push_back((stream, flight.parcel, unasked.start..to));
            unasked.start = to;
            self.eager.push_back(stream);
        }
        self.skip_done();
    }

    fn is_eager(&self) -> bool {
        !self.eager.is_empty()
    }

    fn take_eager(&mut self, room: usize, bytes: u64, out: &mut Vec<u8>) -> Option<u64> {
        let (&stream, parcel) = (self.eager.front()?, self.parcel);
        let input = self.streams.get_mut(&stream)?;
        let unasked = input.unasked.as_mut()?;
        let brought = bytes.saturating_sub(MOST_NOTE as u64);
        let needed = input.continuation.len() + input.buffer.len() + SEGMENT + MOST_NOTE;
        if needed > room || brought == 0 {
            input.unasked = None;
            self.skip_done();
            return None;
        }
        emit_beyond(unasked.start, out);
        emit_segment(&input.continuation, true, &input.buffer, out);
        let to = unasked.end.min(unasked.start + brought);
        self.promised.push_back((stream, parcel, unasked.start..to));
        unasked.start = to;
        self.parcel += 1;
        self.skip_done();
        Some(parcel)
    }
}
