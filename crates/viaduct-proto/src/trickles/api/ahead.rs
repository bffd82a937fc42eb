//! Cache of recent input continuations (5.1). A *place* is a position in an input stream. With the
//! cache, a client may send the input after a place without waiting for the place's continuation.
//!
//! ```text
//!  packet 1  place 0                 + bytes ─▶ application ─▶ continuation of place n ─┬─▶ client
//!  packet 2  place n, nothing sealed + bytes ─▶ cached? ◀──────── kept for a moment ────┘
//!                                                │ no: segment skipped; sent again later
//! ```
//!
//! The cache is soft state of fixed size, which can be dropped at any time. A segment whose place
//! is not cached is treated as lost, and the client continues with the continuations that it has
//! received. A segment is also treated as lost if an earlier segment of its request names the same
//! place, or if [`MAX_SEGMENTS`] earlier segments name places. These limits bound the growth of
//! queued requests: a named place has at most 33 bytes, and the continuation that replaces it up to
//! 750.

use crate::trickles::keys::KeyRing;
use crate::trickles::standard::wire::{
    Segments, emit_beyond, emit_close, emit_segment, named_place, sealed_place,
};
use crate::trickles::standard::{MAX_SEGMENTS, Place, Segment};
use crate::trickles::wire::Request;

/// Maximum number of cached places. A cached place takes about as much memory as its continuation.
const SLOTS: usize = 1024;

/// Cached places, in slots that a hash selects. A new place replaces the old one of its slot.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    slots: Vec<Option<Slot>>,
}

#[derive(Debug)]
struct Slot {
    connection: u64,
    stream: u32,
    position: u64,
    continuation: Vec<u8>,
}

impl Ahead {
    /// Caches an input continuation of the application's reply.
    pub(super) fn note(&mut self, ring: &KeyRing, connection: u64, place: &Place, state: &[u8]) {
        let Place { stream, position, .. } = *place;
        let at = slot(connection, stream, position);
        if self.slots.is_empty() {
            self.slots.resize_with(SLOTS, || None);
        }
        let continuation = sealed_place(ring, place, state);
        self.slots[at] = Some(Slot { connection, stream, position, continuation });
    }

    /// Returns the request with each named place replaced by its continuation, and without the
    /// segments that are treated as lost. `None` if the request names no place.
    pub(super) fn resolve(&self, connection: u64, message: &[u8]) -> Option<Vec<u8>> {
        let data = Request::parse(message).ok()?.data;
        let names = |segment: Segment<'_>| named(&segment).is_some();
        if !Segments::new(data).any(names) {
            return None;
        }
        let mut resolved = message[..message.len() - data.len()].to_vec();
        let mut places = Vec::new();
        for segment in Segments::new(data) {
            let (continuation, ends, bytes) = match segment {
                Segment::Input { continuation, ends, bytes } => (continuation, ends, bytes),
                Segment::Close => {
                    emit_close(&mut resolved);
                    continue;
                }
                Segment::Beyond(from) => {
                    emit_beyond(from, &mut resolved);
                    continue;
                }
            };
            let known = match named(&segment) {
                None => Some(continuation),
                Some(Place { stream, position, .. })
                    if places.len() >= MAX_SEGMENTS || places.contains(&(stream, position)) =>
                {
                    None
                }
                Some(place) => {
                    places.push((place.stream, place.position));
                    self.get(connection, &place)
                }
            };
            if let Some(continuation) = known {
                emit_segment(continuation, ends, bytes, &mut resolved);
            }
        }
        Some(resolved)
    }

    fn get(&self, connection: u64, place: &Place) -> Option<&[u8]> {
        let Place { stream, position, .. } = *place;
        let found = self.slots.get(slot(connection, stream, position))?.as_ref()?;
        let same =
            (found.connection, found.stream, found.position) == (connection, stream, position);
        same.then_some(&found.continuation)
    }
}

/// Place that a segment names instead of carrying a continuation; `None` for other segments.
fn named(segment: &Segment<'_>) -> Option<Place> {
    match segment {
        Segment::Input { continuation, .. } => named_place(continuation),
        Segment::Close | Segment::Beyond(_) => None,
    }
}

fn slot(connection: u64, stream: u32, position: u64) -> usize {
    let mixed = connection ^ u64::from(stream).rotate_left(40) ^ position.rotate_left(17);
    (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as usize % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trickles::standard::wire::first_place;
    use crate::trickles::wire::request::{emit_groups, emit_open, emit_padding};

    /// A request with a segment of one byte at each of these places, without continuations.
    fn naming(places: &[Place]) -> Vec<u8> {
        let mut message = Vec::new();
        emit_open(0, 1, 1_400, &mut message);
        emit_padding(0, &mut message);
        emit_groups(std::iter::empty(), &mut message);
        for place in places {
            emit_segment(&first_place(place), false, b"x", &mut message);
        }
        message
    }

    /// Number of segments after resolution, and length of the message.
    fn known(ahead: &Ahead, places: &[Place]) -> (usize, usize) {
        let resolved = ahead.resolve(7, &naming(places)).unwrap();
        (Segments::new(Request::parse(&resolved).unwrap().data).count(), resolved.len())
    }

    #[test]
    fn at_most_max_segments_distinct_places_are_resolved() {
        let (mut ahead, ring) = (Ahead::default(), KeyRing::new(1, &[1; 32]));
        let at = |stream| Place { stream, start: 0, reserve: 9, position: 5 };
        let places: Vec<Place> = (0..100).map(at).collect();
        for place in &places {
            ahead.note(&ring, 7, place, &[3; 700]);
        }
        assert_eq!(known(&ahead, &places[..MAX_SEGMENTS]).0, MAX_SEGMENTS);
        let (count, bytes) = known(&ahead, &places);
        assert!(count == MAX_SEGMENTS && bytes < 1_400 + MAX_SEGMENTS * 768, "{count}, {bytes}");
        assert_eq!(known(&ahead, &[at(3); 100]).0, 1, "the same place again");
        let elsewhere = Place { start: 1, ..at(3) };
        assert_eq!(known(&ahead, &[at(3), elsewhere]).0, 1, "the same place with another start");
        let unknown = Place { position: 6, ..at(1) };
        assert_eq!(known(&ahead, &[unknown, at(1)]).0, 1);
    }
}
