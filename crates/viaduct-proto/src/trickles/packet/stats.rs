//! Counters of refused packets.

/// Why a packet was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// Not TCP or UDP over IP, a fragment, or lengths that contradict each other.
    #[error("not a whole packet of TCP or UDP")]
    Malformed,
    /// Truncated packet.
    #[error("the packet's end is missing")]
    Cut,
    /// More bytes than one message: several packets were coalesced on the path.
    #[error("several packets were joined to one")]
    Merged,
    /// Wrong checksum.
    #[error("a wrong checksum")]
    Checksum,
    /// No mark, or one of another version.
    #[error("no mark of ours")]
    Unmarked,
    /// TCP flags that Trickles' packets do not have, or not in this direction.
    #[error("flags that no such packet has")]
    Flags,
    /// From a host of the same role, between other addresses, or from an address that is not a
    /// host's.
    #[error("not meant for this end")]
    NotOurs,
}

/// Number of refused packets, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    /// [`Refusal::Malformed`].
    pub malformed: u64,
    /// [`Refusal::Cut`].
    pub cut: u64,
    /// [`Refusal::Merged`].
    pub merged: u64,
    /// [`Refusal::Checksum`].
    pub checksum: u64,
    /// [`Refusal::Unmarked`].
    pub unmarked: u64,
    /// [`Refusal::Flags`].
    pub flags: u64,
    /// [`Refusal::NotOurs`].
    pub not_ours: u64,
}

impl Refusals {
    /// Counts one refused packet.
    pub fn count(&mut self, why: Refusal) {
        *match why {
            Refusal::Malformed => &mut self.malformed,
            Refusal::Cut => &mut self.cut,
            Refusal::Merged => &mut self.merged,
            Refusal::Checksum => &mut self.checksum,
            Refusal::Unmarked => &mut self.unmarked,
            Refusal::Flags => &mut self.flags,
            Refusal::NotOurs => &mut self.not_ours,
        } += 1;
    }

    /// Sum of all counters.
    pub fn total(&self) -> u64 {
        let Refusals { malformed, cut, merged, checksum, unmarked, flags, not_ours } = self;
        malformed + cut + merged + checksum + unmarked + flags + not_ours
    }
}
