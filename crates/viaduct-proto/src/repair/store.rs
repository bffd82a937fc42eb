//! Store of the latest packets as they arrived: the basis of recoveries, and the local cache of
//! section 4.5.
//!
//! Packets lie back to back in one ring of bytes; the oldest make room for the newest, so memory is
//! bounded in bytes for any packet sizes. Each packet is stored behind its prefix, in the form in
//! which it is encoded. Byte-identical packets (duplicate ACKs, repeated datagrams) share a name,
//! which finds the newest of them.
//!
//! Names are found by chains from newer to older packets, one for each bucket. A chain ends where
//! its next packet has been evicted, so an eviction need not unlink packets.
//!
//! ```text
//!   buckets   [17] [ ] [12] [16]
//!               │        │    └──────────────┐
//!   slots       │   11◀─12   13   14◀─15◀────16   17        13 … 17 are here
//!               └──────────────────────────────────┘        12, and so its chain, is gone
//! ```

use std::collections::VecDeque;

use super::identity::Identity;
use super::section::PREFIX;
use crate::time::Instant;

#[derive(Clone, Copy, Debug)]
struct Slot {
    identity: Identity,
    start: usize,
    len: usize,
    at: Instant,
    /// Number of the next older packet in the same bucket, which may have been evicted.
    older: u64,
}

/// Bounded ring of packets, found by name.
pub(super) struct Store {
    arena: Box<[u8]>,
    write: usize,
    slots: VecDeque<Slot>,
    /// Number of `slots[0]`; numbers begin at 1 and never repeat.
    oldest: u64,
    most: usize,
    /// Number of the newest packet of each bucket; 0 before the first.
    buckets: Box<[u64]>,
}

/// Shortest packet that the limit of slots assumes; shorter ones reduce the time covered.
const SMALLEST: usize = 256;

impl Store {
    /// Creates a store with `bytes` of room for packets.
    pub(super) fn new(bytes: usize) -> Self {
        let most = bytes / SMALLEST;
        Store {
            arena: vec![0; bytes].into_boxed_slice(),
            write: 0,
            slots: VecDeque::new(),
            oldest: 1,
            most,
            buckets: vec![0; most.next_power_of_two()].into_boxed_slice(),
        }
    }

    /// Adds a packet and its prefix. A packet longer than the whole store is left out.
    pub(super) fn insert(
        &mut self,
        now: Instant,
        identity: Identity,
        prefix: [u8; PREFIX],
        packet: &[u8],
    ) {
        let len = PREFIX + packet.len();
        if len > self.arena.len() || self.most == 0 {
            return;
        }
        let start = self.make_room(len);
        let (head, body) = self.arena[start..start + len].split_at_mut(PREFIX);
        head.copy_from_slice(&prefix);
        body.copy_from_slice(packet);
        self.write = start + len;
        let bucket = self.bucket(identity);
        let mut older = self.buckets[bucket];
        if let Some(index) = self.find(identity)
            && older == self.oldest + index as u64
        {
            // Many copies of one packet must not lengthen a chain.
            older = self.slots[index].older;
        }
        self.buckets[bucket] = self.oldest + self.slots.len() as u64;
        self.slots.push_back(Slot { identity, start, len, at: now, older });
    }

    /// Changes the prefix of the packet with this name.
    pub(super) fn amend(&mut self, identity: Identity, prefix: [u8; PREFIX]) {
        if let Some(index) = self.find(identity) {
            let start = self.slots[index].start;
            self.arena[start..start + PREFIX].copy_from_slice(&prefix);
        }
    }

    /// Returns the packet with this name, with its prefix.
    pub(super) fn get(&self, identity: Identity) -> Option<&[u8]> {
        self.find(identity).map(|index| self.bytes(&self.slots[index]))
    }

    /// Latest arrival of the packet with this name.
    pub(super) fn arrival(&self, identity: Identity) -> Option<Instant> {
        self.find(identity).map(|index| self.slots[index].at)
    }

    /// All packets without their prefixes, newest first.
    pub(super) fn newest_first(&self) -> impl Iterator<Item = (Identity, &[u8])> {
        self.slots.iter().rev().map(|slot| (slot.identity, &self.bytes(slot)[PREFIX..]))
    }

    pub(super) fn memory(&self) -> usize {
        self.arena.len()
            + self.slots.capacity() * size_of::<Slot>()
            + size_of_val(&self.buckets[..])
    }

    fn bytes(&self, slot: &Slot) -> &[u8] {
        &self.arena[slot.start..slot.start + slot.len]
    }

    /// Bucket of a name. Names are uniformly distributed and need no further hashing.
    fn bucket(&self, identity: Identity) -> usize {
        (identity.0 & (self.buckets.len() as u64 - 1)) as usize
    }

    /// Index in `slots` of the newest packet with this name.
    fn find(&self, identity: Identity) -> Option<usize> {
        let mut number = self.buckets[self.bucket(identity)];
        loop {
            let index = usize::try_from(number.checked_sub(self.oldest)?).ok()?;
            let slot = self.slots.get(index)?;
            if slot.identity == identity {
                return Some(index);
            }
            number = slot.older;
        }
    }

    /// Evicts packets until `len` bytes are free; returns the offset of these bytes.
    fn make_room(&mut self, len: usize) -> usize {
        if self.slots.len() >= self.most {
            self.evict();
        }
        let wraps = self.write + len > self.arena.len();
        let start = if wraps { 0 } else { self.write };
        if wraps {
            // Packets between here and the end are evicted first: they are the oldest.
            while self.slots.front().is_some_and(|slot| slot.start >= self.write) {
                self.evict();
            }
        }
        while self.slots.front().is_some_and(|s| s.start < start + len && start < s.start + s.len) {
            self.evict();
        }
        start
    }

    fn evict(&mut self) {
        self.slots.pop_front();
        self.oldest += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Instant = Instant::ZERO;

    #[test]
    fn the_newest_copy_is_found_and_amended() {
        let mut store = Store::new(10_000);
        let twin = Identity(5);
        store.insert(NOW, twin, [1; PREFIX], b"ack");
        store.insert(NOW, twin, [2; PREFIX], b"ack");
        assert_eq!(store.get(twin), Some(&[&[2; PREFIX][..], b"ack"].concat()[..]));
        store.amend(twin, [3; PREFIX]);
        assert_eq!(store.get(twin).unwrap()[..PREFIX], [3; PREFIX]);
    }

    #[test]
    fn a_packet_beyond_the_store_is_left_out() {
        let mut store = Store::new(1_000);
        store.insert(NOW, Identity(1), [0; PREFIX], &[0; 1_001]);
        assert_eq!(store.get(Identity(1)), None);
    }

    proptest! {
        /// Compares the store with a list of all packets, of which it must hold a suffix.
        #[test]
        fn the_newest_packets_are_there_whole(
            sizes in prop::collection::vec((1..300usize, 0..40u64), 1..300),
        ) {
            let mut store = Store::new(2_000);
            let mut all = Vec::new();
            for (i, (len, name)) in sizes.into_iter().enumerate() {
                // Packets with equal names have equal bytes.
                let packet = vec![name as u8; (len + name as usize * 7) % 300 + 1];
                let name = Identity(name << 32 | packet.len() as u64);
                store.insert(Instant::from_nanos(i as u64), name, [9; PREFIX], &packet);
                all.push((name, packet));
                let kept: Vec<_> = store.newest_first().collect();
                prop_assert!(!kept.is_empty());
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
