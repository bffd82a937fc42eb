//! Static files over HTTP; responses are planned without file access (Trickles, section 6.2).
//!
//! ```text
//!   request's bytes ──▶ Request::parse ──▶ path ──▶ [ caller looks up: Found ] ──▶ plan
//!                                                                                   │
//!        Plan   [ head: status line, headers ][ body: bytes, or a range of the file ]
//!        any range of its bytes: Plan::pieces
//! ```
//!
//! A plan is a function of the request's bytes and of what was found at its path. It depends on no
//! clock and no state. A stateless server can therefore compute the same plan again for every
//! packet of a response, on any replica that has the file, and send the bytes that are requested.
//! (For this reason there is no `Date`: RFC 9110, 6.6.1, permits that for servers without a clock.)
//! A file has a validator, by which a change during the response is detected: see [`Found::tag`].

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
pub use request::{MAX_HEAD, Method, Request, RequestError};
pub use stateless::{Site, respond};

/// Object at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// File, with its size and the time of its last change.
    File {
        /// Size in bytes.
        size: u64,
        /// Time of the last change, in seconds since 1970.
        modified: u64,
        /// Nanoseconds of that time.
        nanos: u32,
    },
    /// Directory without an index file, with its page. The page is not used if the request does not
    /// end with a slash, because such a request is redirected.
    Directory(Listing),
    /// Nothing exists at the path.
    Nothing,
    /// Object that the server is not permitted to read.
    Forbidden,
    /// Object that currently cannot be read.
    Unavailable,
}

impl Found {
    /// Entity tag of a file, which changes with the file. It is sent as `ETag`, and is part of the
    /// response's hash by which a stateless server detects the change.
    pub fn tag(&self) -> Option<String> {
        match self {
            Found::File { size, modified, nanos } => {
                Some(format!("\"{modified:x}-{nanos:x}-{size:x}\""))
            }
            _ => None,
        }
    }
}
