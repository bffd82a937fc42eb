//! Plain counters of the packet plane, copied out by value. All count from the start of the
//! process.

use serde::{Deserialize, Serialize};

use crate::time::Duration;

/// Buckets of the burst-length histogram: lengths 1, 2, 3-4, 5-8, … , 1025 and more.
pub const LOSS_BUCKETS: usize = 12;

/// Buckets of the recovery-latency histogram; bucket i counts latencies up to
/// `LATENCY_BOUNDS[i]`, the last one all above.
pub const LATENCY_BUCKETS: usize = LATENCY_BOUNDS.len() + 1;

/// Upper bounds of the recovery-latency buckets, in microseconds.
pub const LATENCY_BOUNDS: [u64; 13] = [
    500, 1_000, 2_000, 5_000, 10_000, 15_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
    2_000_000,
];

/// What the receiving side tells the sending side about the link, since the receiver started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossReport {
    /// Highest packet number that a repair has named.
    pub highest: u64,
    /// Packets whose fate is known.
    pub covered: u64,
    /// Of them, how many the link lost.
    pub lost: u64,
    /// Of the lost, how many were recovered.
    pub recovered: u64,
    /// Lengths of loss bursts, in buckets of powers of two ([`burst_bucket`]).
    pub bursts: [u64; LOSS_BUCKETS],
}

/// Which bucket counts bursts of `length` packets: 0 for 1, 1 for 2, 2 for 3 and 4, and so on.
pub fn burst_bucket(length: u64) -> usize {
    let bits = 64 - length.saturating_sub(1).leading_zeros() as usize;
    bits.min(LOSS_BUCKETS - 1)
}

/// The sending side of one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SenderStats {
    /// Data packets seen on their way to the peer's site.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that were encoded.
    pub protected: u64,
    /// Packets that were not: no session with the peer, longer than the bound, or no IP.
    pub unprotected: u64,
    /// Repairs sent.
    pub repairs: u64,
    /// Their bytes on the wire, headers of IP and UDP included.
    pub repair_bytes: u64,
    /// Repairs among them that the idle timer fired before they were full.
    pub flushed: u64,
    /// Repairs among them that the peer asked for.
    pub answered: u64,
    /// Datagrams with names alone.
    pub manifests: u64,
    /// Copies of packets sent.
    #[serde(default)]
    pub copies: u64,
    /// Packets that were named and are in no repair, as their class has it.
    #[serde(default)]
    pub left_alone: u64,
    /// Acknowledgements without data, of which the peer does not hear.
    #[serde(default)]
    pub acks: u64,
}

/// The receiving side of one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiverStats {
    /// Data packets seen on their way from the peer's site.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Repairs that opened and parsed.
    pub repairs: u64,
    /// Of them, those that covered nothing missing.
    pub useless: u64,
    /// Packets recovered and injected.
    pub recovered: u64,
    /// Lost packets whose time ran out.
    pub unrecoverable: u64,
    /// Packets that no repair named before their time ran out.
    pub uncovered: u64,
    /// Packets that a repair found missing and that came late by themselves.
    pub late: u64,
    /// Recoveries that failed the check of their identity; never injected.
    pub garbled: u64,
    /// Recoveries whose addresses lie outside the two sites; never injected.
    pub foreign: u64,
    /// SYNs that the path altered: those that arrived with an MSS that it lowers to, and recoveries of
    /// others that had arrived, which are never injected.
    pub altered: u64,
    /// Recovered SYNs that were not injected, since it is not known yet whether the path lowers their MSS.
    pub withheld: u64,
    /// Repairs refused: malformed, or of an impossible equation.
    pub malformed: u64,
    /// The link as seen from here.
    pub link: LossReport,
    /// Copies of packets.
    #[serde(default)]
    pub copies: u64,
    /// Of them, those of packets that were here.
    #[serde(default)]
    pub useless_copies: u64,
    /// Packets that the peer was asked for.
    pub asked: u64,
    /// Bursts of packets lost by chance.
    pub random: u64,
    /// Packets that a full queue has dropped.
    pub congested: u64,
    /// Recoveries of such packets that were injected with a mark of congestion.
    pub marked: u64,
    /// Recoveries of such packets that were not injected, so that their senders slow down.
    pub left_lost: u64,
    /// Recoveries that were injected with a newer timestamp of TCP: their hosts would refuse them.
    #[serde(default)]
    pub renewed: u64,
    /// Time from when a packet should have arrived to its recovery ([`LATENCY_BOUNDS`]), of packets lost by chance.
    pub latency: [u64; LATENCY_BUCKETS],
    /// Sum of those times, in microseconds.
    pub latency_sum: u64,
}

impl ReceiverStats {
    /// Counts one recovery after `latency`.
    pub fn record_latency(&mut self, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        let bucket = LATENCY_BOUNDS.partition_point(|&bound| bound < micros);
        self.latency[bucket] += 1;
        self.latency_sum = self.latency_sum.saturating_add(micros);
    }
}

/// The secure session with one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionStats {
    /// Handshakes completed, re-keying included.
    pub handshakes: u64,
    /// Datagrams that did not authenticate.
    pub forged: u64,
    /// Datagrams that had been seen before, or too long ago.
    pub replayed: u64,
    /// Datagrams for no session of ours.
    pub unknown: u64,
    /// Handshakes turned away because too many came at once.
    pub limited: u64,
}

/// All of one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStats {
    /// Whether repairs can be exchanged now.
    pub up: bool,
    /// Towards the peer.
    pub sender: SenderStats,
    /// From the peer.
    pub receiver: ReceiverStats,
    /// The session.
    pub session: SessionStats,
    /// What the peer last told of the link from here to it.
    pub reported: LossReport,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_fall_into_buckets_of_powers_of_two() {
        let of = |lengths: &[u64]| lengths.iter().map(|&l| burst_bucket(l)).collect::<Vec<_>>();
        assert_eq!(of(&[1, 2, 3, 4, 5, 8, 9, 1024, 1025]), [0, 1, 2, 2, 3, 3, 4, 10, 11]);
        assert_eq!(burst_bucket(u64::MAX), LOSS_BUCKETS - 1);
    }

    #[test]
    fn a_latency_on_a_bound_belongs_below_it() {
        let mut stats = ReceiverStats::default();
        stats.record_latency(Duration::from_micros(500));
        stats.record_latency(Duration::from_secs(9));
        assert_eq!((stats.latency[0], stats.latency[LATENCY_BUCKETS - 1]), (1, 1));
    }
}
