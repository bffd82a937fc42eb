//! Counters of the packet plane since the start of the process, copied by value.

use serde::{Deserialize, Serialize};

use crate::time::Duration;

/// Buckets of the burst-length histogram: lengths 1, 2, 3-4, 5-8, … , 1025 and more.
pub const LOSS_BUCKETS: usize = 12;

/// Buckets of the recovery-latency histogram; bucket i counts latencies up to `LATENCY_BOUNDS[i]`,
/// and the last bucket counts all longer latencies.
pub const LATENCY_BUCKETS: usize = LATENCY_BOUNDS.len() + 1;

/// Upper bounds of the recovery-latency buckets, in microseconds.
pub const LATENCY_BOUNDS: [u64; 13] = [
    500, 1_000, 2_000, 5_000, 10_000, 15_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
    2_000_000,
];

/// Report of the receiving side on the link, since the receiver started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossReport {
    /// Highest packet number that was named.
    pub highest: u64,
    /// Packets whose fate is known.
    pub covered: u64,
    /// Lost packets among `covered`.
    pub lost: u64,
    /// Recovered packets among the lost.
    pub recovered: u64,
    /// Lengths of loss bursts, in buckets of powers of two ([`burst_bucket`]).
    pub bursts: [u64; LOSS_BUCKETS],
}

impl LossReport {
    /// Adds the report on another lane. The higher of the two highest numbers is kept.
    fn merge(&mut self, more: &LossReport) {
        let highest = self.highest.max(more.highest);
        self.add(more);
        self.highest = highest;
    }
}

/// Returns the bucket of bursts of `length` packets: 0 for 1, 1 for 2, 2 for 3 and 4, ...
pub fn burst_bucket(length: u64) -> usize {
    let bits = 64 - length.saturating_sub(1).leading_zeros() as usize;
    bits.min(LOSS_BUCKETS - 1)
}

/// Counters of the sending side of one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SenderStats {
    /// Data packets on their way to the peer's site, including those that the tap missed.
    pub packets: u64,
    /// Bytes of the packets that the tap has seen.
    pub bytes: u64,
    /// Packets encoded.
    pub protected: u64,
    /// Packets not encoded: no session with the peer, too long, or missed by the tap.
    pub unprotected: u64,
    /// Repairs sent.
    pub repairs: u64,
    /// Bytes of repairs, names and copies on the wire, including the outer headers.
    pub repair_bytes: u64,
    /// Repairs sent early because traffic paused.
    pub flushed: u64,
    /// Repairs sent because the peer requested them.
    pub answered: u64,
    /// Datagrams that carry only names.
    pub manifests: u64,
    /// Copies of packets sent.
    #[serde(default)]
    pub copies: u64,
    /// Packets that were named but not encoded, because of their class or because losses do not
    /// slow their sender down.
    #[serde(default)]
    pub left_alone: u64,
    /// Acknowledgements without data that were not announced to the peer.
    #[serde(default)]
    pub acks: u64,
}

/// Counters of the receiving side of one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiverStats {
    /// Data packets seen on their way from the peer's site.
    pub packets: u64,
    /// Bytes of those packets.
    pub bytes: u64,
    /// Repairs that were decrypted and parsed.
    pub repairs: u64,
    /// Repairs that were of no use: most covered no missing packet.
    pub useless: u64,
    /// Packets recovered and injected.
    pub recovered: u64,
    /// Lost packets that were not recovered in time, or that were recovered but withheld.
    pub unrecoverable: u64,
    /// Packets whose names did not arrive in time: it is unknown whether they were lost.
    pub uncovered: u64,
    /// Packets that were counted as missing but arrived after all.
    pub late: u64,
    /// Recoveries whose identity check failed; never injected.
    pub garbled: u64,
    /// Recoveries whose addresses lie outside the two sites; never injected.
    pub foreign: u64,
    /// SYNs that the path altered: those that arrived with a lowered MSS, and recoveries of
    /// SYNs that had arrived altered, which are never injected.
    pub altered: u64,
    /// Recovered SYNs not injected because it is unknown whether the path lowers their MSS.
    pub withheld: u64,
    /// Sections that are malformed or of an unknown kind, and repairs that the decoder refused:
    /// because of an impossible equation or its memory limit.
    pub malformed: u64,
    /// Losses on the link as seen by this gateway.
    pub link: LossReport,
    /// Copies of packets received.
    #[serde(default)]
    pub copies: u64,
    /// Copies that were of no use: most were of packets that had already arrived or been recovered.
    #[serde(default)]
    pub useless_copies: u64,
    /// Packets requested from the peer; a packet counts each time that it is requested.
    pub asked: u64,
    /// Bursts of random losses.
    pub random: u64,
    /// Packets dropped by a full queue.
    pub congested: u64,
    /// Recoveries of packets dropped by a full queue, injected with a congestion mark.
    pub marked: u64,
    /// Recoveries of packets dropped by a full queue, withheld so that their senders slow down.
    pub left_lost: u64,
    /// Acknowledgements without data, which the peer does not announce.
    #[serde(default)]
    pub acks: u64,
    /// Recoveries with a renewed TCP timestamp: their destinations would have refused the old
    /// timestamp.
    #[serde(default)]
    pub renewed: u64,
    /// Time from expected arrival to injection ([`LATENCY_BOUNDS`]), of recovered packets that no
    /// full queue has dropped and whose expected arrival is known.
    pub latency: [u64; LATENCY_BUCKETS],
    /// Sum of the times counted in `latency`, in microseconds.
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

/// Counters of the secure session with one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionStats {
    /// Handshakes completed, including re-keying.
    pub handshakes: u64,
    /// Datagrams that failed authentication.
    pub forged: u64,
    /// Datagrams seen before, or older than the replay window.
    pub replayed: u64,
    /// Datagrams for unknown sessions.
    pub unknown: u64,
    /// Handshakes refused by the rate limit.
    pub limited: u64,
}

/// All counters of one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStats {
    /// True if repairs can currently be exchanged.
    pub up: bool,
    /// Counters of the sending side.
    pub sender: SenderStats,
    /// Counters of the receiving side.
    pub receiver: ReceiverStats,
    /// Counters of the session.
    pub session: SessionStats,
    /// Last report of the peer on the link from this gateway to the peer.
    pub reported: LossReport,
}

impl PeerStats {
    /// Counters of no lanes: the initial value of a sum over lanes.
    pub fn none() -> PeerStats {
        PeerStats { up: true, ..PeerStats::default() }
    }

    /// Adds the counters of further lanes. The peer is up if all of its lanes are.
    pub fn merge(&mut self, more: &PeerStats) {
        self.up &= more.up;
        self.sender.add(&more.sender);
        let highest = self.receiver.link.highest.max(more.receiver.link.highest);
        self.receiver.add(&more.receiver);
        self.receiver.link.highest = highest;
        self.session.add(&more.session);
        self.reported.merge(&more.reported);
    }

    /// Repairs sent and received.
    pub fn repairs(&self) -> u64 {
        self.sender.repairs + self.receiver.repairs
    }
}

/// Counters that can be added to those of another lane.
trait Total {
    fn add(&mut self, more: &Self);
}

impl Total for u64 {
    fn add(&mut self, more: &u64) {
        *self = self.saturating_add(*more);
    }
}

impl<const N: usize> Total for [u64; N] {
    fn add(&mut self, more: &[u64; N]) {
        self.iter_mut().zip(more).for_each(|(total, more)| total.add(more));
    }
}

/// Implements [`Total`] for a struct whose fields are listed; the compiler checks that no field is
/// missing.
macro_rules! total {
    ($type:ident: $($field:ident)*) => {
        impl Total for $type {
            fn add(&mut self, more: &$type) {
                let $type { $($field),* } = more;
                $(self.$field.add($field);)*
            }
        }
    };
}

total!(LossReport: highest covered lost recovered bursts);
total!(SenderStats: packets bytes protected unprotected repairs repair_bytes flushed answered
    manifests copies left_alone acks);
total!(ReceiverStats: packets bytes repairs useless recovered unrecoverable uncovered late garbled
    foreign altered withheld malformed link copies useless_copies asked random congested marked
    left_lost acks renewed latency latency_sum);
total!(SessionStats: handshakes forged replayed unknown limited);

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
    fn a_latency_equal_to_a_bound_counts_below_it() {
        let mut stats = ReceiverStats::default();
        stats.record_latency(Duration::from_micros(500));
        stats.record_latency(Duration::from_secs(9));
        assert_eq!((stats.latency[0], stats.latency[LATENCY_BUCKETS - 1]), (1, 1));
    }

    #[test]
    fn the_counters_of_lanes_add_up() {
        let lane = |up, packets, highest| PeerStats {
            up,
            sender: SenderStats { packets, ..SenderStats::default() },
            reported: LossReport {
                highest,
                lost: 2,
                bursts: [1; LOSS_BUCKETS],
                ..Default::default()
            },
            ..PeerStats::default()
        };
        let mut stats = PeerStats::none();
        stats.merge(&lane(true, 5, 70));
        assert!(stats.up);
        stats.merge(&lane(false, 6, 60));
        assert!(!stats.up, "a lane is down");
        assert_eq!(stats.sender.packets, 11);
        let LossReport { highest, lost, bursts, .. } = stats.reported;
        assert_eq!((highest, lost, bursts[3]), (70, 4, 2));
    }
}
