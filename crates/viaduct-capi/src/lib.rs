//! Trickles for C: `include/viaduct_trickles.h` says what each call means. A call here is a call of
//! [`viaduct::trickles`] and its result as a number; what is decided, is decided there.
//!
//! ```text
//!   C ── int fd ──▶ table: Listener or Connector ──▶ viaduct::trickles
//!     ── minisock * ──▶ a box: the event, and the reply in the making
//! ```
//!
//! Numbers below 0 are errors, as `-errno`. An `fd` is real: readable when `msk_turn` has something to do.
//! An `fd` is used by one thread at a time; a second one waits.

pub mod client;
mod convert;
pub mod event;
pub mod server;
mod table;
