//! The packets of the last moments, as they arrived: what recoveries are made from, and the local
//! cache of section 4.5.
//!
//! Packets lie back to back in one ring of bytes; the oldest make room for the newest, so that
//! memory is bounded by bytes whatever their sizes. Byte-identical packets (duplicate ACKs,
//! repeated datagrams) share a name; for each name the store counts how many copies arrived and
//! how many of them an announcement has claimed.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use super::identity::Identity;
use crate::time::Instant;

/// A packet in the store.
#[derive(Clone, Copy, Debug)]
struct Slot {
    identity: Identity,
    start: usize,
    len: usize,
    at: Instant,
}

/// All copies of one packet.
#[derive(Clone, Copy, Debug)]
struct Copies {
    /// Number of the newest slot that holds it.
    newest: u64,
    live: u32,
    unclaimed: u32,
}

/// A bounded ring of packets, found by name.
pub(super) struct Store {
    arena: Box<[u8]>,
    write: usize,
    slots: VecDeque<Slot>,
    /// Number of `slots[0]`; numbers never repeat.
    oldest: u64,
    most: usize,
    index: HashMap<Identity, Copies, BuildHasherDefault<NameHasher>>,
}

/// Shortest packet that the slot bound reckons with; smaller ones shorten the store's memory.
const SMALLEST: usize = 256;

impl Store {
    /// With `bytes` of room for packets.
    pub(super) fn new(bytes: usize) -> Self {
        Store {
            arena: vec![0; bytes].into_boxed_slice(),
            write: 0,
            slots: VecDeque::new(),
            oldest: 0,
            most: bytes / SMALLEST,
            index: HashMap::default(),
        }
    }

    /// Adds a packet that arrived (`claimed` if its announcement came first). Longer ones than the
    /// whole store are left out.
    pub(super) fn insert(
        &mut self,
        now: Instant,
        identity: Identity,
        packet: &[u8],
        claimed: bool,
    ) {
        if packet.len() > self.arena.len() || self.most == 0 {
            return;
        }
        let start = self.make_room(packet.len());
        self.arena[start..start + packet.len()].copy_from_slice(packet);
        self.write = start + packet.len();
        let number = self.oldest + self.slots.len() as u64;
        self.slots.push_back(Slot { identity, start, len: packet.len(), at: now });
        let copies =
            self.index.entry(identity).or_insert(Copies { newest: number, live: 0, unclaimed: 0 });
        copies.newest = number;
        copies.live += 1;
        copies.unclaimed += u32::from(!claimed);
    }

    /// Claims one copy of `identity` for an announcement; false if none is left.
    pub(super) fn claim(&mut self, identity: Identity) -> bool {
        let copies = self.index.get_mut(&identity).filter(|c| c.unclaimed > 0);
        copies.map(|c| c.unclaimed -= 1).is_some()
    }

    /// The packet of that name, claimed or not.
    pub(super) fn get(&self, identity: Identity) -> Option<&[u8]> {
        self.slot(identity).map(|slot| &self.arena[slot.start..slot.start + slot.len])
    }

    /// When the packet of that name last arrived.
    pub(super) fn arrival(&self, identity: Identity) -> Option<Instant> {
        self.slot(identity).map(|slot| slot.at)
    }

    /// All packets, newest first.
    pub(super) fn newest_first(&self) -> impl Iterator<Item = (Identity, &[u8])> {
        let bytes = |slot: &Slot| &self.arena[slot.start..slot.start + slot.len];
        self.slots.iter().rev().map(move |slot| (slot.identity, bytes(slot)))
    }

    /// Bytes held.
    pub(super) fn memory(&self) -> usize {
        let per_name = size_of::<(Identity, Copies)>() + 1;
        self.arena.len()
            + self.slots.capacity() * size_of::<Slot>()
            + self.index.capacity() * per_name
    }

    fn slot(&self, identity: Identity) -> Option<&Slot> {
        let newest = self.index.get(&identity)?.newest;
        self.slots.get(usize::try_from(newest - self.oldest).ok()?)
    }

    /// Evicts until `len` bytes from the returned offset are free.
    fn make_room(&mut self, len: usize) -> usize {
        if self.slots.len() >= self.most {
            self.evict();
        }
        let wraps = self.write + len > self.arena.len();
        let start = if wraps { 0 } else { self.write };
        if wraps {
            // What lies between here and the end goes first: it is the oldest.
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
        let Some(slot) = self.slots.pop_front() else { return };
        self.oldest += 1;
        if let Some(copies) = self.index.get_mut(&slot.identity) {
            copies.live -= 1;
            copies.unclaimed = copies.unclaimed.min(copies.live);
            if copies.live == 0 {
                self.index.remove(&slot.identity);
            }
        }
    }
}

/// Names are uniform already: hashing them again would be waste.
#[derive(Default)]
pub(super) struct NameHasher(u64);

impl Hasher for NameHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }
    fn write_u64(&mut self, name: u64) {
        self.0 = name;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Instant = Instant::ZERO;

    #[test]
    fn copies_are_claimed_one_by_one() {
        let mut store = Store::new(10_000);
        let twin = Identity(5);
        store.insert(NOW, twin, b"ack", false);
        store.insert(NOW, twin, b"ack", false);
        assert!(store.claim(twin) && store.claim(twin));
        assert!(!store.claim(twin), "only two arrived");
        assert_eq!(store.get(twin), Some(&b"ack"[..]));
    }

    #[test]
    fn a_packet_beyond_the_store_is_left_out() {
        let mut store = Store::new(1_000);
        store.insert(NOW, Identity(1), &[0; 1_001], false);
        assert_eq!(store.get(Identity(1)), None);
    }

    proptest! {
        /// The twin is a list of the newest packets; the store must hold a suffix of it.
        #[test]
        fn the_newest_packets_are_there_whole(
            sizes in prop::collection::vec((1..300usize, 0..40u64), 1..300),
        ) {
            let mut store = Store::new(2_000);
            let mut all = Vec::new();
            for (i, (len, name)) in sizes.into_iter().enumerate() {
                // A name stands for its bytes.
                let packet = vec![name as u8; (len + name as usize * 7) % 300 + 1];
                let name = Identity(name << 32 | packet.len() as u64);
                store.insert(Instant::from_nanos(i as u64), name, &packet, false);
                all.push((name, packet));
                let kept: Vec<_> = store.newest_first().collect();
                prop_assert!(!kept.is_empty());
                for (kept, made) in kept.iter().zip(all.iter().rev()) {
                    prop_assert_eq!(kept.0, made.0);
                    prop_assert_eq!(kept.1, &made.1[..]);
                    prop_assert_eq!(store.get(made.0), Some(&made.1[..]));
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
