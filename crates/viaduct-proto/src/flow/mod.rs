//! The flow plane's core: a flow is a byte stream, a session service is a [`Handler`], and a
//! [`Chain`] of handlers stands between an application and the network (TESLA, section 3).
//!
//! ```text
//!   application, or an inbound
//!      │ connect, write, shutdown, close …          ▲ connected, avail, finished, may_write …
//!   ┌──▼───────────────────────────────────────────────┐
//!   │ top       holds what the application has not read │
//!   │  └▶ handler  ── output ──▶ handler ── output ──┐  │    each handler has one input flow and
//!   │                   └ output ──▶ handler ─ … ──┐ │  │    none, one or more output flows
//!   │ bottoms   hold what the network has not taken ◀┘  │
//!   └──────────────────────────────────────────────┬───┘
//!      │ actions: connect, listen, shut down, close     ▲ what sockets say
//!   the network, or an outbound
//! ```
//!
//! **Order of calls.** Calls never nest: what a handler asks of its neighbours is queued, and made
//! in that order after its own method has returned. So a handler is never called while it works,
//! chains may be as long as one likes, and what was written first arrives first. Only questions
//! ([`Handler::getsockname`], [`Handler::control`]) are answered at once; they go downstream.
//!
//! **Guaranteed completion** (3.4). A `write` or an `avail` takes all its bytes, and nobody is asked
//! to try again; it returns `false` only when the flow will never take any more. `may_write(false)`
//! and `may_avail(false)` stop the source (3.5): a handler without a buffer of its own passes them
//! on, which is what the defaults do. Only the two ends buffer. Each end stops its source when it
//! holds the chain's limit, and lets it go on at half of that.
//!
//! Like all of this crate it knows no socket, no clock and no thread.

mod about;
mod buffer;
mod call;
mod chain;
mod context;
mod core;
mod ends;
mod giving;
mod handler;
mod registry;
mod slots;

pub use about::{About, Setting};
pub use buffer::Buffer;
pub use call::{Address, Failure, Half, SocketOption};
pub use chain::{Chain, DEFAULT_LIMIT};
pub use context::{Context, Downstream, Upstream};
pub use ends::{Action, BottomId};
pub use handler::{FIRST, Handler, Output, Timer};
pub use registry::{Arguments, Factory, HandlerSpec, Offload, Registry, SpecError, offload};

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
