//! Tunnels: many sessions over a few long-lived links between two peers ("Taming the LFN", slides
//! 13 to 20).
//!
//! A session carries the bytes of one flow through the tunnel. Opening one takes no round trip,
//! and sessions need not probe the capacity of the path: the links know it.
//!
//! ```text
//!              near end                                                far end
//!  flow ─ open, write ─▶ session ─┐ turns  ┌──────┐         ┌──────┐ ┌─▶ session ─ read ─▶ flow
//!  flow ─ open, write ─▶ session ─┼───────▶│ link ├─frames─▶│ link ├─┤
//!                        session ─┘   ▲    └──────┘         └──────┘ └─▶ session ─ read ─▶ (slow)
//!                                     │                                     │
//!                                  tokens ◀──── ACK: bytes freed ─────── consumed
//! ```
//!
//! Bytes on a link cannot be dropped, so the sender must know that there is room for them. The
//! receiver grants all of its buffer as *tokens*, one per byte. The sender divides them fairly
//! among its sessions and keeps half for future sessions. A session whose reader has stopped
//! keeps its share, and gets no further tokens.
//!
//! | file | noun |
//! |---|---|
//! | `core` | [`Tunnel`]: several links, and the sessions on them |
//! | `mux` | a link |
//! | `session` | a session's state |
//! | `tokens` | the sender's half of the allocation: how much each session may send |
//! | `room` | the receiver's half: how much buffer there is, and how much the path needs |
//! | [`wire`] | the frames |
//! | [`record`] | encryption of a link that is a plain stream |
//! | [`stats`] | counters |
//!
//! The driving contract is that of the crate. A link delivers its bytes complete and in order,
//! or it is removed.

mod common;
mod core;
mod mux;
mod queue;
pub mod record;
mod room;
mod rtt;
mod session;
pub mod stats;
#[cfg(test)]
mod tests;
mod tokens;
pub mod wire;

pub use self::core::Tunnel;
pub use common::{Event, LinkError, SessionId, Settings};
pub use mux::{Carrier, Lane};
