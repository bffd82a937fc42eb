//! Input continuations that were made a moment ago (5.1): a client that has sent what stands before a
//! place may send what is behind it without having them yet.
//!
//! ```text
//!   packet 1   place 0                 + bytes ─▶ application ─▶ continuation of place n ─┬─▶ client
//!   packet 2   place n, nothing sealed + bytes ─▶ is it here? ◀─────── kept for a moment ─┘
//!                                                  │ no: what it has is left out, and sent again
//! ```
//!
//! Soft state of fixed size, which can be dropped at any time: a place that is not here is answered as a lost
//! packet would be, and its client goes on with what it has been given.

use crate::trickles::keys::KeyRing;
use crate::trickles::standard::wire::{
    Segments, emit_beyond, emit_close, emit_segment, named_place, sealed_place,
};
use crate::trickles::standard::{Place, Segment};
use crate::trickles::wire::Request;

/// Places that are kept, at most: of each about as many bytes as its continuation has.
const SLOTS: usize = 1024;

/// The places, by a hash.
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
    /// The application has given a continuation.
    pub(super) fn note(&mut self, ring: &KeyRing, connection: u64, place: &Place, state: &[u8]) {
        let Place { stream, position, .. } = *place;
        let at = slot(connection, stream, position);
        if self.slots.is_empty() {
            self.slots.resize_with(SLOTS, || None);
        }
        let continuation = sealed_place(ring, place, state);
        self.slots[at] = Some(Slot { connection, stream, position, continuation });
    }

    /// A request with continuations in place of the places that it names; none if it names none.
    pub(super) fn resolve(&self, connection: u64, message: &[u8]) -> Option<Vec<u8>> {
        let data = Request::parse(message).ok()?.data;
        let names = |segment: Segment<'_>| named(&segment).is_some();
        if !Segments::new(data).any(names) {
            return None;
        }
        let mut resolved = message[..message.len() - data.len()].to_vec();
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
                Some(place) => self.get(connection, &place),
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

/// The place that a segment names without its continuation.
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
