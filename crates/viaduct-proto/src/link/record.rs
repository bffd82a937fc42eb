//! Counters of a link, and its record of dropped packets.

use super::Delivery;

/// Limit of drops in a record (16 MB); later ones are only counted.
pub const RECORD_LIMIT: usize = 1 << 20;

/// Counters of one direction, from its start. At any time
/// `sent = delivered + lost + queue_dropped + held`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Packets that were pushed.
    pub sent: u64,
    /// Packets delivered, copies not counted.
    pub delivered: u64,
    /// Packets lost by the loss process.
    pub lost: u64,
    /// Packets dropped because the queue was full.
    pub queue_dropped: u64,
    /// Packets delivered twice.
    pub duplicated: u64,
    /// Packets delivered with a flipped bit.
    pub corrupted: u64,
    /// Packets that were held back so that others could overtake them.
    pub reordered: u64,
    /// Bytes of the packets delivered, copies not counted.
    pub bytes: u64,
}

impl LinkStats {
    pub(super) fn note_delivery<T>(&mut self, packet: &Delivery<T>) {
        self.delivered += 1;
        self.duplicated += u64::from(packet.copies > 1);
        self.corrupted += u64::from(packet.flipped.is_some());
        self.bytes += packet.len as u64;
    }
}

/// Reason of a drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Lost by the loss process.
    Loss,
    /// Dropped by a full queue.
    Queue,
}

/// Dropped packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// Number in the order of entry, from 0.
    pub ordinal: u64,
    /// Reason of the drop.
    pub reason: Reason,
}

/// Drops in the order of entry, at most [`RECORD_LIMIT`] of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DropRecord {
    /// The drops.
    pub drops: Vec<Dropped>,
    /// Number of drops after the record was full.
    pub unrecorded: u64,
}

impl DropRecord {
    /// Lengths of the runs of consecutive packets that the loss process dropped, in order.
    pub fn burst_lengths(&self) -> Vec<u32> {
        let mut bursts: Vec<u32> = Vec::new();
        let mut last = None;
        for drop in self.drops.iter().filter(|d| d.reason == Reason::Loss) {
            match bursts.last_mut() {
                Some(burst) if last.is_some_and(|l: u64| l + 1 == drop.ordinal) => *burst += 1,
                _ => bursts.push(1),
            }
            last = Some(drop.ordinal);
        }
        bursts
    }

    pub(super) fn note(&mut self, ordinal: u64, reason: Reason) {
        if self.drops.len() < RECORD_LIMIT {
            self.drops.push(Dropped { ordinal, reason });
        } else {
            self.unrecorded += 1;
        }
    }

    pub(super) fn take(&mut self) -> DropRecord {
        std::mem::take(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_are_runs_of_neighbours() {
        let mut record = DropRecord::default();
        for ordinal in [3, 4, 5, 9, 11, 12] {
            record.note(ordinal, Reason::Loss);
        }
        record.note(13, Reason::Queue);
        assert_eq!(record.burst_lengths(), [3, 1, 2]);
    }

    #[test]
    fn a_full_record_counts_the_rest() {
        let mut record = DropRecord::default();
        (0..RECORD_LIMIT as u64 + 5).for_each(|i| record.note(i, Reason::Loss));
        let taken = record.take();
        assert_eq!((taken.drops.len(), taken.unrecorded), (RECORD_LIMIT, 5));
        assert_eq!(record, DropRecord::default());
    }
}
