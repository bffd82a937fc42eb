//! Standard user continuations (Trickles, sections 4.1 to 4.3): a format that clients and
//! servers share, so that a client can keep an application's continuations without knowledge of
//! the application.
//!
//! ```text
//!   client                                                            server
//!   segment   [ input continuation ][ bytes from its position ] ─────▶ reads some of these bytes
//!             ◀── notes   [ input continuation: the number of bytes that were read ]
//!                         [ output continuation: from, to ]
//!   ask       [ output continuation ][ a range within it ] ──────────▶ produces those bytes again
//!             ◀── data
//! ```
//!
//! An *input stream* has a number, and bytes at positions from 0. Its output has a *region* of the
//! positions in the connection's output, which the client chooses with the stream's first segment.
//! A continuation has a public part, which both sides read, and the application's *state*; the MAC
//! covers both. [`wire`] defines the bytes.

pub mod wire;

#[cfg(test)]
mod tests;

use std::ops::Range;

pub use wire::{Note, Notes, Segment, Segments};

/// Number of a connection's main stream, which is used like a socket.
pub const MAIN: u32 = 0;
/// Upper bound of positions, exclusive.
pub const END: u64 = 1 << 62;
/// Maximum number of input segments in a client's request: the first packet of the answer must have
/// room for the notes on them.
pub const MAX_SEGMENTS: usize = 8;

/// Position up to which an input stream was read: the public part of an input continuation
/// (4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the stream.
    pub stream: u32,
    /// Start of the region of the stream's output.
    pub start: u64,
    /// Positions reserved for the stream's output; `start + reserve` is at most [`END`].
    pub reserve: u64,
    /// Number of bytes of the stream that were read.
    pub position: u64,
}

impl Place {
    /// The place `bytes` further in the same stream.
    #[must_use]
    pub fn after(self, bytes: u64) -> Place {
        Place { position: self.position.saturating_add(bytes), ..self }
    }

    /// Region of the stream's output.
    pub fn region(&self) -> Range<u64> {
        self.start..self.start + self.reserve
    }
}

/// Range of output that a continuation yields: the public part of an output continuation (4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Valid {
    /// Number of the stream.
    pub stream: u32,
    /// First byte that the continuation yields (validStart).
    pub start: u64,
    /// Position after the last byte (validEnd).
    pub end: u64,
    /// True if no output follows: the rest of the region is skipped (5.2).
    pub last: bool,
    /// Bytes that the client should reserve in each packet for the server's continuations.
    pub leave: u16,
}

impl Valid {
    /// Returns whether the continuation yields the byte at `position`.
    pub fn holds(&self, position: u64) -> bool {
        (self.start..self.end).contains(&position)
    }
}

/// Reason why a server resets a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Reason {
    /// The application refused the stream.
    #[error("the server refused the stream")]
    Refused,
    /// The object that was being sent was removed or modified.
    #[error("the object that was being sent has changed at the server")]
    Changed,
    /// A continuation was not sealed by the server, or its secret is no longer in the ring.
    #[error(
        "the server does not know the continuation's secret, or did not issue the continuation"
    )]
    Unknown,
    /// The server failed.
    #[error("the server failed")]
    Failed,
}
