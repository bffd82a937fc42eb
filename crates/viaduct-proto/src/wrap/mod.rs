//! What a captured socket call means: the one room that all interposers ask (TESLA, section 3.8, grown
//! to three ways of capturing and to a choice of flows).
//!
//! An interposer stands between a program and the kernel, and hears of a call before it happens. It
//! says what the socket is and which address the program has given; here it is decided whether the
//! call is left alone, becomes a flow of the master's, or is refused. Nothing here allocates when it
//! decides: a stub inside a program may be asked in the child of a vfork.
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
//! `socket` knows the kernel's numbers, `rules` what the user has said, `meaning` joins them; `wire` is
//! what stubs and masters say to each other, `shared` what runs and the masters that they share do, and
//! `aware` what programs say that know of handlers; `secret` precedes what a run's own programs say.

pub mod aware;
mod meaning;
mod pattern;
mod rules;
mod secret;
pub mod shared;
mod socket;
pub mod wire;

pub use meaning::{Datagrams, Verdict};
pub use rules::{Fate, Line, MOST, RuleError, Rules, Transport};
pub use secret::{SECRET, Secret};
pub use socket::{
    Errno, LONGEST, MSG_FASTOPEN, SOCKADDR, Sockaddr, Socket, parse_bound, parse_sockaddr,
};

#[cfg(test)]
mod tests;
