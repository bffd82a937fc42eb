//! Store of the latest packets as they arrived: the basis of recoveries, and the local cache
//! (paper, 4.5).
//!
//! The store takes memory as packets arrive. It frees the memory of the oldest packets when the
//! plane needs memory for another peer ([`super::budget`]). Each packet is stored after its prefix,
//! in the form in which it is encoded. Byte-identical packets (duplicate ACKs, repeated datagrams)
//! share a name, which finds the newest of them.
//!
//! Names are found in chains from newer to older packets, one chain for each bucket. A chain ends
//! where its next packet has been evicted, so an eviction need not unlink packets.
//!
//! ```text
//!   buckets   [17] [ ] [12] [16]
//!               │        │    └──────────────┐
//!   slots       │   11◀─12   13   14◀─15◀────16   17        13 … 17 are stored
//!               └──────────────────────────────────┘        12 was evicted: end of chain
//! ```

use std::collections::VecDeque;

use super::identity::Identity;
use super::section::PREFIX;
use crate::packet_log::PacketLog;
use crate::time::Instant;

#[derive(Clone, Copy, Debug)]
struct Slot {
    identity: Identity,
    at: Instant,
    /// Number of the next older packet in the same bucket, which may have been evicted.
    older: u64,
}

/// Packets, found by name.
#[derive(Debug, Default)]
pub(super) struct Store {
    packets: PacketLog,
    /// Slot of each packet in `packets`.
    slots: VecDeque<Slot>,
    /// Number of packets evicted so far. The packet `slots[n]` has the number `evicted + n + 1`;
    /// numbers never repeat.
    evicted: u64,
    /// Number of the newest packet of each bucket; 0 if there is none.
    buckets: Box<[u64]>,
}

/// Minimum number of buckets.
const MIN_BUCKETS: usize = 16;

impl Store {
    /// Adds a packet and its prefix.
    pub(super) fn insert(
        &mut self,
        now: Instant,
        identity: Identity,
        prefix: [u8; PREFIX],
        packet: &[u8],
    ) {
        if self.slots.len() >= self.buckets.len() {
            self.spread((2 * self.buckets.len()).max(MIN_BUCKETS));
        }
        self.packets.push(&[&prefix, packet]);
        self.slots.push_back(Slot { identity, at: now, older: 0 });
        self.link(self.slots.len() - 1);
    }

    /// Distributes the packets over `buckets` buckets.
    fn spread(&mut self, buckets: usize) {
        self.buckets = vec![0; buckets].into_boxed_slice();
        (0..self.slots.len()).for_each(|index| self.link(index));
    }

    /// Puts the packet `slots[index]` in front of its bucket's chain.
    fn link(&mut self, index: usize) {
        let identity = self.slots[index].identity;
        let bucket = self.bucket(identity);
        let front = std::mem::replace(&mut self.buckets[bucket], self.evicted + index as u64 + 1);
        let copy = self.index(front).map(|front| self.slots[front]);
        // Many copies of one packet must not lengthen a chain.
        let copy = copy.filter(|front| front.identity == identity);
        self.slots[index].older = copy.map_or(front, |copy| copy.older);
    }

    /// Changes the prefix of the packet with this name.
    pub(super) fn amend(&mut self, identity: Identity, prefix: [u8; PREFIX]) {
        if let Some(index) = self.find(identity) {
            self.packets.get_mut(index)[..PREFIX].copy_from_slice(&prefix);
        }
    }

    /// Returns the packet with this name, with its prefix.
    pub(super) fn get(&self, identity: Identity) -> Option<&[u8]> {
        self.find(identity).map(|index| self.packets.get(index))
    }

    /// Latest arrival of the packet with this name.
    pub(super) fn arrival(&self, identity: Identity) -> Option<Instant> {
        self.find(identity).map(|index| self.slots[index].at)
    }

    /// All packets without their prefixes, newest first.
    pub(super) fn newest_first(&self) -> impl Iterator<Item = (Identity, &[u8])> {
        let slots = self.slots.iter().enumerate().rev();
        slots.map(|(index, slot)| (slot.identity, &self.packets.get(index)[PREFIX..]))
    }

    /// Bytes of memory held.
    pub(super) fn held(&self) -> usize {
        self.packets.held()
            + self.slots.capacity() * size_of::<Slot>()
            + size_of_val(&self.buckets[..])
    }

    /// Evicts some of the oldest packets, to free their memory.
    pub(super) fn shed(&mut self) {
        let gone = self.packets.shed();
        self.slots.drain(..gone);
        self.evicted += gone as u64;
        if self.slots.capacity() > 4 * self.slots.len() {
            self.slots.shrink_to(2 * self.slots.len());
        }
        if self.slots.is_empty() {
            self.buckets = Box::default();
        } else if self.buckets.len() > 4 * self.slots.len() {
            self.spread((2 * self.slots.len()).next_power_of_two());
        }
    }

    /// Bucket of a name. Names are uniformly distributed and need no further hashing.
    fn bucket(&self, identity: Identity) -> usize {
        (identity.0 & (self.buckets.len() as u64).wrapping_sub(1)) as usize
    }

    /// Index in `slots` of packet `number`, unless it was evicted.
    fn index(&self, number: u64) -> Option<usize> {
        let index = usize::try_from(number.checked_sub(self.evicted + 1)?).ok()?;
        (index < self.slots.len()).then_some(index)
    }

    /// Index in `slots` of the newest packet with this name.
    fn find(&self, identity: Identity) -> Option<usize> {
        let mut number = *self.buckets.get(self.bucket(identity))?;
        loop {
            let index = self.index(number)?;
            let slot = &self.slots[index];
            if slot.identity == identity {
                return Some(index);
            }
            number = slot.older;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Instant = Instant::ZERO;

    #[test]
    fn the_newest_copy_is_found_and_amended() {
        let mut store = Store::default();
        let twin = Identity(5);
        assert_eq!(store.get(twin), None);
        store.insert(NOW, twin, [1; PREFIX], b"ack");
        store.insert(NOW, twin, [2; PREFIX], b"ack");
        assert_eq!(store.get(twin), Some(&[&[2; PREFIX][..], b"ack"].concat()[..]));
        store.amend(twin, [3; PREFIX]);
        assert_eq!(store.get(twin).unwrap()[..PREFIX], [3; PREFIX]);
    }

    #[test]
    fn all_memory_is_freed() {
        let mut store = Store::default();
        for n in 0..10_000 {
            store.insert(NOW, Identity(n << 7), [0; PREFIX], &[0; 1_000]);
        }
        assert!((10_000_000..11_500_000).contains(&store.held()), "{}", store.held());
        while store.held() > 0 {
            let before = store.held();
            store.shed();
            assert!(store.held() < before);
        }
    }

    proptest! {
        /// Compares the store with a list of all packets, of which the store must hold a suffix.
        #[test]
        fn the_newest_packets_are_stored_unaltered(
            sizes in prop::collection::vec((1..300usize, 0..40u64, 0..12u8), 1..300),
        ) {
            let mut store = Store::default();
            let mut all = Vec::new();
            for (i, (len, name, shed)) in sizes.into_iter().enumerate() {
                // Packets with equal names have equal bytes.
                let packet = vec![name as u8; (len + name as usize * 7) % 300 + 1];
                let name = Identity(name << 32 | packet.len() as u64);
                store.insert(Instant::from_nanos(i as u64), name, [9; PREFIX], &packet);
                all.push((name, packet));
                if shed == 0 {
                    store.shed();
                }
                let kept: Vec<_> = store.newest_first().collect();
                for (kept, made) in kept.iter().zip(all.iter().rev()) {
                    prop_assert_eq!(kept.0, made.0);
                    prop_assert_eq!(kept.1, &made.1[..]);
                    prop_assert_eq!(&store.get(made.0).unwrap()[PREFIX..], &made.1[..]);
                }
                let oldest = all.len() - kept.len();
                for (name, _) in &all[..oldest] {
                    let alive = all[oldest..].iter().any(|(other, _)| other == name);
                    prop_assert_eq!(store.get(*name).is_some(), alive);
                }
            }
        }
    }
}
