//! Parcels: application data that requests carry to the server.

use bytes::Bytes;

/// Source of the parcels that a client's requests carry.
pub trait Feed {
    /// Returns whether there is a parcel that a request is to be sent for.
    fn is_pending(&self) -> bool;

    /// Bytes that the next parcel needs, if a request has room for them. If necessary, the room
    /// for asks is reduced to a minimum.
    fn needs(&self) -> usize {
        0
    }

    /// Appends the parcel of the next request to `out`, `room` bytes at most. Returns the
    /// parcel's name, if any: [`Client::poll_settled`](super::Client::poll_settled) returns it
    /// when no answer to it can come any more, and [`Arrived::parcel`](super::Arrived::parcel)
    /// tells which data came in answer to it.
    fn take(&mut self, room: usize, out: &mut Vec<u8>) -> Option<u64>;

    /// Announces that so many requests may be sent now, including the next.
    fn spare(&mut self, _requests: usize) {}

    /// Announces the bytes in the answer to the last parcel for which nothing was asked.
    fn brings(&mut self, _bytes: u64) {}

    /// Returns whether a request may be sent for more data of the application, if nothing else
    /// is to be sent.
    fn is_eager(&self) -> bool {
        false
    }

    /// As [`Feed::take`], for a request of [`Feed::is_eager`]; `bytes` as in [`Feed::brings`].
    fn take_eager(&mut self, _room: usize, _bytes: u64, _out: &mut Vec<u8>) -> Option<u64> {
        None
    }
}

/// Constant parcel of the first request, its echo and restarts; no request is sent for it
/// alone.
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
