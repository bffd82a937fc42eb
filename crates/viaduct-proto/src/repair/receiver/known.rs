//! Packets available to the decoder: a row for each number, and the bytes of the packets that have
//! arrived or were recovered.

use crate::fec::{Seq, Sources};
use crate::repair::align::Tag;
use crate::repair::ledger::{Ledger, Row, State};
use crate::repair::store::Store;
use crate::time::{Duration, Instant};

/// Maximum count of packet numbers that the ledger covers: those of one second at 65,536 packets a
/// second.
const MAX_NUMBERS: usize = 1 << 16;
/// Largest distance, in numbers, of the arrived neighbour from which the due time of a packet
/// is computed.
pub(super) const NEIGHBOURS: u64 = 512;

pub(super) struct Known {
    pub(super) store: Store,
    pub(super) ledger: Ledger,
}

impl Known {
    /// Creates an empty store and ledger.
    pub(super) fn new() -> Self {
        Known { store: Store::default(), ledger: Ledger::new(MAX_NUMBERS) }
    }

    /// Returns whether packet `seq` has arrived, was recovered, or is in no repair.
    pub(super) fn has(&self, seq: Seq) -> bool {
        self.ledger.row(seq).is_some_and(|row| row.is_here() || row.is_bare)
    }

    /// Returns whether packet `seq` has arrived or was recovered.
    pub(super) fn is_here(&self, seq: Seq) -> bool {
        self.ledger.row(seq).is_some_and(Row::is_here)
    }

    /// Returns whether packet `seq` was dropped by a full queue and has not been recovered.
    pub(super) fn is_given_up(&self, seq: Seq) -> bool {
        self.ledger.row(seq).is_some_and(|row| row.congested && !row.is_here())
    }

    /// Tag of a packet, and whether the packet is in no repair; `Some(None)` if it has no name yet,
    /// `None` if its number is outside the ledger.
    pub(super) fn name(&self, seq: Seq) -> Option<Option<(Tag, bool)>> {
        let row = self.ledger.row(seq)?;
        Some((row.state != State::Unnamed).then_some((row.tag, row.is_bare)))
    }

    /// Sets the state of packet `seq`.
    pub(super) fn settle(&mut self, seq: Seq, state: State) {
        if let Some(row) = self.ledger.row_mut(seq) {
            row.state = state;
        }
    }

    /// Time at which packet `seq` should have arrived: the arrival of its nearest earlier
    /// neighbour plus the difference of their send times.
    pub(super) fn due(&self, seq: Seq) -> Option<Instant> {
        let sent = self.ledger.row(seq)?.sent;
        let before = (1..NEIGHBOURS).map_while(|back| seq.checked_sub(back));
        let arrived =
            before.filter_map(|seq| self.ledger.row(seq).filter(|row| row.state == State::Arrived));
        let arrival = |row: &Row| {
            let apart = sent.zip(row.sent).map_or(0, |(sent, before)| sent.wrapping_sub(before));
            // Send times of reordered neighbours may have a negative difference.
            let apart = Duration::from_micros(apart.cast_signed().max(0).cast_unsigned().into());
            Some(self.store.arrival(row.identity)? + apart)
        };
        arrived.map(arrival).find_map(|at| at)
    }

    /// Bytes of memory held.
    pub(super) fn held(&self) -> usize {
        self.store.held() + self.ledger.held()
    }
}

impl Sources for Known {
    fn get(&self, seq: Seq) -> Option<&[u8]> {
        let row = self.ledger.row(seq)?;
        if row.is_bare {
            return Some(&[]);
        }
        if row.is_here() { self.store.get(row.identity) } else { None }
    }
}
