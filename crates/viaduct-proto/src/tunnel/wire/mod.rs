//! Frames of the tunnel, and their formats. All integers are big-endian.
//!
//! ```text
//!  frame     kind 1 | stream 4 | length of the body 2 | body
//!
//!  of the link (stream 0)
//!   1 HELLO    version 1 (value 2) | instance 8 | link 4 | tokens 8
//!              | least window 4 | streams 4
//!   2 GRANT    tokens 8
//!   3 GONE     link 4
//!   4 PING     anything 8
//!   5 PONG     the same
//!   6 LEAVE
//!  of a stream
//!  16 SYN      destination | client, an address each; empty to accept a stream
//!  17 DATA     bytes, 1 to 16384
//!  18 FIN
//!  19 FINACK
//!  20 RST      why 1
//!  21 ACK      bytes freed 4
//!
//!  address    0, none | 1, 4 bytes, port 2 | 4, 16 bytes, port 2 | 3, length 1, name, port 2
//! ```
//!
//! Addresses have the form of SOCKS5. `parse` is the only module that reads frames.

mod emit;
mod parse;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;

use crate::flow::{Address, Failure};

pub(super) use emit::emit_data_head;
pub use parse::{Parser, peek_hello};

/// Version of the format. A peer of another version is refused.
pub const VERSION: u8 = 2;
/// Bytes before the body of a frame.
pub const HEAD: usize = 7;
/// Maximum bytes of a stream in one frame.
pub const MAX_DATA: usize = 16_384;
/// Maximum length of any other frame's body: that of a SYN with the longest name.
const MAX_BODY: usize = 1 + 1 + 253 + 2 + 1 + 16 + 2;

const HELLO: u8 = 1;
const GRANT: u8 = 2;
const GONE: u8 = 3;
const PING: u8 = 4;
const PONG: u8 = 5;
const LEAVE: u8 = 6;
const SYN: u8 = 16;
const DATA: u8 = 17;
const FIN: u8 = 18;
const FINACK: u8 = 19;
const RST: u8 = 20;
const ACK: u8 = 21;

const HELLO_LEN: usize = 29;

const NONE: u8 = 0;
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;

/// First frame of a link, in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Random number that distinguishes the sender's tunnel from those before its restarts.
    pub instance: u64,
    /// Number of the link, chosen by the end that dialled. The HELLO of the other end repeats it.
    pub link: u32,
    /// Total of tokens: buffer bytes that the sender has for all streams of all links.
    pub tokens: u64,
    /// Least window: bytes that each stream may have outstanding in addition.
    pub least_window: u32,
    /// Streams that the receiver of this frame may have open on this link at once.
    pub streams: u32,
}

/// Content of the SYN with which an end opens a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Destination of the stream.
    pub to: Address,
    /// Client for which the stream is opened.
    pub source: Option<SocketAddr>,
}

/// Frame, or a piece of one: DATA is passed on as it arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// First frame of the link.
    Hello(Hello),
    /// New total of tokens, as in the HELLO; never less than before.
    Grant(u64),
    /// The sender no longer holds bytes of a link that broke.
    Gone(u32),
    /// Request for a PONG.
    Ping(u64),
    /// Answer to a PING, with the same value.
    Pong(u64),
    /// The sender opens no more streams on this link.
    Leave,
    /// Opens the direction of a stream in which this frame is sent.
    Syn(Option<Box<Opening>>),
    /// Bytes of the stream.
    Data(&'a [u8]),
    /// End of the bytes of the stream.
    Fin,
    /// All bytes up to the FIN have been consumed.
    FinAck,
    /// The stream is over, in both directions.
    Rst(Failure),
    /// Number of bytes that have been consumed, so that their buffer is free.
    Ack(u32),
}

/// Error: bytes that are not valid frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// There is no frame of this kind.
    #[error("a frame of unknown kind {0}")]
    Kind(u8),
    /// The body is too short or too long.
    #[error("a frame of kind {kind} with a body of {length} bytes")]
    Length {
        /// Kind of the frame.
        kind: u8,
        /// Length of its body.
        length: usize,
    },
    /// A stream number in a frame of the link, or stream 0 in a frame of a stream.
    #[error("a frame of kind {kind} for stream {stream}")]
    Stream {
        /// Kind of the frame.
        kind: u8,
        /// Stream that it names.
        stream: u32,
    },
    /// A version that is not supported.
    #[error("version {0}; {VERSION} is expected")]
    Version(u8),
    /// A SYN with an invalid destination or client.
    #[error("an invalid address")]
    Address,
    /// An unknown reason.
    #[error("a reset for unknown reason {0}")]
    Reason(u8),
}
