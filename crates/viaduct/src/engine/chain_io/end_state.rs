//! State of one end of a chain: readiness, and which directions have ended.

use std::io::{self, IoSlice};

use bytes::Bytes;
use viaduct_proto::flow::Buffer;

use crate::engine::conn::Conn;

/// Maximum number of pieces in one write.
const PIECES: usize = 16;

/// State of an end.
#[derive(Debug, Default)]
pub(super) struct EndState {
    /// Possibly readable: true until a read would block.
    pub(super) readable: bool,
    /// Possibly writable: true until a write would block.
    pub(super) writable: bool,
    /// True if an end of stream or an urgent byte is pending, which a short read may have left
    /// unread.
    pub(super) may_hold_more: bool,
    /// True while the chain does not read from this end.
    pub(super) paused: bool,
    /// True if the end of stream was read, or the chain no longer reads.
    pub(super) ended: bool,
    /// True if the write direction is closed.
    pub(super) shut: bool,
}

impl EndState {
    /// Records the loop's report that the end is readable or writable.
    pub(super) fn ready(&mut self, readable: bool, writable: bool) {
        self.readable |= readable;
        self.writable |= writable;
    }

    /// Reads from `conn`. Returns empty bytes at the end of the stream, `None` if nothing can be
    /// read now.
    pub(super) fn read(
        &mut self,
        conn: &mut Conn,
        scratch: &mut [u8],
    ) -> io::Result<Option<Bytes>> {
        if self.ended || self.paused || !self.readable {
            return Ok(None);
        }
        let read = conn.read(scratch)?;
        // A short read has taken all available bytes; later bytes cause an event of their own.
        let full = read == Some(scratch.len());
        self.readable = full || read.is_some() && (self.may_hold_more || conn.tcp().is_none());
        self.ended = read == Some(0);
        // Copied into a buffer of their exact length, because many short pieces may wait in a
        // chain.
        Ok(read.map(|read| Bytes::copy_from_slice(&scratch[..read])))
    }

    /// Writes some of `buffer`; `None` if it is empty, or `conn` accepts no bytes now.
    pub(super) fn write(&mut self, conn: &mut Conn, buffer: &Buffer) -> io::Result<Option<usize>> {
        if !self.writable || buffer.is_empty() {
            return Ok(None);
        }
        let pieces: Vec<_> = buffer.pieces().take(PIECES).map(IoSlice::new).collect();
        let written = conn.write(&pieces)?;
        self.writable = written.is_some();
        Ok(written)
    }

    /// Closes the write direction of `conn`, once.
    pub(super) fn shut(&mut self, conn: &mut Conn) -> io::Result<()> {
        if std::mem::replace(&mut self.shut, true) { Ok(()) } else { conn.shutdown() }
    }
}
