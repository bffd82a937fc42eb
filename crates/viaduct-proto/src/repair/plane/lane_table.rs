//! Lanes of all peers that a plane owns.
//!
//! ```text
//!   peer, lane ─▶ index of the peer's first lane + number of owned lanes below this one
//! ```

use std::ops::Range;

use crate::keys::PublicKey;
use crate::repair::lanes::{LaneCount, MAX_LANES, Shares, lane_hash};
use crate::repair::stats::PeerStats;
use crate::time::Instant;
use crate::wire::ip::Header;

/// Lanes of one peer.
#[derive(Clone, Debug)]
pub(super) struct PeerLanes {
    pub(super) key: PublicKey,
    /// Number of lanes that the peer wants.
    pub(super) peer_wants: LaneCount,
    /// Number of lanes in force.
    pub(super) count: LaneCount,
    /// Earliest time of the next change of the number of lanes.
    pub(super) free_at: Instant,
    /// True if the lanes are paths.
    pub(super) by_path: bool,
    /// Indices of the owned lanes in the plane.
    pub(super) owned: Range<usize>,
    /// Counters of lanes that are no longer owned.
    pub(super) former: PeerStats,
}

/// Lanes of all peers, in the order of the config.
#[derive(Clone, Debug)]
pub(super) struct LaneTable {
    own: LaneCount,
    shares: Shares,
    /// Number of owned lanes below each lane; `None` for a lane that is not owned. These values do
    /// not depend on the number of lanes in force.
    ranks: [Option<u8>; MAX_LANES],
    pub(super) peers: Vec<PeerLanes>,
    /// Time at which lanes change because a peer wants a different number.
    pub(super) due: Option<Instant>,
}

impl LaneTable {
    /// Creates the table of a plane with these shares, at a gateway that wants `own` lanes.
    pub(super) fn new(own: LaneCount, shares: Shares) -> LaneTable {
        let (mut ranks, mut next) = ([None; MAX_LANES], 0);
        for (lane, rank) in (0..).zip(&mut ranks) {
            if shares.contains(own.lane(lane)) {
                (*rank, next) = (Some(next), next + 1);
            }
        }
        LaneTable { own, shares, ranks, peers: Vec::new(), due: None }
    }

    pub(super) fn shares(&self) -> Shares {
        self.shares
    }

    /// Number of lanes in force with a peer that wants `peer_wants`.
    pub(super) fn in_force(&self, peer_wants: LaneCount) -> LaneCount {
        self.own.max(peer_wants)
    }

    /// Owned lanes, if `count` are in force.
    pub(super) fn owned(&self, count: LaneCount) -> impl Iterator<Item = u8> {
        (0..=count.last()).filter(|lane| self.ranks[usize::from(*lane)].is_some())
    }

    /// Index of a peer's lane; `None` if the lane is not owned, or not in force.
    pub(super) fn find(&self, peer: usize, lane: u8) -> Option<usize> {
        let of = &self.peers[peer];
        let rank = self.ranks.get(usize::from(lane)).copied().flatten()?;
        (lane <= of.count.last()).then(|| of.owned.start + usize::from(rank))
    }

    /// Number of the lane of a packet to or from a peer over this path.
    pub(super) fn number(&self, peer: usize, header: &Header, path: u8) -> u8 {
        let &PeerLanes { count, by_path, .. } = &self.peers[peer];
        match by_path {
            true => path,
            // With a single lane there is nothing to hash.
            false if count == LaneCount::ONE => 0,
            false => count.lane(lane_hash(header)),
        }
    }

    /// Index of the lane of a packet to or from a peer over this path; `None` if the lane is
    /// not owned.
    pub(super) fn of_packet(&self, peer: usize, header: &Header, path: u8) -> Option<usize> {
        self.find(peer, self.number(peer, header, path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::SecretKey;

    #[test]
    fn owned_lanes_are_found_one_after_another() {
        let count = |count| LaneCount::new(count).unwrap();
        let mut table = LaneTable::new(count(4), [1, 2].into_iter().collect());
        let owned: Vec<_> = table.owned(count(8)).collect();
        assert_eq!(owned, [1, 2, 5, 6]);
        let lanes = |count, owned| PeerLanes {
            key: SecretKey::from_bytes([1; 32]).public(),
            peer_wants: count,
            count,
            free_at: Instant::ZERO,
            by_path: false,
            owned,
            former: PeerStats::none(),
        };
        table.peers = vec![lanes(count(4), 0..2), lanes(count(8), 2..6)];
        let found: Vec<_> = (0..8).map(|lane| table.find(1, lane)).collect();
        assert_eq!(found, [None, Some(2), Some(3), None, None, Some(4), Some(5), None]);
        assert_eq!((table.find(0, 2), table.find(0, 5)), (Some(1), None), "four lanes in force");
    }
}
