//! What a request takes along to the server's application.

use bytes::Bytes;

/// Where a client gets what its requests take along.
pub trait Feed {
    /// Whether there is something that a request is to be sent for.
    fn is_pending(&self) -> bool;

    /// Bytes that what goes next is to have room for, if a request can have them: of those beside them as little
    /// as need be is left for asks.
    fn needs(&self) -> usize {
        0
    }

    /// Appends what goes with the next request to `out`, `room` bytes at most. What is returned names
    /// it: [`Client::poll_settled`](super::Client::poll_settled) returns that when no answer to it can
    /// come any more, and [`Arrived::parcel`](super::Arrived::parcel) says what came in answer to it.
    fn take(&mut self, room: usize, out: &mut Vec<u8>) -> Option<u64>;

    /// So many requests may be sent now, the next among them.
    fn spare(&mut self, _requests: usize) {}

    /// The answer to what was taken last has room for so many bytes that nobody has asked for.
    fn brings(&mut self, _bytes: u64) {}

    /// Whether a request may be sent for more of the same, if nothing else is to be sent.
    fn is_eager(&self) -> bool {
        false
    }

    /// As [`Feed::take`], for that; `bytes` as in [`Feed::brings`].
    fn take_eager(&mut self, _room: usize, _bytes: u64, _out: &mut Vec<u8>) -> Option<u64> {
        None
    }
}

/// The same with a first request, its echo and restarts; no request is sent for it.
impl Feed for Bytes {
    fn is_pending(&self) -> bool {
        false
    }

    fn take(&mut self, room: usize, out: &mut Vec<u8>) -> Option<u64> {
        if self.len() <= room {
            out.extend_from_slice(self);
        }
        None
    }
}
