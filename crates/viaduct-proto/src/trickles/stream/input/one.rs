//! Input of a stream, and the part of it that is in flight.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::{Bytes, BytesMut};

use super::super::Failure;
use super::super::output::ENOUGH;
use crate::trickles::standard::Place;
use crate::trickles::standard::wire::{SEGMENT, first_place};

/// Minimum number of bytes for a further segment.
pub(super) const WORTHWHILE: usize = 64;
/// Number of failed attempts after which a stream fails. An attempt fails if its request is not
/// answered, or if the server consumes nothing of its segment and the segment was cut.
pub(super) const MAX_TRIES: u32 = 32;
/// Maximum number of a stream's segments in flight.
const MAX_AHEAD: usize = 64;

#[derive(Debug)]
pub(super) struct Input {
    pub(super) place: Place,
    pub(super) continuation: Bytes,
    /// Bytes written after `place`.
    pub(super) buffer: BytesMut,
    /// True if the input ends with the buffer.
    pub(super) ends: bool,
    /// True if the server has stopped reading.
    pub(super) closed: bool,
    /// Segments in flight, in the order of their bytes.
    pub(super) flights: VecDeque<Flight>,
    pub(super) reach: Reach,
    /// Segment of which the server has consumed nothing.
    pub(super) refused: Option<Flight>,
    pub(super) tries: u32,
    pub(super) failure: Option<Failure>,
    /// Number of output continuations that are kept.
    pub(super) kept: usize,
    /// Number of output continuations that have arrived in answers to segments in flight since
    /// input was last consumed.
    came: usize,
    /// Estimated number of output continuations in the answer to a segment.
    yields: usize,
    /// Output that was not requested yet, and can be requested by repeating the input.
    pub(super) unasked: Option<Range<u64>>,
}

/// Segment of a stream in a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub(super) parcel: u64,
    pub(super) bytes: usize,
    /// True if the segment marks the end of the input.
    pub(super) ends: bool,
    /// True if the request did not have room for all bytes.
    pub(super) cut: bool,
    /// True if the segment is cut although its request had the maximum room for it.
    pub(super) full: bool,
}

/// Window of segments in flight. All segments except the first name a place without its
/// continuation, which the server has just created and may have cached. The window shrinks, down to
/// 1, if the server has not cached the continuation (for instance, when replicas answer in turn),
/// or if the application does not consume complete packets.
#[derive(Debug)]
pub(super) struct Reach {
    segments: usize,
    /// Number of segments to be consumed before the window grows.
    wait: u32,
    /// Value of `wait` after a failure. A failure in a window of one or two segments first about
    /// doubles this value; growth of the window halves it.
    backoff: u32,
}

impl Default for Reach {
    fn default() -> Self {
        Reach { segments: 1, wait: 0, backoff: 0 }
    }
}

impl Reach {
    pub(super) fn grow(&mut self) {
        if self.wait > 0 {
            self.wait -= 1;
            return;
        }
        self.segments = (self.segments + 1).min(MAX_AHEAD);
        self.backoff /= 2;
    }

    pub(super) fn shrink(&mut self) {
        if self.segments <= 2 {
            self.backoff = (2 * self.backoff + 1).min(63);
        }
        self.segments = (self.segments / 2).max(1);
        self.wait = self.backoff;
    }
}

impl Input {
    pub(super) fn new(place: Place) -> Input {
        Input {
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
            kept: 0,
            came: 0,
            yields: 0,
            unasked: None,
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        let more = match (self.flights.back(), self.refused) {
            // There is no room for the continuations that the server would return.
            (None, _) if self.kept >= ENOUGH => false,
            (None, Some(before)) => self.buffer.len() > before.bytes || self.ends && !before.ends,
            (None, None) => !self.buffer.is_empty() || self.ends,
            (Some(last), _) => {
                let left = self.buffer.len() - self.sent();
                let worth = left >= WORTHWHILE || self.ends;
                last.cut && worth && self.has_room_ahead()
            }
        };
        more && !self.closed && self.failure.is_none()
    }

    /// Returns whether a further segment may be sent.
    fn has_room_ahead(&self) -> bool {
        let (some, to_come) = (self.flights.len(), self.flights.len() * self.yields);
        some < self.reach.segments && self.kept + to_come < ENOUGH
    }

    /// Counts an output continuation in an answer to `parcel`.
    pub(super) fn yielded(&mut self, parcel: Option<u64>) {
        let ours = self.flights.iter().any(|flight| Some(flight.parcel) == parcel);
        self.came += usize::from(ours);
    }

    pub(super) fn is_writing(&self) -> bool {
        !self.closed && !self.ends
    }

    pub(super) fn sent(&self) -> usize {
        self.flights.iter().map(|flight| flight.bytes).sum()
    }

    /// Returns whether the server consumed nothing of a segment that lacked part of the input.
    pub(super) fn is_refused(&self) -> bool {
        self.refused.is_some_and(|before| before.cut)
    }

    pub(super) fn next_continuation(&self) -> Bytes {
        if self.flights.is_empty() {
            return self.continuation.clone();
        }
        first_place(&self.place.after(self.sent() as u64)).into()
    }

    /// Maximum length of a segment with the rest of the input.
    pub(super) fn next_len(&self) -> usize {
        self.next_continuation().len() + SEGMENT + self.buffer.len() - self.sent()
    }

    /// Processes a note in the answer to `parcel`: the server has read `taken` more bytes. Returns
    /// false if the note is not new.
    pub(super) fn advance(&mut self, taken: usize, parcel: Option<u64>) -> bool {
        let (mut left, mut done) = (taken, None);
        // A segment that only marks the end has no bytes, so it is acknowledged by its answer, and
        // not by the position.
        let is_done = |first: &Flight, left| match first.bytes {
            0 => Some(first.parcel) == parcel,
            bytes => bytes <= left,
        };
        while let Some(&first) = self.flights.front().filter(|first| is_done(first, left)) {
            left -= first.bytes;
            self.flights.pop_front();
            self.reach.grow();
            done = Some(first);
        }
        if taken == 0 && done.is_none() {
            // The server consumed nothing of the first segment, or the note belongs to an earlier
            // segment.
            let Some(&first) = self.flights.front().filter(|first| Some(first.parcel) == parcel)
            else {
                return false;
            };
            self.refused = Some(first);
            self.flights.clear();
            // The segment is sent again, with more room if possible.
            self.tries = if first.cut { self.tries + 1 } else { 0 };
            if first.full || self.tries > MAX_TRIES {
                self.failure = Some(Failure::Stalled);
            }
            return true;
        }
        (self.refused, self.tries) = (None, 0);
        self.yields = std::mem::take(&mut self.came).max(self.yields / 2);
        if left > 0 && self.flights.pop_front().is_some() {
            // The later segments were sent for another position.
            self.flights.clear();
            self.reach.shrink();
        }
        // An earlier request may have carried the same bytes without the end.
        self.closed |= done.is_some_and(|flight| flight.ends && Some(flight.parcel) == parcel);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_counts_as_delivered_when_its_request_is_answered() {
        let place = Place { stream: 0, start: 0, reserve: 9, position: 0 };
        let mut input = Input::new(place);
        let flight = |parcel, bytes, ends| Flight { parcel, bytes, ends, cut: false, full: false };
        // The bytes were sent in parcel 1, which was given up, and again in parcel 2; then parcel 3
        // marked the end, without bytes.
        input.flights.extend([flight(2, 100, false), flight(3, 0, true)]);
        assert!(input.advance(100, Some(1)) && !input.closed);
        assert!(
            !input.advance(0, Some(2)) && !input.closed,
            "the answer does not acknowledge the end"
        );
        assert!(input.advance(0, Some(3)) && input.closed);

        let mut input = Input::new(place);
        input.ends = true;
        input.flights.extend([flight(2, 100, true)]);
        assert!(input.advance(100, Some(1)) && !input.closed);
        assert!(input.is_ready(), "the end is sent by itself");
    }
}
