//! Errors and warnings on the parameters of a code.

/// Invalid parameters of a code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// r is 0.
    #[error("r = 0: a repair must cover at least 1 packet; r goes from 1 to 255")]
    NoSources,
    /// No interleaves, or no repairs for a block or a group of packets.
    #[error("c = 0: a code must send repairs; give at least one interleave or parity")]
    NoRepairs,
    /// More layers than a repair can name.
    #[error("{0} interleaves; there can be at most 255 layers")]
    TooManyLayers(usize),
    /// Interleave of 0.
    #[error("interleave 0: a layer needs at least one bin; interleaves go from 1 to 65535")]
    NoInterleave,
    /// Reed-Solomon block that does not fit GF(2^8).
    #[error("r + c = {r} + {c} is above 256, the most that a Reed-Solomon block holds")]
    BlockTooLong {
        /// Packets in a block.
        r: u8,
        /// Repairs for a block.
        c: u8,
    },
    /// Window of 0 packets, or of more than a repair can cover.
    #[error("window: a repair covers at least 1 packet and at most 2048")]
    NoWindow,
    /// Repairs after every 0 packets.
    #[error("a repair after every 0 packets; `packets` is 1 or more")]
    NoRate,
}

/// Valid parameters that are inefficient.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Warning {
    /// Repairs of two layers share more than one packet (Maelstrom 4.4).
    #[error(
        "interleaves {smaller} and {larger} meet every {lcm} packets, not more than r * {smaller} \
            = \
         {reach}: repairs of both layers cover the same pairs of packets and recover less; \
         interleaves without a common factor avoid it"
    )]
    Meet {
        /// The smaller interleave.
        smaller: u16,
        /// The larger interleave.
        larger: u16,
        /// Least common multiple of the two.
        lcm: u64,
        /// Number of packets that a repair of the smaller interleave spans: r * `smaller`.
        reach: u64,
    },
    /// Larger interleave not above r (Maelstrom 4.4).
    #[error(
        "interleave {larger} is not above r = {r}: its repairs share packets with those of \
         interleave {smaller}; choose one of {r} + 1 or more"
    )]
    NotAboveR {
        /// The smaller interleave.
        smaller: u16,
        /// The larger interleave.
        larger: u16,
        /// Packets in a repair.
        r: u8,
    },
    /// More repairs than packets.
    #[error("{repairs} repairs for {packets} packets: sending each packet twice would cost less")]
    MoreRepairsThanPackets {
        /// Repairs.
        repairs: u32,
        /// Number of packets for which these repairs are sent.
        packets: u32,
    },
    /// Window too short for its rate: some packets are covered by no repair.
    #[error(
        "window of {window} packets with a repair after every {gap}: some packets would be in \
         none; choose a window of {gap} or more"
    )]
    WindowLeavesGaps {
        /// Packets in the window.
        window: u16,
        /// Packets between two repairs.
        gap: u32,
    },
}

impl Warning {
    /// Returns a warning if there are more repairs than packets: sending every packet twice would
    /// be cheaper.
    pub(super) fn if_dearer(repairs: u32, packets: u32) -> Vec<Self> {
        let dearer = repairs > packets;
        dearer.then_some(Warning::MoreRepairsThanPackets { repairs, packets }).into_iter().collect()
    }
}
