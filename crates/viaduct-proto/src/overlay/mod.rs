//! An overlay of nodes that probe each other, so that a flow whose direct path fails can go by one of
//! them (Resilient Overlay Networks, which TESLA, 4.2, puts under unmodified programs).
//!
//! ```text
//!             probe, answer: is it there, how far is it, how much is lost
//!        a ◀─────────────────────────────▶ b        each node tells the others what it found, so
//!        ▲ ▲                             ▲ ▲        each knows all pairs, and by how it is best to
//!        │ └────────▶ c ◀────────────────┘ │        go to each: directly, or by one other
//!        └──────────────▶ d ◀──────────────┘
//! ```
//!
//! **Probing.** Every `interval` a node sends each other one a probe. If no answer comes in time, it
//! probes again at once, and if none comes to `lost` of them in a row, the path is down ([`prober`]).
//! With the defaults that is known within about 1.6 s of a failure, and there is some hysteresis before
//! it is up again. Delay is an average that forgets, loss is that of the last 100 probes.
//!
//! **Telling.** Probes and answers carry the sender's paths to all others; when a path goes down or comes
//! up, the others are told at once ([`wire`]).
//!
//! **Choosing.** [`choice`] picks the way to each node, by delay or by loss, and keeps it until another is
//! clearly better, or it fails.
//!
//! **Trust.** Two nodes know each other's public keys; every message is authenticated by what the two have
//! in common. An answer counts if it repeats the random number of a probe that waits for one, once; it
//! shows which incarnation of the peer is alive. What others of that incarnation tell counts once, by
//! their numbers. So nothing that is played again changes anything.

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
pub use table::{Place, Seen, Table, Way};

/// Reads a message as a node does before it knows whose it is, for fuzzing: whether it is one.
#[doc(hidden)]
pub fn reads(datagram: &[u8]) -> bool {
    wire::Message::parse(datagram).is_some_and(|(message, _)| {
        let mut again = Vec::new();
        message.emit(&mut again);
        assert!(datagram.starts_with(&again), "what was read is what was there");
        true
    })
}

/// Nodes that one node knows, at most: all fit into a datagram.
pub const MOST_PEERS: usize = 64;
