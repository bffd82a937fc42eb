//! C library for Trickles, a transport whose servers keep no state of their clients. The calls are
//! documented in `include/viaduct_trickles.h`. Each call is a thin wrapper around a Rust function,
//! and returns a number; `msk_next_event` returns a pointer.
//!
//! ```text
//!   C ── int fd ──▶ table: Listener or Connector ──▶ viaduct_trickles
//!     ── minisock * ──▶ a box: the event, and the reply under construction
//! ```
//!
//! Results below 0 are errors, as `-errno`. An `fd` is a real descriptor, which is readable when
//! `msk_turn` has packets to process. Concurrent calls on the same `fd` are serialized.
//!
//! A parameter `minisock *` is a reference in Rust, or a box if the call consumes the minisocket.
//! The minisocket must come from `msk_next_event`, and must not have been consumed.

pub mod client;
mod convert;
pub mod event;
pub mod server;
mod table;
