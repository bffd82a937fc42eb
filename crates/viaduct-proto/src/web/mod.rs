//! Static files by HTTP, decided without touching one (Trickles, section 6.2).
//!
//! ```text
//!   request's bytes ──▶ Request::parse ──▶ path ──▶ [ the shell looks: Found ] ──▶ plan
//!                                                                                   │
//!        Plan   [ head: status line, headers ][ body: bytes, or a range of the file ]
//!        any piece of it, from any byte on: Plan::pieces
//! ```
//!
//! A plan is a function of the request's bytes and of what was found, and of nothing else: no clock, no
//! state. So a server that keeps nothing can make the same plan again for every packet of a response, on
//! any replica that has the file, and send the bytes that are asked for. (That is why there is no `Date`:
//! RFC 9110, 6.6.1, lets a server without a clock do without.) What was found has a validator, so that a
//! file that changes in the middle is noticed: see [`Found::tag`].

mod date;
mod digest;
mod listing;
mod mime;
mod path;
mod plan;
mod range;
mod request;
mod stateless;

#[cfg(test)]
mod tests;

pub use digest::Digest;
pub use listing::Listing;
pub use plan::{Body, Piece, Plan, plan};
pub use request::{MAX_HEAD, Method, Request, Wrong};
pub use stateless::{Site, respond};

/// What stands at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A file: its bytes, and when it was last changed (seconds since 1970, nanoseconds).
    File {
        /// Bytes.
        size: u64,
        /// Seconds since 1970.
        modified: u64,
        /// And nanoseconds.
        nanos: u32,
    },
    /// A directory without an index file: the page of it. For who asks without a slash any page will do.
    Directory(Listing),
    /// Nothing.
    Nothing,
    /// Something that may not be read.
    Forbidden,
    /// Something that cannot be read now, whatever it is.
    Unavailable,
}

impl Found {
    /// The entity tag of a file: another one when it has changed. It goes into `ETag`, and a stateless
    /// server keeps it beside the request, to refuse to go on with another file.
    pub fn tag(&self) -> Option<String> {
        match self {
            Found::File { size, modified, nanos } => {
                Some(format!("\"{modified:x}-{nanos:x}-{size:x}\""))
            }
            _ => None,
        }
    }
}
