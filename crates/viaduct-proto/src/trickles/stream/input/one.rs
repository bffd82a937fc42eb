//! A stream's input, and how much of it is on its way.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::{Bytes, BytesMut};

use super::super::Failure;
use super::super::output::ENOUGH;
use crate::trickles::standard::Place;
use crate::trickles::standard::wire::{SEGMENT, first_place};

/// Least bytes of a stream that a further segment is made for.
pub(super) const WORTHWHILE: usize = 64;
/// After so many requests with nothing said to what they took along, or nothing taken of it, a stream fails.
pub(super) const MOST_TRIES: u32 = 32;
/// Most segments of a stream that are on their way.
const MOST_AHEAD: usize = 64;

/// A stream.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) place: Place,
    pub(super) continuation: Bytes,
    /// What was written behind `place`.
    pub(super) buffer: BytesMut,
    /// Nothing follows.
    pub(super) ends: bool,
    /// The server reads no more.
    pub(super) closed: bool,
    /// What requests have taken along of which nothing was said yet, in the order of the bytes.
    pub(super) flights: VecDeque<Flight>,
    pub(super) reach: Reach,
    /// The server has taken nothing of this.
    pub(super) refused: Option<Flight>,
    pub(super) tries: u32,
    pub(super) failure: Option<Failure>,
    /// Continuations of the output that are kept.
    pub(super) kept: usize,
    /// How many came since something was consumed, with answers to what is on its way.
    came: usize,
    /// About how many come for a segment.
    yields: usize,
    /// What of the output no request brings yet, and may be asked for with the input alone.
    pub(super) unasked: Option<Range<u64>>,
}

/// What a request has taken along.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub(super) parcel: u64,
    pub(super) bytes: usize,
    /// The end was told.
    pub(super) ends: bool,
    /// More was there than room for it.
    pub(super) cut: bool,
    /// And there was as much room as a request can ever have.
    pub(super) full: bool,
}

/// How many segments may be on their way. Those behind the first name a place alone: the server may have
/// the continuation of it, which it has just made. Where it has not, as replicas that answer in turn have not,
/// or where it consumes no whole packets, there is one at a time.
#[derive(Debug)]
pub(super) struct Reach {
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
    pub(super) fn grow(&mut self) {
        if self.wait > 0 {
            self.wait -= 1;
            return;
        }
        self.segments = (self.segments + 1).min(MOST_AHEAD);
        self.patience /= 2;
    }

    pub(super) fn shrink(&mut self) {
        if self.segments <= 2 {
            self.patience = (2 * self.patience + 1).min(63);
        }
        self.segments = (self.segments / 2).max(1);
        self.wait = self.patience;
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
            // What its server would give for it could not be kept.
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

    /// Whether one segment more may be on its way.
    fn has_room_ahead(&self) -> bool {
        let (some, to_come) = (self.flights.len(), self.flights.len() * self.yields);
        some < self.reach.segments && self.kept + to_come < ENOUGH
    }

    /// A continuation of the output came, with an answer to `parcel`.
    pub(super) fn yielded(&mut self, parcel: Option<u64>) {
        let ours = self.flights.iter().any(|flight| Some(flight.parcel) == parcel);
        self.came += usize::from(ours);
    }

    pub(super) fn is_writing(&self) -> bool {
        !self.closed && !self.ends
    }

    /// Bytes that are on their way.
    pub(super) fn sent(&self) -> usize {
        self.flights.iter().map(|flight| flight.bytes).sum()
    }

    /// Whether the server has taken nothing of what it was given of this stream, which was not all.
    pub(super) fn is_refused(&self) -> bool {
        self.refused.is_some_and(|before| before.cut)
    }

    /// What the next segment follows.
    pub(super) fn next_continuation(&self) -> Bytes {
        if self.flights.is_empty() {
            return self.continuation.clone();
        }
        first_place(&self.place.after(self.sent() as u64)).into()
    }

    /// Bytes that the next segment has if it is whole, at most.
    pub(super) fn next_len(&self) -> usize {
        self.next_continuation().len() + SEGMENT + self.buffer.len() - self.sent()
    }

    /// The server has read `taken` bytes more, and said so in answer to `parcel`; false if that is no news.
    pub(super) fn advance(&mut self, taken: usize, parcel: Option<u64>) -> bool {
        let (mut left, mut done) = (taken, None);
        // A flight that tells the end alone takes none: where it stands says nothing of it.
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
            // It takes nothing of the first, or this was said of what was before it.
            let Some(&first) = self.flights.front().filter(|first| Some(first.parcel) == parcel)
            else {
                return false;
            };
            self.refused = Some(first);
            self.flights.clear();
            // It goes again, with more room if a request can have that.
            self.tries = if first.cut { self.tries + 1 } else { 0 };
            if first.full || self.tries > MOST_TRIES {
                self.failure = Some(Failure::Stalled);
            }
            return true;
        }
        (self.refused, self.tries) = (None, 0);
        self.yields = std::mem::take(&mut self.came).max(self.yields / 2);
        if left > 0 && self.flights.pop_front().is_some() {
            // What is behind was said for another place.
            self.flights.clear();
            self.reach.shrink();
        }
        // The same bytes may have gone before, without the end.
        self.closed |= done.is_some_and(|flight| flight.ends && Some(flight.parcel) == parcel);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_counts_as_told_when_what_told_it_is_answered() {
        let place = Place { stream: 0, start: 0, reserve: 9, position: 0 };
        let mut input = Input::new(place);
        let flight = |parcel, bytes, ends| Flight { parcel, bytes, ends, cut: false, full: false };
        // The bytes went with parcel 1, which was given up; again with 2; then the end by itself.
        input.flights.extend([flight(2, 100, false), flight(3, 0, true)]);
        assert!(input.advance(100, Some(1)) && !input.closed);
        assert!(!input.advance(0, Some(2)) && !input.closed, "that says nothing of the end");
        assert!(input.advance(0, Some(3)) && input.closed);

        let mut input = Input::new(place);
        input.ends = true;
        input.flights.extend([flight(2, 100, true)]);
        assert!(input.advance(100, Some(1)) && !input.closed);
        assert!(input.is_ready(), "the end is told by itself");
    }
}
