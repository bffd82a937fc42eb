//! Counters of tunnels, copied out by value for status and metrics.

use serde::{Deserialize, Serialize};
use viaduct_proto::tunnel::stats::{LinkStats, StreamStats, TunnelStats};

use super::settings::title;

/// Counters of a tunnel to one peer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelCounters {
    /// The peer's public key.
    pub peer: String,
    /// Name of the tunnel; empty if unnamed.
    #[serde(default)]
    pub name: String,
    /// Reason and start of an outage; `None` at far ends, while a link is up, and before the
    /// first failure.
    #[serde(default)]
    pub down: Option<String>,
    /// Number of streams that the far end denied.
    #[serde(default)]
    pub denied: u64,
    /// Destination of the last stream that the far end denied.
    #[serde(default)]
    pub denied_last: Option<String>,
    /// Totals of the tunnel.
    pub all: TunnelStats,
    /// Counters of each link.
    pub links: Vec<LinkStats>,
    /// Streams with the most bytes waiting, at most [`MAX_STREAMS`].
    pub streams: Vec<StreamStats>,
}

/// Maximum number of streams that are shown individually.
pub const MAX_STREAMS: usize = 32;

impl TunnelCounters {
    /// Short report of the tunnel's outage, if it is down.
    pub fn trouble(&self) -> Option<String> {
        Some(format!("{} is down: {}", title(&self.name), self.down.as_ref()?))
    }
}
