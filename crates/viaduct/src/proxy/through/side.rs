//! State of one end of a chain: readiness, and which directions have ended.

use std::io::{self, IoSlice};

use bytes::Bytes;
use viaduct_proto::flow::Buffer;

use crate::proxy::leg::Leg;

/// Pieces written at once.
const PIECES: usize = 16;

/// State of an end.
#[derive(Debug, Default)]
pub(super) struct Side {
    /// Possibly readable: true until a read would block.
    pub(super) readable: bool,
    /// Possibly writable: true until a write would block.
    pub(super) writable: bool,
    /// An end of stream or an urgent byte is pending: a short read may have left more.
    pub(super) stutters: bool,
    /// The chain does not read from this end now.
    pub(super) paused: bool,
    /// End of stream was read, or the chain no longer reads.
    pub(super) ended: bool,
    /// The write direction is closed.
    pub(super) shut: bool,
}

impl Side {
    /// Records the loop's report that the end is readable or writable.
    pub(super) fn ready(&mut self, readable: bool, writable: bool) {
        self.readable |= readable;
        self.writable |= writable;
    }

    /// Reads from `leg`; empty at the end of the stream, `None` if nothing can be read now.
    pub(super) fn read(&mut self, leg: &mut Leg, scratch: &mut [u8]) -> io::Result<Option<Bytes>> {
        if self.ended || self.paused || !self.readable {
            return Ok(None);
        }
        let read = leg.read(scratch)?;
        // A short read took everything; later bytes cause an event of their own.
        let full = read == Some(scratch.len());
        self.readable = full || read.is_some() && (self.stutters || leg.tcp().is_none());
        self.ended = read == Some(0);
        // Copied to their exact length: many short pieces may wait in a chain.
        Ok(read.map(|read| Bytes::copy_from_slice(&scratch[..read])))
    }

    /// Writes some of `buffer`; `None` if it is empty, or `leg` takes nothing now.
    pub(super) fn write(&mut self, leg: &mut Leg, buffer: &Buffer) -> io::Result<Option<usize>> {
        if !self.writable || buffer.is_empty() {
            return Ok(None);
        }
        let pieces: Vec<_> = buffer.pieces().take(PIECES).map(IoSlice::new).collect();
        let written = leg.write(&pieces)?;
        self.writable = written.is_some();
        Ok(written)
    }

    /// Closes the write direction of `leg`, once.
    pub(super) fn shut(&mut self, leg: &mut Leg) -> io::Result<()> {
        if std::mem::replace(&mut self.shut, true) { Ok(()) } else { leg.shutdown() }
    }
}
