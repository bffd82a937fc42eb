//! Log of packets. Their bytes are stored contiguously in segments, and the oldest packets are
//! dropped first.
//!
//! The log allocates memory as packets are added, and frees it segment by segment. The size of a
//! new segment is an eighth of the log's memory, within bounds. So a log with few packets takes
//! little memory, and one with many packets wastes little at the ends of segments.
//!
//! ```text
//!   segments   ░░░▓▓▓▓▓▓ │ ▓▓▓▓▓▓▓▓▓ │ ▓▓▓▓          ░ dropped packets
//!   entries       0 1 2      3  4       5 6
//! ```

use std::collections::VecDeque;

/// Minimum size of a segment, in bytes.
const MIN_SEGMENT: usize = 4 << 10;
/// Maximum size of a segment, in bytes. A longer packet has a segment of its own.
const MAX_SEGMENT: usize = 64 << 10;

/// Log of packets, indexed from the oldest one.
#[derive(Debug, Default)]
pub(crate) struct PacketLog {
    segments: VecDeque<Vec<u8>>,
    /// Number of `segments[0]`; numbers may wrap.
    first: u32,
    entries: VecDeque<Entry>,
    /// Emptied segment, kept for the next packets.
    spare: Option<Vec<u8>>,
    /// Capacity of all segments and of the spare one, in bytes.
    held: usize,
}

/// Place of a packet. An empty packet may be in a segment that does not exist yet.
#[derive(Clone, Copy, Debug)]
struct Entry {
    segment: u32,
    start: u32,
    len: u32,
}

impl PacketLog {
    /// Adds a packet that consists of `parts`.
    pub(crate) fn push(&mut self, parts: &[&[u8]]) {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let has_room = |of: &Vec<u8>| of.capacity() - of.len() >= len;
        if len > 0 && !self.segments.back().is_some_and(has_room) {
            self.open(len);
        }
        let segment = self.first.wrapping_add(self.segments.len().saturating_sub(1) as u32);
        let start = match self.segments.back_mut() {
            Some(bytes) => {
                let start = bytes.len();
                parts.iter().for_each(|part| bytes.extend_from_slice(part));
                start
            }
            None => 0,
        };
        self.entries.push_back(Entry { segment, start: start as u32, len: len as u32 });
    }

    /// Opens a segment with room for `len` bytes.
    fn open(&mut self, len: usize) {
        let size = (self.held / 8).clamp(MIN_SEGMENT, MAX_SEGMENT).max(len);
        let spare = self.spare.take();
        self.held -= spare.as_ref().map_or(0, Vec::capacity);
        let segment = spare.filter(|spare| spare.capacity() >= size);
        let segment = segment.unwrap_or_else(|| Vec::with_capacity(size));
        self.held += segment.capacity();
        self.segments.push_back(segment);
    }

    /// Number of packets.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Packet `index`, counted from the oldest.
    ///
    /// # Panics
    /// If there is no such packet.
    pub(crate) fn get(&self, index: usize) -> &[u8] {
        self.bytes(self.entries[index])
    }

    /// Packet `index`, counted from the oldest, to be changed.
    ///
    /// # Panics
    /// If there is no such packet.
    pub(crate) fn get_mut(&mut self, index: usize) -> &mut [u8] {
        let Entry { segment, start, len } = self.entries[index];
        match self.segments.get_mut(segment.wrapping_sub(self.first) as usize) {
            Some(bytes) => &mut bytes[start as usize..(start + len) as usize],
            None => &mut [],
        }
    }

    /// Packets from index `from` to the newest, oldest first.
    pub(crate) fn range(&self, from: usize) -> impl Iterator<Item = &[u8]> + Clone {
        self.entries.range(from..).map(|entry| self.bytes(*entry))
    }

    /// Drops the `count` oldest packets.
    pub(crate) fn drop_front(&mut self, count: usize) {
        self.entries.drain(..count);
        let oldest = self.entries.front().map(|entry| entry.segment);
        while self.segments.len() > 1 && oldest.is_none_or(|oldest| oldest != self.first) {
            self.close();
        }
        if self.entries.is_empty() {
            self.segments.iter_mut().for_each(Vec::clear);
        }
    }

    /// Frees memory: the spare segment if there is one, otherwise the oldest segment with its
    /// packets. Returns the number of packets that were dropped.
    pub(crate) fn shed(&mut self) -> usize {
        if self.spare.is_none() && !self.segments.is_empty() {
            self.close();
        }
        self.held -= self.spare.take().map_or(0, |spare| spare.capacity());
        let first = self.first;
        let segments = self.segments.len();
        let is_gone = |entry: &Entry| entry.segment.wrapping_sub(first) as usize >= segments;
        let gone = self.entries.partition_point(is_gone);
        self.entries.drain(..gone);
        if self.entries.capacity() > 4 * self.entries.len() {
            self.entries.shrink_to(2 * self.entries.len());
        }
        gone
    }

    /// Removes the oldest segment. The larger of this segment and the spare one is kept as
    /// the spare.
    fn close(&mut self) {
        let Some(mut segment) = self.segments.pop_front() else { return };
        self.first = self.first.wrapping_add(1);
        segment.clear();
        let smaller = match &self.spare {
            Some(spare) if spare.capacity() >= segment.capacity() => Some(segment),
            _ => self.spare.replace(segment),
        };
        self.held -= smaller.map_or(0, |smaller| smaller.capacity());
    }

    /// Bytes of memory held.
    pub(crate) fn held(&self) -> usize {
        self.held + self.entries.capacity() * size_of::<Entry>()
    }

    fn bytes(&self, Entry { segment, start, len }: Entry) -> &[u8] {
        match self.segments.get(segment.wrapping_sub(self.first) as usize) {
            Some(bytes) => &bytes[start as usize..(start + len) as usize],
            None => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares the log with a list of all packets, of which it must hold a suffix.
        #[test]
        fn the_newest_packets_are_kept_unchanged(
            steps in prop::collection::vec((0..4_u8, 0..9_000_usize, 0..9_usize), 1..200),
        ) {
            let (mut log, mut twin) = (PacketLog::default(), VecDeque::new());
            for (n, (step, len, count)) in steps.into_iter().enumerate() {
                match step {
                    0 => {
                        let count = count.min(log.len());
                        log.drop_front(count);
                        twin.drain(..count);
                    }
                    1 if count == 0 => {
                        let before = log.held();
                        let gone = log.shed();
                        twin.drain(..gone);
                        prop_assert!(log.held() < before || before == 0 || log.segments.is_empty());
                    }
                    _ => {
                        let len = if count == 8 { len } else { len % 300 };
                        let packet = vec![n as u8; len];
                        let (one, other) = packet.split_at(len / 3);
                        log.push(&[one, other]);
                        twin.push_back(packet);
                    }
                }
                prop_assert_eq!(log.len(), twin.len());
                prop_assert!(log.range(0).eq(twin.iter().map(Vec::as_slice)));
                for (index, packet) in twin.iter().enumerate() {
                    prop_assert_eq!(log.get(index), &packet[..]);
                }
                let all = log.segments.iter().chain(&log.spare);
                let segments: usize = all.map(Vec::capacity).sum();
                prop_assert_eq!(log.held, segments);
            }
        }
    }

    #[test]
    fn memory_follows_the_packets_and_is_freed() {
        let mut log = PacketLog::default();
        log.push(&[&[0; 100]]);
        assert!(log.held() < 6 << 10, "{}", log.held());
        (0..10_000).for_each(|_| log.push(&[&[0; 1_000]]));
        assert!(log.held() < 10_600_000, "{}", log.held());
        log.drop_front(9_900);
        let left = log.held() - log.entries.capacity() * size_of::<Entry>();
        assert!(left < 300_000, "{left}");
        while log.held > 0 {
            log.shed();
        }
        assert_eq!(log.len(), 0);
    }
}
