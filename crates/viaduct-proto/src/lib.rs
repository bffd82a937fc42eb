//! Viaduct's protocol cores, sans-IO.
//!
//! Bytes, events and *the time* go in; packets, actions and the next deadline come out. No core
//! sees a socket, a clock or a thread, so each can be tested in virtual time, swept a thousand
//! times a second and replayed from a seed.
//!
//! # The driving contract
//!
//! Every machine uses the same verbs:
//!
//! ```text
//!   handle_*(now, bytes)   something happened
//!   poll_*() -> Option<_>  take what the machine wants done, until None
//!   poll_timeout()         the deadline of the earliest timer, if any
//!   handle_timeout(now)    that deadline has passed
//! ```
//!
//! A shell loops: hand in what arrived, drain every `poll_*`, sleep until `poll_timeout` or the
//! next arrival. The one invariant: `now` never goes backwards.

pub mod agree;
pub mod fec;
pub mod flow;
pub mod handlers;
pub mod keys;
pub mod link;
pub mod names;
pub mod overlay;
pub mod repair;
pub mod rng;
pub mod sim;
pub mod split;
pub mod time;
pub mod trickles;
pub mod tunnel;
pub mod web;
pub mod wire;
pub mod wrap;
