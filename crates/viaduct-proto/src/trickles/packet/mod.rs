//! Packet formats of Trickles' messages on today's networks (Trickles, section 2.6).
//!
//! Here a message is a string of bytes. It is sent in a packet that looks like TCP to middleboxes,
//! or in a UDP datagram if such packets are blocked:
//!
//! ```text
//!   [ IPv4 20 | IPv6 40 ][ TCP 20 ][ the mark 12 ][ SYN only: MSS, window scale 8 ][ message ]
//!   [ IPv4 20 | IPv6 40 ][ UDP  8 ][ head 4 ][ message ]
//!
//!   client                     NAT, firewall                         server
//!   Numbers::request ─────────▶ [ conntrack ] ─────────▶ parse ─▶ Return::of
//!     all numbers are chosen here                                  a function of the packet alone
//!   handle_answer ◀── parse ◀── [ conntrack ] ◀───────── Return::answer
//! ```
//!
//! The numbers of the TCP header are not those of Trickles, which have 64 bits and are in the
//! messages. The TCP numbers exist only for firewalls, and only the client keeps them. The mark of
//! each request states how far *ahead* of the request's acknowledgement number the answers are to
//! begin. So the server, which keeps no state, numbers the answers from the request alone. A device
//! that rewrites numbers (sequence randomisation) does no harm, because the server adds *ahead* to
//! the acknowledgement number that it receives. `docs/trickles/packets.md` describes every byte,
//! and explains why strict connection tracking accepts the packets.
//!
//! All input from the network is parsed by [`tcp::parse`], [`udp::parse`] and [`icmp::parse`],
//! and refused packets are counted ([`stats::Refusals`]).

pub mod client;
pub mod icmp;
pub mod mark;
pub mod opening;
pub mod path;
pub mod run;
pub mod server;
pub mod stats;
pub mod tcp;
pub mod udp;

#[cfg(test)]
pub(crate) mod conntrack;
#[cfg(test)]
mod tests;

pub use client::Numbers;
pub use mark::{Mark, Role};
pub use opening::{FormatChoice, Opening};
pub use path::PathMtu;
pub use server::Return;

/// Packet format of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// In packets that look like TCP. Requires privilege at both ends.
    Tcp,
    /// In UDP datagrams.
    Udp,
}

/// Maximum message lengths in a packet format, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Maximum for the first request of a connection, and for its answer.
    pub first: usize,
    /// Maximum for all later messages.
    pub later: usize,
}

/// Error: a message does not fit in its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message of {have} bytes does not fit in a packet, which has room for {room}")]
pub struct TooLong {
    /// Length of the message in bytes.
    pub have: usize,
    /// Bytes that would have fitted.
    pub room: usize,
}
