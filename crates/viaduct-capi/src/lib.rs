//! Trickles for C; `include/viaduct_trickles.h` documents the calls. Each call is a thin wrapper of
//! one in `viaduct_trickles`, and returns the result as a number.
//!
//! ```text
//!   C ── int fd ──▶ table: Listener or Connector ──▶ viaduct_trickles
//!     ── minisock * ──▶ a box: the event, and the reply under construction
//! ```
//!
//! Results below 0 are errors, as `-errno`. An `fd` is a real descriptor, which is readable when
//! `msk_turn` has packets to process. Calls of several threads with one `fd` are serialized.
//!
//! A parameter `minisock *` is a reference in Rust, or a box if the call consumes the minisocket.
//! The minisocket must come from `msk_next_event`, and must not have been consumed.

pub mod client;
mod convert;
pub mod event;
pub mod server;
mod table;
