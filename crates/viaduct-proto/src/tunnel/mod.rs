//! Tunnels: many sessions over a few long-lived links between two peers ("Taming the LFN", slides
//! 13 to 20).
//!
//! A session is one flow's bytes on their way through the tunnel. Opening one costs no round trip,
//! and none of them has to find out anew how much the path carries: the links know it.
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
//! Bytes on a link cannot be dropped, so whoever sends must know that there is room for them. The
//! receiver gives all of its buffer as *tokens*, one a byte; the sender divides them fairly among
//! its sessions, and keeps half for sessions to come. A reader that has stopped keeps its share
//! and no more.
//!
//! | file | noun |
//! |---|---|
//! | `core` | [`Tunnel`]: several links, and the sessions on them |
//! | `mux` | a link |
//! | `session` | a session's state |
//! | `tokens` | the sender's half of the allocation: who may send how much |
//! | `room` | the receiver's: how much there is, and how much the path needs |
//! | [`wire`] | the frames |
//! | [`record`] | what encrypts a link that is a plain stream |
//! | [`stats`] | counters |
//!
//! The drive contract is the crate's; a link's bytes come in order and complete, or the link is
//! removed.

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
