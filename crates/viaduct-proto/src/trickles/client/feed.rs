//! Parcels: application data that requests carry to the server.

use bytes::Bytes;

/// Source of the parcels that a client's requests carry.
pub trait Feed {
    /// Returns whether there is a parcel for which a request should be sent.
    fn is_pending(&self) -> bool;

    /// Bytes that the next parcel needs, if a request has room for them. If necessary, the room
    /// for asks is reduced to a minimum.
    fn needs(&self) -> usize {
        0
    }

    /// Appends the parcel of the next request to `out`, at most `room` bytes. Returns the parcel's
    /// number, if any. [`Client::poll_settled`](super::Client::poll_settled) returns this number
    /// when no further answer to the parcel can arrive, and
    /// [`Arrived::parcel`](super::Arrived::parcel) contains this number for data that answer the
    /// parcel.
    fn take(&mut self, room: usize, out: &mut Vec<u8>) -> Option<u64>;

    /// Announces the number of requests that may be sent now, including the next one.
    fn spare(&mut self, _requests: usize) {}

    /// Announces how many bytes of data the answer to the last parcel can contain in addition to
    /// the output that asks request.
    fn brings(&mut self, _bytes: u64) {}

    /// Returns whether to send a request only to get more of the application's data.
    fn is_eager(&self) -> bool {
        false
    }

    /// Like [`Feed::take`], for a request that is sent because of [`Feed::is_eager`]; `bytes` is as
    /// in [`Feed::brings`].
    fn take_eager(&mut self, _room: usize, _bytes: u64, _out: &mut Vec<u8>) -> Option<u64> {
        None
    }
}

/// Constant parcel of the first request, the echo and restarts; no request is sent just for it.
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
