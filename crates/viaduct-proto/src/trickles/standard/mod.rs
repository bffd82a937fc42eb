//! Standard user continuations (Trickles, sections 4.1 to 4.3): what clients and servers agree on, so
//! that a client needs to know nothing of an application to keep its continuations.
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
//! An *input stream* has a number, and bytes from 0 on; what it is answered with stands in a *region* of
//! the output's numbers, which the client has chosen with its first segment. A continuation has a part
//! that both sides read, and the application's *state*; the code is over both. [`wire`] has the bytes.

pub mod wire;

#[cfg(test)]
mod tests;

use std::ops::Range;

pub use wire::{Note, Notes, Segment, Segments};

/// The stream of a connection that is used as a socket.
pub const MAIN: u32 = 0;
/// Positions are below this.
pub const END: u64 = 1 << 62;
/// Most segments of inputs in a client's request: the first packet of its answer must hold what is said to
/// them.
pub const MOST_SEGMENTS: usize = 8;

/// How far an input stream was read: what both sides see of an input continuation (4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The stream's number.
    pub stream: u32,
    /// Where its output begins.
    pub start: u64,
    /// How many numbers are reserved for its output; below [`END`] together with `start`.
    pub reserve: u64,
    /// Bytes of the stream that were read.
    pub position: u64,
}

impl Place {
    /// The same stream, so many bytes further.
    #[must_use]
    pub fn after(self, bytes: u64) -> Place {
        Place { position: self.position.saturating_add(bytes), ..self }
    }

    /// The numbers of the stream's output.
    pub fn region(&self) -> Range<u64> {
        self.start..self.start + self.reserve
    }
}

/// Which output can be made: what both sides see of an output continuation (4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Valid {
    /// The stream that it answers.
    pub stream: u32,
    /// The first byte that the continuation yields (validStart).
    pub start: u64,
    /// One behind the last (validEnd).
    pub end: u64,
    /// Nothing follows: the rest of the region is skipped (5.2).
    pub last: bool,
    /// Bytes of each packet that are to be left for the server's continuations.
    pub leave: u16,
}

impl Valid {
    /// Whether it yields the byte at `position`.
    pub fn holds(&self, position: u64) -> bool {
        (self.start..self.end).contains(&position)
    }
}

/// Why a server will not go on with a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Reason {
    /// The application does not want it.
    #[error("the server refused it")]
    Refused,
    /// What was being sent is not there any more, or is another by now.
    #[error("what was being sent has changed at the server")]
    Changed,
    /// A continuation is none of the server's, or older than its secrets.
    #[error(
        "the server does not know the continuation: it is of an old secret, or none of its own"
    )]
    Unknown,
    /// The server failed.
    #[error("the server failed")]
    Failed,
}
