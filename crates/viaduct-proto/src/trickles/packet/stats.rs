//! Counters of refused packets.

/// Reason why a packet is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Not TCP or UDP over IP, a fragment, or contradictory lengths.
    Malformed,
    /// Truncated packet.
    Cut,
    /// More bytes than the messages: several packets were coalesced on the path.
    Merged,
    /// Wrong checksum.
    Checksum,
    /// No mark, or a mark of another version.
    Unmarked,
    /// TCP flags that Trickles' packets do not have, at all or in this direction.
    Flags,
    /// Packet of a host with the same role, between other addresses, from or to port 0, or from or
    /// to an address that cannot belong to a single host.
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
