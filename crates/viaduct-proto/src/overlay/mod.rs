//! Overlay of nodes that probe each other, so that a flow whose direct path fails can go through
//! one of them (Resilient Overlay Networks, which section 4.2 of the TESLA paper makes available to
//! unmodified programs).
//!
//! ```text
//!             probe, answer: reachability, delay, loss
//!        a ◀─────────────────────────────▶ b        each node reports its paths to the others,
//!        ▲ ▲                             ▲ ▲        so each knows all paths and the best route
//!        │ └────────▶ c ◀────────────────┘ │        to each node: direct, or through one other
//!        └──────────────▶ d ◀──────────────┘
//! ```
//!
//! **Probing.** Every `interval` a node sends a probe to each other node. If no answer arrives in
//! time, it probes again immediately. If `lost` probes in a row have no answer, the path is down
//! ([`prober`]). With the defaults a failure is detected within about 1.6 s, and there is some
//! hysteresis before the path is up again. Delay is an exponential average; loss is that of the
//! last 100 probes.
//!
//! **Reports.** Probes and answers carry the sender's paths to all other nodes. When a path goes
//! down or comes up, the node reports this to the other nodes immediately ([`wire`]).
//!
//! **Choosing.** [`choice`] picks the route to each node, by delay or by loss, and keeps it until
//! it fails or another route is clearly better.
//!
//! **Trust.** Two nodes know each other's public keys, and every message is authenticated by a key
//! that both derive from their key pairs. An answer is accepted once, and only if it repeats the
//! random number of a pending probe; the answer proves which incarnation of the peer is alive. Each
//! other message of that incarnation is accepted once, according to its number. Replayed messages
//! therefore change nothing.

mod choice;
mod health;
mod node;
mod prober;
mod seal;
mod stats;
mod table;
#[cfg(test)]
mod tests;
mod wire;

pub use choice::Policy;
pub use node::{Config, ConfigError, Node, Peer};
pub use prober::Timing;
pub use stats::Stats;
pub use table::{NodeEntry, OverlayRoute, PathQuality, Table};

/// Parses a message as a node does before it knows the sender, for fuzzing: true if valid.
#[doc(hidden)]
pub fn reads(datagram: &[u8]) -> bool {
    wire::Message::parse(datagram).is_some_and(|(message, _)| {
        let mut again = Vec::new();
        message.emit(&mut again);
        assert!(datagram.starts_with(&again), "a parsed message is emitted unchanged");
        true
    })
}

/// Maximum number of peers of a node, so that their paths all fit into a datagram.
pub const MAX_PEERS: usize = 64;
