//! Viaduct's protocol cores, sans-IO.
//!
//! Bytes, events and *the time* go in; packets, actions and the next deadline come out. No core
//! uses a socket, a clock or a thread, so each can be tested in virtual time and replayed from a
//! seed.
//!
//! # The driving contract
//!
//! Every state machine has the same methods:
//!
//! ```text
//!   handle_*(now, bytes)   an event
//!   poll_*() -> Option<_>  the machine's next action, until None
//!   poll_timeout()         the deadline of the earliest timer, if any
//!   handle_timeout(now)    that deadline has passed
//! ```
//!
//! A *shell*, the code that owns sockets and clocks, runs a loop: it passes in what has
//! arrived, drains every `poll_*`, and sleeps until `poll_timeout` or the next arrival. `now`
//! never decreases.
//!
//! A machine acts on every deadline that it reports. A *round* is `handle_timeout(now)` followed by
//! every `poll_*` until `None`. After a round `poll_timeout()` is `None` or later than `now`,
//! unless the round made progress: it sent, reported or changed something. At one `now` a machine
//! makes at most 8 rounds of progress, so a shell that sleeps until `poll_timeout` never spins. The
//! test module `driving` checks this for every machine.

#[cfg(test)]
mod driving;
pub mod fake_ip;
pub mod fake_tcp;
pub mod fec;
pub mod flow;
pub mod handlers;
pub mod health;
pub mod history;
pub mod keys;
pub mod link;
pub mod negotiate;
pub mod overlay;
mod packet_log;
pub mod placement;
pub mod rack;
mod reader;
pub mod repair;
mod replay_window;
pub mod rng;
pub mod sim;
pub mod split;
pub mod spray;
pub mod time;
pub mod timers;
pub mod trickles;
pub mod tunnel;
pub mod units;
pub mod upgrade;
pub mod web;
pub mod wire;
pub mod wrap;
