//! Semantics of captured socket calls, shared by all interposers (section 3.8 of the TESLA paper,
//! extended to three kinds of interposers and to rules that select flows).
//!
//! An interposer sees a program's call before the kernel does. It passes the socket's type and the
//! address to this crate, which decides whether the call is left to the kernel, becomes a flow of
//! the master, or is refused. The decision allocates no memory, because a stub (the preloaded
//! library in the program) may run in the child of a vfork.
//!
//! ```text
//!   program ──connect──▶ interposer ──Socket, address──▶ Rules::connect
//!                            │                               │
//!                            │   Pass: to the kernel ◀───────┤
//!                            │   Refuse(errno)       ◀───────┤
//!                            │   Divert(to)          ◀───────┘
//!                            └── wire::Request, the socket ──▶ master ── flow ──▶ far end
//! ```
//!
//! `socket` has the kernel's numbers, `rules` the user's rules, and `meaning` the decisions. `wire`
//! is the protocol between stubs and masters, and `aware` the protocol of programs that talk to the
//! handlers of their flows; `record` reads and writes the fields of records. `secret` authenticates
//! the records of a run's programs. The protocol between runs and a master that they share is in
//! viaduct-proto.
//!
//! The preloaded library contains this crate, so this crate depends only on `thiserror`.

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
