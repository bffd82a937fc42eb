//! The packet plane's protocol: repairs that travel beside the packets they protect.
//!
//! The kernel forwards every packet between two sites, unaltered. Each gateway reads copies: of
//! what leaves for a peer's site, to make repairs of it; of what arrives from there, to know what
//! did not. A repair names the packets that it covers; the gateway that receives it makes what is
//! missing and hands it to the kernel as if it had just arrived. If a gateway dies, traffic flows
//! on as if it had never been there.
//!
//! ```text
//!      site A                                  WAN                                 site B
//!   host ──▶ kernel ──────────────── packets, untouched ────────────────▶ kernel ──▶ host
//!               ┊ copy                                               copy ┊   ▲
//!            sender ─▶ seal ═══════ repairs, authenticated ═══════▶ open ─▶ receiver
//! ```
//!
//! [`Plane`] is the entry: it routes copies and datagrams to peers. A peer is a conductor over a
//! `Session` (keys), a `Sender` (names, code, framing) and a `Receiver` (store, ledger, decoder).
//! The paper's sections 4.1, 4.5, 4.6 and 4.7 describe what this room does.

pub mod align;
mod allowance;
mod auto;
mod bundle;
pub mod cache;
mod classes;
mod coding;
mod coming;
mod congestion;
pub mod control;
mod copies;
mod flow;
mod flows;
mod handshake;
pub mod health;
mod held;
pub mod identity;
mod ledger;
mod names;
mod observed;
mod outbox;
mod patience;
mod peer;
mod plane;
mod prefix;
mod reaction;
mod receiver;
mod recent;
pub mod report;
mod requests;
mod seal;
pub mod section;
mod sender;
mod session;
pub mod shadow;
mod sites;
pub mod stats;
mod store;
mod syns;
pub mod terms;
#[cfg(test)]
mod tests;
mod unnamed;
pub mod wire;

pub use classes::{Class, Match, Repairs};
pub use coding::{Coding, Settings};
pub use outbox::Outbox;
pub use peer::{Local, MIN_MEMORY, PeerConfig, PeerError, PeerFacts, least_memory, overhead};
pub use plane::{MAX_PEERS, PeersError, Plane, PlaneStats};
pub use session::{Clocks, WeakKey};
pub use sites::Sites;
