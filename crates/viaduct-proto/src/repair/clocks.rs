//! Timestamps of handshakes.

/// Timestamps of initiations, in nanoseconds since 1970; kept across restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clocks {
    /// Timestamp of the peer's latest initiation that was answered; older initiations are refused.
    pub heard: u64,
    /// Timestamp of the latest initiation sent to the peer; that of the next one is greater.
    pub sent: u64,
}

impl Clocks {
    /// Returns the later value of each timestamp.
    #[must_use]
    pub fn max(self, other: Clocks) -> Clocks {
        Clocks { heard: self.heard.max(other.heard), sent: self.sent.max(other.sent) }
    }
}
