//! Counters of refused packets.

/// Reason why a packet is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Not TCP or UDP over IP, a fragment, or lengths that contradict each other.
    Malformed,
    /// Truncated packet.
    Cut,
    /// More bytes than one message: several packets were coalesced on the path.
    Merged,
    /// Wrong checksum.
    Checksum,
    /// No mark, or one of another version.
    Unmarked,
    /// TCP flags that Trickles' packets do not have, or not in this direction.
    Flags,
    /// From a host of the same role, between other addresses, or from an address that is not a
    /// host's.
    NotOurs,
}

/// Number of refused packets, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusals([u64; 7]);

impl Refusals {
    /// Counts one refused packet.
    pub fn count(&mut self, why: Refusal) {
        self.0[why as usize] += 1;
    }

    /// Number of packets refused for this reason.
    pub fn of(&self, why: Refusal) -> u64 {
        self.0[why as usize]
    }

    /// Sum of all counters.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}
