//! Trickles for C; `include/viaduct_trickles.h` documents the calls. Each call here is a call
//! of `viaduct_trickles`, with its result as a number; all decisions are made there.
//!
//! ```text
//!   C ── int fd ──▶ table: Listener or Connector ──▶ viaduct_trickles
//!     ── minisock * ──▶ a box: the event, and the reply in the making
//! ```
//!
//! Results below 0 are errors, as `-errno`. An `fd` is a real descriptor: readable when
//! `msk_turn` has something to do. One thread at a time uses an `fd`; a second one waits.
//!
//! A `minisock *` is a reference here, or a box where the call uses it up: the caller got it from
//! `msk_next_event`, and has not used it up.

pub mod client;
mod convert;
pub mod event;
pub mod server;
mod table;
