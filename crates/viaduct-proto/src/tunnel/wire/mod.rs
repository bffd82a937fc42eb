//! The tunnel's frames, and all their numbers. Everything is big endian.
//!
//! ```text
//!  frame     kind 1 | session 4 | length of the body 2 | body
//!
//!  of the link (session 0)
//!   1 HELLO    version 1, which is 2 | instance 8 | link 4 | tokens 8 | floor 4 | sessions 4
//!   2 GRANT    tokens 8
//!   3 GONE     link 4
//!   4 PING     anything 8
//!   5 PONG     the same
//!   6 LEAVE
//!  of a session
//!  16 SYN      destination | client, an address each; empty from the other end
//!  17 DATA     bytes, 1 to 16384
//!  18 FIN
//!  19 FINACK
//!  20 RST      why 1
//!  21 ACK      bytes freed 4
//!
//!  address    0, none | 1, 4 bytes, port 2 | 4, 16 bytes, port 2 | 3, length 1, name, port 2
//! ```
//!
//! Addresses have the form of SOCKS5. `parse` is the only place that reads any of this.

mod emit;
mod parse;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;

use crate::flow::{Address, Failure};

pub(super) use emit::emit_data_head;
pub use parse::{Parser, peek_hello};

/// Version of the whole format; a peer of another version is refused.
pub const VERSION: u8 = 2;
/// Bytes before a frame's body.
pub const HEAD: usize = 7;
/// Most bytes of a session in one frame.
pub const MOST_DATA: usize = 16_384;
/// Most bytes of any other frame's body: those of a SYN with the longest name.
const MOST_BODY: usize = 1 + 1 + 253 + 2 + 1 + 16 + 2;

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

/// The first frame of a link, in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Tells the sender's tunnel from the one that it had before it was started again.
    pub instance: u64,
    /// The link's number, chosen by whoever dialled; the answer repeats it.
    pub link: u32,
    /// All tokens: bytes of buffer that the sender has for all sessions of all links together.
    pub tokens: u64,
    /// Bytes that each session may have outstanding besides.
    pub floor: u32,
    /// Sessions that the receiver of this frame may have open on this link at once.
    pub sessions: u32,
}

/// What a SYN of the end that opens says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Where the session goes.
    pub to: Address,
    /// Who it is for.
    pub source: Option<SocketAddr>,
}

/// A frame, or a piece of one: DATA is handed on as it comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// How the link begins.
    Hello(Hello),
    /// All tokens from now on, as in the HELLO; never fewer than before.
    Grant(u64),
    /// The sender holds nothing any more of a link that broke.
    Gone(u32),
    /// To be answered.
    Ping(u64),
    /// The answer.
    Pong(u64),
    /// The sender opens no more sessions on this link.
    Leave,
    /// Opens a session's direction from its sender.
    Syn(Option<Box<Opening>>),
    /// Bytes of the session.
    Data(&'a [u8]),
    /// The last of them was before.
    Fin,
    /// All of them up to the FIN have been consumed.
    FinAck,
    /// The session is over, in both directions.
    Rst(Failure),
    /// So many bytes have been consumed, and their room is free.
    Ack(u32),
}

/// Bytes that are no frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// No such frame.
    #[error("a frame of kind {0}, which is none")]
    Kind(u8),
    /// Too short or too long.
    #[error("a frame of kind {kind} with a body of {length} bytes")]
    Length {
        /// The frame's kind.
        kind: u8,
        /// Its body's length.
        length: usize,
    },
    /// A session where there is none, or none where there is one.
    #[error("a frame of kind {kind} for session {session}")]
    Session {
        /// The frame's kind.
        kind: u8,
        /// The session that it names.
        session: u32,
    },
    /// A version that is not ours.
    #[error("version {0}; {VERSION} is expected")]
    Version(u8),
    /// A SYN without a destination that makes sense.
    #[error("an address that is none")]
    Address,
    /// A reason that is none.
    #[error("a reset for reason {0}, which is none")]
    Reason(u8),
}
