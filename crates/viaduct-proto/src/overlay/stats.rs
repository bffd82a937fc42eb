//! Counters of a node.

use serde::{Deserialize, Serialize};

/// Counters of the messages that a node has sent and received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Probes sent.
    pub probes: u64,
    /// Answers to those probes.
    pub answered: u64,
    /// Probes of other nodes that were answered.
    pub answers: u64,
    /// Datagrams that are not messages.
    pub malformed: u64,
    /// Messages of unknown senders.
    pub strangers: u64,
    /// Messages with an invalid tag.
    pub forged: u64,
    /// Replayed messages, and answers without a pending probe.
    pub replayed: u64,
    /// Paths that went down.
    pub failures: u64,
    /// Changes of the chosen route.
    pub changes: u64,
}
