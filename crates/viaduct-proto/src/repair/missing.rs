//! Numbers that were announced and are not here, by name.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;

use super::identity::{Identity, NameHasher};
use super::ledger::{Ledger, State};
use crate::fec::Seq;

/// Bytes that one number takes, a name of its own included: what the two containers allocate.
const EACH: usize = 128;

/// What arrives is looked up here by its name. Byte-identical packets share one, and wait in the
/// order in which they were announced.
pub(super) struct Missing {
    by_name: HashMap<Identity, VecDeque<Seq>, BuildHasherDefault<NameHasher>>,
    /// Numbers in all queues.
    count: usize,
    most: usize,
}

impl Missing {
    /// For at most `most` numbers.
    pub(super) fn new(most: usize) -> Self {
        Missing { by_name: HashMap::default(), count: 0, most }
    }

    pub(super) fn memory(&self) -> usize {
        self.count * EACH
    }

    pub(super) fn clear(&mut self) {
        self.by_name.clear();
        self.count = 0;
    }

    /// Notes that packet `seq` of this name is not here. Of more than can be missing by the
    /// ledger, which only a peer that makes its numbers up announces, the newest are not noted.
    pub(super) fn insert(&mut self, identity: Identity, seq: Seq, ledger: &Ledger) {
        if self.count >= self.most {
            self.forget_settled(ledger);
        }
        if self.count < self.most {
            self.by_name.entry(identity).or_default().push_back(seq);
            self.count += 1;
        }
    }

    /// Takes the first number that waits for a packet of this name.
    pub(super) fn take(&mut self, identity: Identity) -> Option<Seq> {
        if self.by_name.is_empty() {
            return None;
        }
        let seqs = self.by_name.get_mut(&identity)?;
        let seq = seqs.pop_front();
        self.count -= usize::from(seq.is_some());
        if seqs.is_empty() {
            self.by_name.remove(&identity);
        }
        seq
    }

    /// Forgets the numbers that the ledger no longer holds for missing.
    pub(super) fn forget_settled(&mut self, ledger: &Ledger) {
        self.by_name.retain(|&identity, seqs| {
            seqs.retain(|&seq| {
                let row = ledger.row(seq);
                row.is_some_and(|row| row.state == State::Missing && row.identity == identity)
            });
            !seqs.is_empty()
        });
        self.count = self.by_name.values().map(VecDeque::len).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_makes_numbers_up_fills_no_memory() {
        let mut ledger = Ledger::new(64);
        let mut missing = Missing::new(64);
        for seq in (0..1_000_000).step_by(1_000) {
            assert!(ledger.reach(seq, seq));
            let row = ledger.row_mut(seq).unwrap();
            (row.identity, row.state) = (Identity(seq), State::Missing);
            missing.insert(Identity(seq), seq, &ledger);
            missing.insert(Identity(7), seq, &ledger);
            assert!(missing.memory() <= 64 * EACH);
        }
        assert_eq!(missing.take(Identity(999_000)), Some(999_000), "the newest is still noted");
        missing.forget_settled(&ledger);
        assert_eq!(missing.memory(), 0, "and no other is");
    }
}
