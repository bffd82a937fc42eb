//! Distribution of memory over all peers, according to their traffic.
//!
//! Each peer holds only the memory that its packets need. Once all peers together hold more than
//! the limit, some of them free the memory of their oldest packets: first the peers without
//! traffic, then those that exceed their share the most. So a peer with traffic keeps its memory up
//! to its share, whatever the others do, and may use all memory that the others leave.
//!
//! ```text
//!   held   ████████████████████░░░░░░░░░░   limit
//!           no traffic │ above its share │ within its share
//!           ── free first ─────▶         │ keep
//! ```

use std::collections::BTreeSet;

/// Memory of the peers of a gateway.
#[derive(Debug, Default)]
pub(super) struct Budget {
    limit: usize,
    total: usize,
    peers: Vec<Account>,
    /// Peers that can free memory. A rank consists of: whether the peer is idle; the bytes that it
    /// holds above its share, or in total if it is idle; and its index. The peer with the last rank
    /// frees memory first.
    order: BTreeSet<Rank>,
}

type Rank = (bool, i64, usize);

/// Memory of a peer.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    share: usize,
    held: usize,
    rank: Option<Rank>,
}

impl Budget {
    /// Creates the accounts of peers with these shares, which hold nothing yet. The limit is the
    /// sum of the shares.
    pub(super) fn new(shares: impl Iterator<Item = usize>) -> Budget {
        let account = |share| Account { share, ..Account::default() };
        let peers: Vec<_> = shares.map(account).collect();
        let limit = peers.iter().map(|peer| peer.share).sum();
        Budget { limit, peers, ..Budget::default() }
    }

    /// Records that a peer holds `held` bytes, of which it can free `sheddable`. `is_idle`: the
    /// peer has no traffic.
    #[inline]
    pub(super) fn note(&mut self, peer: usize, held: usize, sheddable: usize, is_idle: bool) {
        let account = &mut self.peers[peer];
        self.total = self.total - account.held + held;
        account.held = held;
        let excess = held as i64 - if is_idle { 0 } else { account.share as i64 };
        let rank = (sheddable > 0).then_some((is_idle, excess, peer));
        if rank != account.rank {
            account.rank.map(|before| self.order.remove(&before));
            rank.map(|rank| self.order.insert(rank));
            account.rank = rank;
        }
    }

    /// Peer that must free memory; `None` while all peers together are within the limit, or if no
    /// peer can free any.
    pub(super) fn debtor(&self) -> Option<usize> {
        if self.total <= self.limit {
            return None;
        }
        self.order.last().map(|(.., peer)| *peer)
    }

    /// Limit in bytes.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Bytes that all peers hold.
    pub(super) fn total(&self) -> usize {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Lets peers that hold `wanted` bytes free memory, one byte at a time, until all are within
    /// the limit; returns the bytes that each peer still holds.
    fn settled(shares: &[usize], wanted: &[(usize, bool)]) -> Vec<usize> {
        let mut budget = Budget::new(shares.iter().copied());
        let mut held: Vec<usize> = wanted.iter().map(|(held, _)| *held).collect();
        let note = |budget: &mut Budget, peer: usize, held: usize| {
            budget.note(peer, held, held, wanted[peer].1);
        };
        held.iter().enumerate().for_each(|(peer, held)| note(&mut budget, peer, *held));
        while let Some(peer) = budget.debtor() {
            held[peer] -= 1;
            note(&mut budget, peer, held[peer]);
        }
        assert_eq!(budget.total(), held.iter().sum::<usize>());
        held
    }

    #[test]
    fn a_single_busy_peer_gets_all_memory_and_idle_peers_free_theirs_first() {
        assert_eq!(
            settled(&[10; 4], &[(99, false), (0, false), (5, true), (5, true)]),
            [40, 0, 0, 0]
        );
        assert_eq!(
            settled(&[10; 4], &[(9, false), (8, false), (5, true), (50, true)]),
            [9, 8, 5, 18]
        );
    }

    proptest! {
        #[test]
        fn a_busy_peer_keeps_its_share_and_no_peer_frees_without_need(
            peers in prop::collection::vec((1..50_usize, 0..200_usize, any::<bool>()), 1..20),
        ) {
            let shares: Vec<_> = peers.iter().map(|(share, ..)| *share).collect();
            let wanted: Vec<_> = peers.iter().map(|(_, held, idle)| (*held, *idle)).collect();
            let (limit, held) = (shares.iter().sum::<usize>(), settled(&shares, &wanted));
            let total: usize = held.iter().sum();
            prop_assert_eq!(total, limit.min(wanted.iter().map(|(held, _)| held).sum()));
            for ((share, held), (wanted, is_idle)) in shares.iter().zip(&held).zip(&wanted) {
                prop_assert!(held <= wanted);
                prop_assert!(*is_idle || *held >= *wanted.min(share));
            }
            // No busy peer has freed memory while an idle peer still holds some.
            if held.iter().zip(&wanted).any(|(held, (_, is_idle))| *is_idle && *held > 0) {
                let mut busy = held.iter().zip(&wanted).filter(|(_, (_, is_idle))| !is_idle);
                prop_assert!(busy.all(|(held, (wanted, _))| held == wanted));
            }
        }
    }
}
