//! Tunnels: many streams over a few long-lived links between two peers ("Taming the LFN", slides
//! 13 to 20, where a stream is called a session).
//!
//! A stream carries the bytes of one flow through the tunnel. Opening a stream takes no round trip,
//! and streams need not probe the capacity of the path, because the links' connections have already
//! done so.
//!
//! ```text
//!              near end                                               far end
//!  flow ─ open, write ─▶ stream ─┐ turns  ┌──────┐         ┌──────┐ ┌─▶ stream ─ read ─▶ flow
//!  flow ─ open, write ─▶ stream ─┼───────▶│ link ├─frames─▶│ link ├─┤
//!                        stream ─┘   ▲    └──────┘         └──────┘ └─▶ stream ─ read ─▶ (slow)
//!                                    │                                    │
//!                                 tokens ◀──── ACK: bytes freed ────── consumed
//! ```
//!
//! Bytes on a link cannot be dropped, so the sender must know that there is room for them. The
//! receiver grants all of its buffer as *tokens*, one per byte. The sender divides them fairly
//! among its streams and keeps half for future streams. A stream whose reader has stopped uses up
//! its share, and then gets no further tokens.
//!
//! | file | contents |
//! |---|---|
//! | `core` | [`Tunnel`]: several links, and the streams on them |
//! | `generations` | links to a peer that hands over to another process |
//! | `mux` | a link |
//! | `stream` | state of a stream |
//! | `tokens` | the sender's half of the allocation: how much each stream may send |
//! | `window` | the receiver's half: the receive window, and how much of it the path needs |
//! | [`wire`] | the frames |
//! | [`record`] | encryption of a link over a byte stream |
//! | [`stats`] | counters |
//!
//! The tunnel follows the crate's driving contract. A link delivers its bytes complete and in
//! order, or it is removed.

mod common;
mod core;
mod generations;
mod mux;
mod queue;
pub mod record;
mod rtt;
pub mod stats;
mod stream;
#[cfg(test)]
mod tests;
mod tokens;
mod window;
pub mod wire;

pub use self::core::Tunnel;
pub use common::{Event, LinkError, Settings, StreamId};
pub use mux::{Carrier, Lane};
