//! Snapshots of the counters of tunnels, for status and metrics.

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
    /// Reason of an outage, and time since the tunnel was last up; `None` at far ends, while a link
    /// is up, and before the first failure.
    #[serde(default)]
    pub down: Option<String>,
    /// True while links are dialled anew, because one end has handed over to another process.
    #[serde(default)]
    pub is_expected: bool,
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
    /// Streams with the most queued or unacknowledged bytes, at most [`MAX_STREAMS`].
    pub streams: Vec<StreamStats>,
}

impl TunnelCounters {
    /// Adds the counters of another tunnel to the same peer.
    pub fn merge(&mut self, more: &TunnelCounters) {
        self.down = self.down.take().or_else(|| more.down.clone());
        self.is_expected |= more.is_expected;
        self.denied += more.denied;
        self.all.merge(&more.all);
        self.links.extend_from_slice(&more.links);
    }

    /// Keeps only the totals, because the tunnel's loop has ended.
    pub fn end(&mut self) {
        let TunnelStats { opened, accepted, reset, sent, received, delay, .. } = self.all;
        let none = TunnelStats::default();
        self.all = TunnelStats { opened, accepted, reset, sent, received, delay, ..none };
        (self.down, self.is_expected) = (None, false);
        (self.links, self.streams) = (Vec::new(), Vec::new());
    }
}

/// Maximum number of streams that are shown individually.
pub const MAX_STREAMS: usize = 32;

impl TunnelCounters {
    /// Short report of the tunnel's outage, if it is down.
    pub fn trouble(&self) -> Option<String> {
        Some(format!("{} is down: {}", title(&self.name), self.down.as_ref()?))
    }
}
