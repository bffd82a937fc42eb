//! Semantics of captured socket calls, shared by all interposers (TESLA, section 3.8, extended
//! to three ways of capturing and to a selection of flows).
//!
//! An interposer stands between a program and the kernel and sees a call before it is made. It
//! passes the socket's type and the address; this crate decides whether the call is left to
//! the kernel, becomes a flow of the master, or is refused. The decision allocates no memory,
//! because a stub may run in the child of a vfork.
//!
//! ```text
//!   program ──connect──▶ interposer ──Socket, address──▶ Rules::connect
//!                            │                               │
//!                            │   Pass: the kernel's  ◀───────┤
//!                            │   Refuse(errno)       ◀───────┤
//!                            │   Divert(where to)    ◀───────┘
//!                            └── wire::Request, the socket ──▶ master ── flow ──▶ far end
//! ```
//!
//! `socket` has the kernel's numbers, `rules` the user's rules, and `meaning` combines them.
//! `wire` is the protocol between stubs and masters, and `aware` that of programs that know of
//! their handlers; `record` reads and writes the fields of records. `secret` precedes the records
//! of a run's own programs. The protocol between runs and a master that they share is in
//! viaduct-proto.
//!
//! The crate is part of every wrapped program, so it depends on `thiserror` alone.

pub mod aware;
mod meaning;
mod pattern;
pub mod record;
mod rules;
mod secret;
mod socket;
pub mod wire;

pub use meaning::{Datagrams, Verdict};
pub use rules::{Fate, Line, MAX_LINES, RuleError, Rules, Transport};
pub use secret::{SECRET, Secret};
pub use socket::{
    Errno, LONGEST, MSG_FASTOPEN, SOCKADDR, Sockaddr, Socket, parse_bound, parse_sockaddr,
};

#[cfg(test)]
mod tests;
