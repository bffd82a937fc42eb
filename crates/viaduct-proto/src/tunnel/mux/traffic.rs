//! Bytes that a link carries.

/// Unit in which the recent bytes of links are compared; smaller differences do not count.
const LOAD_UNIT: u64 = 256 << 10;

/// Bytes of data that a link has carried.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    pub(super) sent: u64,
    pub(super) received: u64,
    /// Sums of `sent` and `received` at the last ping but one, and at the last ping.
    at_pings: [u64; 2],
}

impl Traffic {
    /// Notes that a ping is due.
    pub(super) fn mark_ping(&mut self) {
        self.at_pings = [self.at_pings[1], self.sent + self.received];
    }

    /// Units carried since the last ping but one, in both directions.
    pub(super) fn recent(&self) -> u64 {
        (self.sent + self.received - self.at_pings[0]) / LOAD_UNIT
    }
}
