//! Core of the flow plane: a flow is a byte stream, a [`Handler`] is a session service on it, and a
//! [`Chain`] of handlers connects an application to the network (section 3 of the TESLA paper).
//!
//! ```text
//!   application, or a proxy's inbound connection
//!      │ connect, write, shutdown, close …          ▲ connected, avail, finished, may_write …
//!   ┌──▼───────────────────────────────────────────────┐
//!   │ top       holds what the application has not read │
//!   │  └▶ handler  ── output ──▶ handler ── output ──┐  │    each handler has one input flow and
//!   │                   └ output ──▶ handler ─ … ──┐ │  │    none, one or more output flows
//!   │ bottoms   hold what the network has not taken ◀┘  │
//!   └──────────────────────────────────────────────┬───┘
//!      │ actions: connect, shut down, close …           ▲ socket events
//!   the network, or a proxy's outbound connection
//! ```
//!
//! **Order of calls.** Calls never nest: a handler's calls to its neighbours are queued, and made
//! in order after its own method has returned. A handler is therefore never re-entered, chains may
//! be of any length, and data written first arrives first. Only queries ([`Handler::getsockname`],
//! [`Handler::getpeername`], [`Handler::getsockopt`], [`Handler::measure`], [`Handler::control`])
//! are answered immediately; they are passed downstream.
//!
//! **Guaranteed completion** (3.4). A `write` or an `avail` takes all its bytes, so callers never
//! retry; it returns `false` only when the flow will never take any more. `may_write(false)` and
//! `may_avail(false)` stop the source (3.5): a handler without a buffer of its own passes them on,
//! as the defaults do. In a chain of such handlers only the two ends buffer. Each end stops its
//! source when it holds as many bytes as the chain's limit, and resumes it at half the limit.
//!
//! # Duties of a driver
//!
//! 1. **A flow that connects:** [`Chain::new`], [`Chain::connect`]. **An accepted flow:**
//!    [`Chain::new`], [`Chain::set_names`] for [`Chain::bottom`], and [`Chain::accepted`]. The
//!    flow has no application, and no application data is read or written, until
//!    [`Action::Accepted`]. If [`Action::Failed`] follows instead, drop the chain. Among the
//!    handlers:
//!
//! ```text
//!      listen ↓ … accept_ready ↑   a handler delays the client, or refuses it
//!      accept ↓ … accepted ↑       handshakes
//! ```
//!
//! 2. **Connections.** A chain may ask for connections at any time ([`Action::Bind`], then
//!    [`Action::Connect`]), even for several at once, or hours later: keep the connections in a map
//!    by [`BottomId`]. Call `set_names` before `connected(Ok)`. Send the bytes of a bottom once it
//!    is connected; [`Action::Receive`] turns reading on and off (initially on). A `BottomId` is
//!    not used twice. After [`Action::Close`] the connection is closed and forgotten, and later
//!    calls about it are ignored. [`Action::SetOption`] may come before [`Action::Connect`]: a new
//!    connection gets all [`Chain::options`], and the [`Chain::transport`] that its handlers name.
//! 3. **After each call** drain [`Chain::poll_action`], in order. Before sleeping check
//!    [`Chain::poll_timeout`]. The deadline may be `now`: handlers set such a timer to run once the
//!    source's pending data, or a neighbour's answer, has arrived.
//! 4. **Sessions over several connections.** Keep one map for all chains of the same handlers,
//!    including chains whose handlers were created anew from the same config:
//!
//! ```text
//!      Action::Claim(key)    map[key] = this chain
//!      Action::Release(key)  remove map[key], if it is this chain
//!      Action::Give(key)     map[key] exists:     owner.take(now, giver) -> [(old, new)]
//!                                                 the giver's connection `old` is now the owner's
//!                                                 `new`; then drain the owner's actions at once;
//!                                                 None: close all
//!                            no such key:         giver.unclaimed(now); drive it until it closes
//! ```
//!
//!    `take` consumes the giver, which never had an application. All chains must run in one event
//!    loop: a driver with several loops refuses accepted flows whose handlers
//!    [gather](Factory::gathers) connections, and all flows whose handlers
//!    [share](Factory::shares) them.
//!    [`Action::Wake`] is routed the same way, to [`Chain::wake`] of the chain that has claimed its
//!    key. [`Action::Spawn`] asks for one more chain, [`Chain::spawned`], either without an
//!    application ([`SpawnKind::Alone`]) or for the application of the accepted flow
//!    ([`SpawnKind::Accepted`]).
//! 5. **The end.** When the application has gone, for any reason, call [`Chain::close`] and
//!    drive the chain until all its bottoms are closed: written data may still be in flight, or
//!    wait for another connection. Call [`Chain::abandon`] before a chain is dropped. After
//!    [`Action::Failed`] drop the chain when its bottoms are closed.
//! 6. **Measurements.** If a factory [uses them](Factory::measures), call [`Chain::set_measure`]
//!    for each connection, each time before the chain is driven.
//! 7. **Messages.** [`Action::Say`] is a line for the log. [`Action::Event`] is for the
//!    application, as `NAME: what`; `migrate: freeze` and `migrate: thaw` are for a process that
//!    can stop the application. When addresses or routes change, send `control("migrate",
//!    b"retry")` and `control("stripe", b"retry")` to every chain: otherwise a dead connection is
//!    noticed only after seconds of silence.
//!
//! Datagrams pass a chain one by one, without a stream: see [`datagrams`], and [`relays`] for
//! chains that end at a relay.
//!
//! Like the rest of this crate, the module uses no sockets, clocks or threads.

mod about;
mod buffer;
mod call;
mod chain;
mod context;
mod core;
pub mod datagrams;
mod early;
mod ends;
mod handler;
mod handover;
mod measure;
mod registry;
pub mod relay;
pub mod relays;
mod slots;

pub use about::{About, Setting};
pub use buffer::Buffer;
pub use call::{Address, Failure, Half, OutputTransport, SocketOption, SocketOptions};
pub use chain::{Chain, DEFAULT_LIMIT};
pub use context::{Context, Downstream, Upstream};
pub(crate) use early::{Early, End};
pub use ends::{Action, BottomId, Spawn, SpawnKind};
pub use handler::{FIRST, Handler, Output, Timer};
pub use measure::Measure;
pub use registry::{Arguments, Factory, HandlerSpec, Offload, Registry, SpecError, offload};

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
