//! Mapping of a link's lanes (its byte streams) to streams of a QUIC connection. The stream numbers
//! determine the mapping: the dialler's first stream is lane 0. The other streams of each end are
//! the tunnel's streams, in the order in which that end opens them.

use std::collections::HashMap;
use std::io;

use bytes::Bytes;
use quinn_proto::{Connection, Dir, Side, StreamId, WriteError};
use viaduct_proto::tunnel::Lane;

/// Bytes that wait to be written to their QUIC streams.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    waiting: HashMap<Lane, Waiting>,
    /// Number of bytes added since the last flush.
    pub(super) fresh: usize,
    /// Lanes whose last byte is queued.
    ended: Vec<Lane>,
    opened: u64,
}

/// Bytes that wait to be written to one QUIC stream.
#[derive(Debug, Default)]
struct Waiting {
    /// Bytes that the stream has not accepted yet.
    pieces: Vec<Bytes>,
    /// Bytes added since the last write, in one piece, because the library has a cost for each
    /// piece.
    fresh: Vec<u8>,
    /// Number of bytes in `pieces` and `fresh`.
    length: usize,
}

/// Lane of a QUIC stream; `None` if its index is too large.
pub(super) fn lane_of(id: StreamId) -> Option<Lane> {
    let index = u32::try_from(id.index()).ok()?;
    match id.initiator() {
        Side::Client if index == 0 => Some(0),
        Side::Client => index.checked_mul(2)?.checked_sub(1),
        Side::Server => index.checked_mul(2)?.checked_add(2),
    }
}

fn stream_of(lane: Lane) -> StreamId {
    let lane = u64::from(lane);
    match lane {
        0 => StreamId::new(Side::Client, Dir::Bi, 0),
        odd if odd % 2 == 1 => StreamId::new(Side::Client, Dir::Bi, odd.div_ceil(2)),
        even => StreamId::new(Side::Server, Dir::Bi, even / 2 - 1),
    }
}

impl Lanes {
    pub(super) fn push(&mut self, lane: Lane, bytes: &[u8]) {
        let waiting = self.waiting.entry(lane).or_default();
        waiting.fresh.extend_from_slice(bytes);
        waiting.length += bytes.len();
        self.fresh += bytes.len();
    }

    /// Number of bytes that wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.values().map(|waiting| waiting.length).sum()
    }

    /// Ends a lane: no more bytes follow.
    pub(super) fn end(&mut self, lane: Lane) {
        self.ended.push(lane);
    }

    /// Writes about `most` waiting bytes, and finishes ended lanes; returns whether any bytes were
    /// written or any lane was finished.
    pub(super) fn flush(&mut self, connection: &mut Connection, most: usize) -> io::Result<bool> {
        self.fresh = 0;
        let mut order: Vec<Lane> = self.waiting.keys().copied().collect();
        // Streams must be opened in ascending order.
        order.sort_unstable();
        order.retain(|&lane| self.open(connection, lane));
        // Lanes with few bytes are written first. They delay the others only briefly, because one
        // flush writes about as many bytes as may wait.
        order.sort_by_key(|lane| self.waiting[lane].length);
        let mut written = 0;
        for lane in order {
            if written >= most {
                break;
            }
            written += self.write(connection, lane)?;
        }
        let (waiting, ends) = (&self.waiting, self.ended.len());
        self.ended.retain(|lane| {
            let waits = waiting.contains_key(lane);
            if !waits {
                // A stream that the peer has stopped is already closed.
                let _ = connection.send_stream(stream_of(*lane)).finish();
            }
            waits
        });
        Ok(written > 0 || self.ended.len() < ends)
    }

    /// Writes the waiting bytes of a lane; returns the number of bytes that the stream accepted.
    fn write(&mut self, connection: &mut Connection, lane: Lane) -> io::Result<usize> {
        let Some(waiting) = self.waiting.get_mut(&lane) else { return Ok(0) };
        let Waiting { pieces, fresh, length } = waiting;
        if !fresh.is_empty() {
            pieces.push(std::mem::take(fresh).into());
        }
        let mut count = 0;
        match connection.send_stream(stream_of(lane)).write_chunks(pieces) {
            Ok(written) => {
                count = written.bytes;
                *length -= count;
                pieces.drain(..written.chunks);
            }
            Err(WriteError::Blocked) => {}
            // The peer no longer reads the stream.
            Err(WriteError::Stopped(_) | WriteError::ClosedStream) if lane > 0 => pieces.clear(),
            Err(error) => return Err(io::Error::other(error)),
        }
        if pieces.is_empty() {
            self.waiting.remove(&lane);
        }
        Ok(count)
    }

    /// Opens the stream of a lane; returns whether it is open.
    fn open(&mut self, connection: &mut Connection, lane: Lane) -> bool {
        let stream = stream_of(lane);
        if stream.initiator() != connection.side() {
            return true;
        }
        while self.opened <= stream.index() {
            let Some(opened) = connection.streams().open(Dir::Bi) else { return false };
            self.opened += 1;
            if lane_of(opened) == Some(0) {
                // Lane 0 has priority, because it carries acknowledgements.
                let _ = connection.send_stream(opened).set_priority(1);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_and_streams_are_one_to_one() {
        for lane in (0..1000).chain([u32::MAX - 1]) {
            assert_eq!(lane_of(stream_of(lane)), Some(lane));
        }
        assert_eq!(stream_of(1).index(), 1);
        assert_eq!((stream_of(2).index(), stream_of(2).initiator()), (0, Side::Server));
    }
}
