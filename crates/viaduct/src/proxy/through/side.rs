//! How one end of a chain stands: what it may give, and take.

use std::io::{self, IoSlice};

use bytes::Bytes;
use viaduct_proto::flow::Buffer;

use crate::proxy::leg::Leg;

/// Pieces written at once.
const PIECES: usize = 16;

/// An end.
#[derive(Debug, Default)]
pub(super) struct Side {
    /// It may have something; until a read says that it does not.
    pub(super) readable: bool,
    /// It may have room; until a write says that it does not.
    pub(super) writable: bool,
    /// A read that brought little may have left more: an end or an urgent byte is behind it.
    pub(super) stutters: bool,
    /// The chain wants nothing from it now.
    pub(super) paused: bool,
    /// It has ended, or nobody reads it any more.
    pub(super) ended: bool,
    /// Nothing more goes to it.
    pub(super) shut: bool,
}

impl Side {
    /// The loop says that it can be read or written.
    pub(super) fn ready(&mut self, readable: bool, writable: bool) {
        self.readable |= readable;
        self.writable |= writable;
    }

    /// What `leg` has; empty at its end, `None` if it has nothing now or must wait.
    pub(super) fn read(&mut self, leg: &mut Leg, scratch: &mut [u8]) -> io::Result<Option<Bytes>> {
        if self.ended || self.paused || !self.readable {
            return Ok(None);
        }
        let read = leg.read(scratch)?;
        // Fewer bytes than there was room for were all; what comes after them has a wake-up of its own.
        let full = read == Some(scratch.len());
        self.readable = full || read.is_some() && (self.stutters || leg.tcp().is_none());
        self.ended = read == Some(0);
        // As long as what came: many short pieces may wait in a chain.
        Ok(read.map(|read| Bytes::copy_from_slice(&scratch[..read])))
    }

    /// Writes some of what waits; `None` if nothing does, or `leg` takes nothing now.
    pub(super) fn write(&mut self, leg: &mut Leg, buffer: &Buffer) -> io::Result<Option<usize>> {
        if !self.writable || buffer.is_empty() {
            return Ok(None);
        }
        let pieces: Vec<_> = buffer.pieces().take(PIECES).map(IoSlice::new).collect();
        let written = leg.write(&pieces)?;
        self.writable = written.is_some();
        Ok(written)
    }

    /// Ends the direction towards `leg`, once.
    pub(super) fn shut(&mut self, leg: &mut Leg) -> io::Result<()> {
        if std::mem::replace(&mut self.shut, true) { Ok(()) } else { leg.shutdown() }
    }
}
