//! Standard user continuations (Trickles, sections 4.1 to 4.3): a format that clients and
//! servers share, so that a client can keep an application's continuations without knowledge of
//! the application.
//!
//! ```text
//!   client                                                            server
//!   segment   [ input continuation ][ bytes from its position on ] ──▶ reads as much as it likes
//!             ◀── notes   [ input continuation: the position behind what was read ]
//!                         [ output continuation: from, to ]
//!   ask       [ output continuation ][ a range within it ] ──────────▶ makes those bytes again
//!             ◀── data
//! ```
//!
//! An *input stream* has a number, and bytes from 0 on. Its answer has a *region* of the
//! output's positions, which the client chooses with its first segment. A continuation has a
//! part that both sides read, and the application's *state*; the code covers both. [`wire`]
//! defines the bytes.

pub mod wire;

#[cfg(test)]
mod tests;

use std::ops::Range;

pub use wire::{Note, Notes, Segment, Segments};

/// Stream of a connection that is used as a socket.
pub const MAIN: u32 = 0;
/// Upper bound of positions, exclusive.
pub const END: u64 = 1 << 62;
/// Maximum number of input segments in a client's request: the first packet of its answer must
/// have room for the notes on them.
pub const MAX_SEGMENTS: usize = 8;

/// Position up to which an input stream was read: the public part of an input continuation
/// (4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the stream.
    pub stream: u32,
    /// Start of its output's region.
    pub start: u64,
    /// Number of positions that are reserved for its output; below [`END`] together with
    /// `start`.
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

/// Range of output that can be made: the public part of an output continuation (4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Valid {
    /// Number of the stream.
    pub stream: u32,
    /// First byte that the continuation yields (validStart).
    pub start: u64,
    /// Position behind the last byte (validEnd).
    pub end: u64,
    /// True if no output follows: the rest of the region is skipped (5.2).
    pub last: bool,
    /// Bytes of each packet that are to be reserved for the server's continuations.
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
    /// The application refused it.
    #[error("the server refused it")]
    Refused,
    /// The object that was being sent was removed or modified.
    #[error("what was being sent has changed at the server")]
    Changed,
    /// A continuation was not sealed by the server, or is older than its secrets.
    #[error(
        "the server does not know the continuation: it is of an old secret, or none of its own"
    )]
    Unknown,
    /// The server failed.
    #[error("the server failed")]
    Failed,
}
