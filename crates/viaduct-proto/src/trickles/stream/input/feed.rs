//! Parcels of input segments for the transport's requests.

use super::Inputs;
use super::one::{Flight, Input, WORTHWHILE};
use crate::trickles::client::Feed;
use crate::trickles::standard::MAX_SEGMENTS;
use crate::trickles::standard::wire::{MAX_NOTE, SEGMENT, emit_beyond, emit_close, emit_segment};

/// Maximum number of output bytes that are requested by repeating the input, as long as there is no
/// output continuation.
const EAGER: u64 = 32 << 10;

impl Inputs {
    /// The ready streams whose input the next request may carry, in round-robin order.
    fn in_turn(&self) -> Vec<u32> {
        // An answer contains the output of only one input, so each input gets a request of its own
        // if possible.
        let each = self.ready.len() <= self.spare;
        let most = if each { 1 } else { MAX_SEGMENTS };
        let later = self.ready.range(self.last.saturating_add(1)..);
        later.chain(self.ready.range(..=self.last)).copied().take(most).collect()
    }

    /// Returns whether the unsent part of `input` fits in a request by itself.
    fn fits_alone(&self, input: &Input) -> bool {
        input.next_len() <= self.whole
    }
}

impl Feed for Inputs {
    fn is_pending(&self) -> bool {
        self.close || !self.ready.is_empty()
    }

    fn needs(&self) -> usize {
        let next = self.in_turn().into_iter().find_map(|stream| self.streams.get(&stream));
        match next {
            // The server has consumed nothing of a shorter segment, so the next segment gets an
            // entire request.
            Some(input) if input.is_refused() => self.whole,
            Some(input) if self.fits_alone(input) => input.next_len(),
            _ => 0,
        }
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
            let Some(input) = self.streams.get(&stream) else { continue };
            let (first, left) = (out.len() == start, room - (out.len() - start));
            // A part of the input may be of no use to the server, and the next request has room for
            // the complete input.
            if !first && input.next_len() > left && (input.is_refused() || self.fits_alone(input)) {
                break;
            }
            let Some(input) = self.streams.get_mut(&stream) else { continue };
            let sent = input.sent();
            let position = input.place.position + sent as u64;
            let continuation = input.next_continuation();
            let Some(most) = left.checked_sub(continuation.len() + SEGMENT) else { break };
            let waiting = &input.buffer[sent..];
            let bytes = waiting.len().min(most);
            let cut = bytes < waiting.len();
            if cut && bytes < WORTHWHILE {
                break;
            }
            let full = cut && first && room >= self.whole;
            let ends = input.ends && !cut;
            emit_segment(&continuation, ends, &waiting[..bytes], out);
            // With a complete input the server can produce any part of the output immediately.
            let whole = ends && position == 0;
            let region = input.place.region();
            input.unasked = whole.then(|| region.start..region.end.min(region.start + EAGER));
            input.flights.push_back(Flight { parcel, bytes, ends, cut, full });
            self.taken.push(stream);
            self.last = stream;
            self.update_ready(stream);
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
        // If there are several inputs, the answer contains only the output of the last one.
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
        let brought = bytes.saturating_sub(MAX_NOTE as u64);
        let needed = input.continuation.len() + input.buffer.len() + SEGMENT + MAX_NOTE;
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
