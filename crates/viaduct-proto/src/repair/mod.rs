//! Protocol of the packet plane: repairs that travel beside the packets they protect.
//!
//! The kernel forwards every packet between two sites, unaltered. Each gateway reads copies of the
//! packets that leave for a peer's site, to compute repairs, and of the packets that arrive from
//! there, to find out which are missing. Each repair is preceded by the names of the packets that
//! it covers. The receiving gateway decodes missing packets and hands them to the kernel as if they
//! had just arrived. If a gateway dies, traffic continues without protection.
//!
//! ```text
//!      site A                                  WAN                                 site B
//!   host ──▶ kernel ──────────────── packets, untouched ────────────────▶ kernel ──▶ host
//!               ┊ copy                                               copy ┊   ▲
//!            sender ─▶ seal ═══════ repairs, authenticated ═══════▶ open ─▶ receiver
//! ```
//!
//! [`Plane`] is the entry point: it routes copies and datagrams to peers. A peer connects a
//! `Session` (keys), a `Sender` (names, code, framing) and a `Receiver` (store, ledger,
//! decoder). This module implements the paper's sections 4.1, 4.5, 4.6 and 4.7.

pub mod align;
mod allowance;
mod answers;
mod auto;
mod budget;
mod bundle;
pub mod cache;
mod claims;
mod classes;
mod clocks;
mod coder;
mod coding;
mod congestion;
mod contest;
pub mod control;
mod copies;
mod flow;
mod flows;
mod handshake;
mod handshake_pace;
pub mod health;
pub mod identity;
mod in_flight;
pub mod lanes;
mod ledger;
mod liveness;
mod names;
mod observed;
mod outbox;
mod peer;
mod plane;
mod prefix;
mod prefix_table;
mod racks;
mod reaction;
mod receiver;
mod recent;
mod reorder_hold;
mod reordering_window;
pub mod report;
mod requests;
mod seal;
pub mod section;
mod sender;
mod session;
pub mod shadow;
mod site_table;
mod sites;
pub mod stats;
pub mod status;
mod store;
mod syns;
pub mod terms;
#[cfg(test)]
mod tests;
mod touched;
mod transport;
mod unnamed;
pub mod wire;

pub use classes::{Class, Match, Repairs};
pub use clocks::Clocks;
pub use coding::{Coding, Settings};
pub use outbox::Outbox;
pub use peer::{
    Local, MIN_MEMORY, PATHS, PathFacts, PathsConfig, PeerConfig, PeerError, PeerFacts, RepairPath,
    least_memory, overhead,
};
pub use plane::{MAX_PEERS, PathChange, PeersError, Plane, PlaneStats};
pub use racks::{PeerMember, RackConfig, SliceCount};
pub use session::WeakKey;
pub use sites::Sites;
pub use transport::{Cause, Endpoint, Transport, TransportChoice};
