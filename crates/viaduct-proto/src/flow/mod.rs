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
//! ([`Handler::getsockname`], [`Handler::measure`], [`Handler::control`]) are answered at once; they go downstream.
//!
//! **Guaranteed completion** (3.4). A `write` or an `avail` takes all its bytes, and nobody is asked
//! to try again; it returns `false` only when the flow will never take any more. `may_write(false)`
//! and `may_avail(false)` stop the source (3.5): a handler without a buffer of its own passes them
//! on, which is what the defaults do. Only the two ends buffer. Each end stops its source when it
//! holds the chain's limit, and lets it go on at half of that.
//!
//! # What a driver does
//!
//! 1. **A flow that connects:** [`Chain::new`], [`Chain::connect`]. **One that was accepted:** a
//!    [`sibling`](Chain::sibling) of the chain that listens, [`Chain::set_names`] and
//!    [`Chain::accepted`] for [`Chain::bottom`]; there is no application, and nothing is read or
//!    written for it, until [`Action::Accepted`]. If [`Action::Failed`] comes instead, the chain is
//!    dropped.
//! 2. **Connections.** A chain asks for connections at any time ([`Action::Bind`], then
//!    [`Action::Connect`]), also for several at once and again after hours: keep them in a map by
//!    [`BottomId`]. Say `set_names` before `connected(Ok)`. Bytes of a bottom go out once it is
//!    connected; whether it is read is told by [`Action::Receive`] (at first it is). A number is not
//!    used twice; after [`Action::Close`] the connection is closed and forgotten, and whatever is said
//!    of it is ignored. [`Action::SetOption`] may come before the connection is there.
//! 3. **After each call** drain [`Chain::poll_action`], in order. Before sleeping look at
//!    [`Chain::poll_timeout`]: it may be now, which is how a handler waits for a source that has more
//!    to say at once, or for its neighbours' answer.
//! 4. **Sessions over several connections.** One map for all chains of the same handlers, also where these were made
//!    anew of the same config:
//!
//! ```text
//!      Action::Claim(key)    map[key] = this chain            Action::Release(key)   remove, if it is this chain's
//!      Action::Give(key)     map[key] is there:   owner.take(now, giver) -> [(old, new)]
//!                                                 the giver's connection `old` is the owner's `new` now;
//!                                                 then drain the owner's actions at once; None: close all
//!                            it is not:           giver.unclaimed(now), and drive it on until it closes
//! ```
//!
//!    The giver is gone by that; it never had an application. One loop has all of them: whoever has several refuses
//!    chains that [gather](Factory::gathers) connections where they are accepted, or [share](Factory::shares) them.
//!    [`Action::Wake`] goes the same way, to [`Chain::wake`] of whoever has claimed its key; and
//!    [`Action::Spawn`] asks for one more chain, [`Chain::spawned`], without an application
//!    ([`Kin::Alone`]) or for the one that the accepted flow came for ([`Kin::Accepted`]).
//! 5. **The end.** When the application is gone, however that came about, say [`Chain::close`] and
//!    drive the chain on until all its bottoms are closed: what was written may still be on its way,
//!    or wait for another connection. Before a chain is dropped, say [`Chain::abandon`]. After [`Action::Failed`] drop it when its bottoms are closed.
//! 6. **Measures.** Where a factory [asks for them](Factory::measures), say [`Chain::set_measure`] of each
//!    connection before the chain is driven.
//! 7. **Words.** [`Action::Say`] is a line for the log; [`Action::Event`] is for the application:
//!    `NAME: what`. `migrate: freeze` and `migrate: thaw` are for whoever can stop it. When addresses
//!    or routes change, `control("migrate", b"retry")` and `control("stripe", b"retry")` to every
//!    chain saves the seconds until a silent connection is doubted.
//!
//! Datagrams pass a chain one by one, without a stream: [`datagrams`] says how, and [`relays`] how they go on
//! where the chain ends at a relay.
//!
//! Like all of this crate it knows no socket, no clock and no thread.

mod about;
mod buffer;
mod call;
mod chain;
mod context;
mod core;
pub mod datagrams;
mod ends;
mod giving;
mod handler;
mod measure;
mod registry;
pub mod relay;
pub mod relays;
mod slots;

pub use about::{About, Setting};
pub use buffer::Buffer;
pub use call::{Address, Failure, Half, SocketOption};
pub use chain::{Chain, DEFAULT_LIMIT};
pub use context::{Context, Downstream, Upstream};
pub use ends::{Action, BottomId, Kin, Spawn};
pub use handler::{FIRST, Handler, Output, Timer};
pub use measure::Measure;
pub use registry::{Arguments, Factory, HandlerSpec, Offload, Registry, SpecError, offload};

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
