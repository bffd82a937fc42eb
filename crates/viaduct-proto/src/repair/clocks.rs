//! Clocks of handshakes.

/// Clocks of initiations, in nanoseconds since 1970; kept over a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clocks {
    /// Clock of the peer's latest initiation that was answered; older ones are refused.
    pub heard: u64,
    /// Clock of the latest initiation sent to the peer; the next one is greater.
    pub sent: u64,
}

impl Clocks {
    /// Returns the later value of each clock.
    #[must_use]
    pub fn max(self, other: Clocks) -> Clocks {
        Clocks { heard: self.heard.max(other.heard), sent: self.sent.max(other.sent) }
    }
}
