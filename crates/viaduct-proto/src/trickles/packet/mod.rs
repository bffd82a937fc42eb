//! How Trickles' messages travel on today's networks (Trickles, section 2.6).
//!
//! A message is opaque bytes here. It travels in a packet that looks like TCP to all who stand on the
//! way, or in a UDP datagram where that does not pass:
//!
//! ```text
//!   [ IPv4 20 | IPv6 40 ][ TCP 20 ][ the mark 12 ][ SYN only: MSS, window scale 8 ][ message ]
//!   [ IPv4 20 | IPv6 40 ][ UDP  8 ][ head 4 ][ message ]
//!
//!   client                     NAT, firewall                         server
//!   Numbers::request ─────────▶ [ conntrack ] ─────────▶ parse ─▶ Return::of
//!     all numbers are chosen here                                  a function of that packet alone
//!   Numbers::hear ◀── parse ◀── [ conntrack ] ◀───────── Return::answer
//! ```
//!
//! The numbers of TCP's header are not Trickles' own: those are 64 bits long and stand in the messages.
//! TCP's are a story that is told to firewalls, and the client alone tells it. Each request says in its
//! mark how far *ahead* of its acknowledgement number the answers shall stand; so the server, which
//! keeps nothing, numbers them by what the request carries, and a device that rewrites numbers
//! (sequence randomisation) does no harm, as the two are added where they belong together.
//! `docs/trickles-packets.md` has every byte, and why strict connection tracking accepts it.
//!
//! All that comes from the network is read by [`tcp::parse`], [`udp::parse`] and [`icmp::parse`],
//! and what is refused is counted ([`stats::Refusals`]).

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

mod checksum;

#[cfg(test)]
mod conntrack;
#[cfg(test)]
mod tests;

pub use client::Numbers;
pub use mark::{Mark, Role};
pub use opening::{Opening, Ways};
pub use path::PathMtu;
pub use server::Return;

/// How messages travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// In packets that look like TCP. Takes privilege at both ends.
    Tcp,
    /// In UDP datagrams.
    Udp,
}

/// Bytes of the longest messages that packets on a way hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Of a connection's first request, and of its answer.
    pub first: usize,
    /// Of all that follow.
    pub later: usize,
}

/// A message that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message of {have} bytes: packets on this way hold {room}")]
pub struct TooLong {
    /// Its bytes.
    pub have: usize,
    /// Bytes that would have been right.
    pub room: usize,
}
