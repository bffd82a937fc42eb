//! What a node counts.

use serde::{Deserialize, Serialize};

/// Messages of a node, sent and heard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Probes sent.
    pub probes: u64,
    /// Answers to them.
    pub answered: u64,
    /// Probes of others that were answered.
    pub answers: u64,
    /// Datagrams that are no message.
    pub malformed: u64,
    /// Messages of nobody that is known.
    pub strangers: u64,
    /// Messages whose tag is wrong.
    pub forged: u64,
    /// Messages that have come before, or answer nothing.
    pub replayed: u64,
    /// Paths that went down.
    pub failures: u64,
    /// Times that another way was chosen.
    pub changes: u64,
}
