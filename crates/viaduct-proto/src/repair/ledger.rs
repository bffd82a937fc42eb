//! State of each packet number: named, arrived, missing or recovered.
//!
//! The ledger covers the last [`Ledger::capacity`] numbers, and has rows for the numbers that have
//! not settled. A row is counted once, when it settles: whether its packet was lost and recovered,
//! and the length of its loss burst.

use super::align::Tag;
use super::identity::Identity;
use super::stats::{LossReport, burst_bucket};
use crate::fec::Seq;
use crate::time::{Duration, Instant};
use crate::wire::ip::MutableFields;

/// Time after its naming in which a packet may still arrive or be recovered.
pub(super) const SETTLE: Duration = Duration::from_secs(1);

/// Minimum number of rows, unless there are none.
const MIN_ROWS: usize = 64;
/// Number of packets before the first named packet that may still be named.
const BEFORE: u64 = 1_024;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    /// Not named by any datagram that has arrived.
    #[default]
    Unnamed,
    Arrived,
    /// Named, but neither arrived nor recovered.
    Missing,
    /// Lost, then recovered.
    Recovered,
    /// Lost and recovered, but withheld from its destination.
    Withheld,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Row {
    /// Identity of the packet, once the packet has arrived or was recovered.
    pub(super) identity: Identity,
    /// Tag of the identity, once the packet is named.
    pub(super) tag: Tag,
    /// Send time in microseconds of the peer's clock, if known.
    pub(super) sent: Option<u32>,
    pub(super) fields: MutableFields,
    /// True if a full queue dropped the packet.
    pub(super) congested: bool,
    /// True if no repair contains the packet.
    pub(super) is_bare: bool,
    pub(super) state: State,
}

impl Row {
    /// Returns whether the packet has arrived or was recovered.
    pub(super) fn is_here(&self) -> bool {
        matches!(self.state, State::Arrived | State::Recovered | State::Withheld)
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Settled {
    pub(super) link: LossReport,
    pub(super) unrecoverable: u64,
    pub(super) uncovered: u64,
}

/// Rows by number, in a ring.
pub(super) struct Ledger {
    /// Rows; their number is 0 or a power of two, up to `capacity`.
    rows: Box<[Row]>,
    capacity: u64,
    /// Lowest number that has not settled.
    floor: Seq,
    /// Number after the highest number named; 0 before any is named.
    next: Seq,
    /// Lowest number named since the peer started; lower numbers are not counted.
    lowest: Seq,
    /// Value of `next` at recent times, oldest first.
    marks: std::collections::VecDeque<(Instant, Seq)>,
    run: u64,
    settled: Settled,
}

impl Ledger {
    /// Creates a ledger of the last `capacity` numbers, rounded up to a power of two.
    pub(super) fn new(capacity: usize) -> Self {
        Ledger {
            rows: Box::default(),
            capacity: capacity.next_power_of_two() as u64,
            floor: 0,
            next: 0,
            lowest: 0,
            marks: std::collections::VecDeque::new(),
            run: 0,
            settled: Settled::default(),
        }
    }

    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes of memory held.
    pub(super) fn held(&self) -> usize {
        self.rows.len() * size_of::<Row>()
    }

    /// Lowest number that has not settled.
    pub(super) fn floor(&self) -> Seq {
        self.floor
    }

    /// Number after the highest number named.
    pub(super) fn next(&self) -> Seq {
        self.next
    }

    pub(super) fn settled(&self) -> Settled {
        let mut settled = self.settled;
        settled.link.highest = self.next.saturating_sub(1);
        settled
    }

    /// Makes room for numbers up to `last`; returns false if `first` has settled already. A jump of
    /// the numbers beyond the ledger, forwards or backwards, means that the peer has restarted: the
    /// ledger is emptied.
    pub(super) fn reach(&mut self, first: Seq, last: Seq) -> bool {
        let ahead = last >= self.next.saturating_add(self.capacity());
        let behind = last.saturating_add(self.capacity()) < self.floor;
        if self.next == 0 || ahead || behind {
            self.settle_below(self.next);
            self.flush_run();
            self.rows = Box::default();
            self.marks.clear();
            // The first names to arrive need not be those of the first packets.
            self.floor = first.saturating_sub(BEFORE.min(self.capacity() / 2));
            self.next = first;
            self.lowest = first;
        }
        self.lowest = self.lowest.min(first.max(self.floor));
        if last >= self.next {
            self.settle_below((last + 1).saturating_sub(self.capacity()));
            self.next = last + 1;
            self.make_rows();
        }
        first >= self.floor
    }

    /// Allocates enough rows for all numbers that have not settled.
    fn make_rows(&mut self) {
        let wanted = (self.next - self.floor) as usize;
        if wanted <= self.rows.len() {
            return;
        }
        let rows = vec![Row::default(); wanted.next_power_of_two().max(MIN_ROWS)];
        let old = std::mem::replace(&mut self.rows, rows.into_boxed_slice());
        if !old.is_empty() {
            // The range may include new numbers, whose rows in the old ring are empty.
            for seq in self.floor..self.next.min(self.floor + old.len() as u64) {
                let place = self.place(seq);
                self.rows[place] = old[(seq & (old.len() as u64 - 1)) as usize];
            }
        }
    }

    /// Row of `seq`; `None` if `seq` has settled or was never reached.
    pub(super) fn row(&self, seq: Seq) -> Option<&Row> {
        let within = seq >= self.floor && seq < self.next;
        within.then(|| &self.rows[self.place(seq)])
    }

    /// Mutable row of `seq`; `None` if `seq` has settled or was never reached.
    pub(super) fn row_mut(&mut self, seq: Seq) -> Option<&mut Row> {
        let within = seq >= self.floor && seq < self.next;
        if !within {
            return None;
        }
        let place = self.place(seq);
        Some(&mut self.rows[place])
    }

    fn place(&self, seq: Seq) -> usize {
        (seq & self.mask()) as usize
    }

    fn mask(&self) -> u64 {
        self.rows.len() as u64 - 1
    }

    /// Settles numbers that were named more than [`SETTLE`] ago. To be called a few times a second.
    pub(super) fn tick(&mut self, now: Instant) {
        while let Some(&(at, next)) = self.marks.front() {
            if now.since(at) < SETTLE {
                break;
            }
            self.marks.pop_front();
            self.settle_below(next);
        }
        if self.marks.back().is_none_or(|&(_, next)| next != self.next) {
            self.marks.push_back((now, self.next));
        }
        if self.is_settled() {
            self.rows = Box::default();
        }
    }

    /// Returns whether all numbers have settled.
    pub(super) fn is_settled(&self) -> bool {
        self.floor >= self.next
    }

    fn settle_below(&mut self, seq: Seq) {
        for settling in self.floor..seq.min(self.next) {
            // Numbers before the first named one may settle before there are rows.
            let row = match self.rows.is_empty() {
                true => Row::default(),
                false => std::mem::take(&mut self.rows[(settling & self.mask()) as usize]),
            };
            if settling >= self.lowest {
                self.count(row.state);
            }
        }
        self.floor = self.floor.max(seq);
    }

    fn count(&mut self, state: State) {
        let link = &mut self.settled.link;
        match state {
            State::Unnamed => self.settled.uncovered += 1,
            State::Arrived => link.covered += 1,
            State::Missing | State::Withheld => {
                link.covered += 1;
                link.lost += 1;
                self.settled.unrecoverable += 1;
            }
            State::Recovered => {
                link.covered += 1;
                link.lost += 1;
                link.recovered += 1;
            }
        }
        match state {
            State::Missing | State::Recovered | State::Withheld => self.run += 1,
            State::Arrived | State::Unnamed => self.flush_run(),
        }
    }

    fn flush_run(&mut self) {
        if self.run > 0 {
            self.settled.link.bursts[burst_bucket(self.run)] += 1;
            self.run = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn rows_settle_after_their_time_and_bursts_are_measured() {
        let mut ledger = Ledger::new(64);
        assert!(ledger.reach(100, 109));
        for seq in 100..110 {
            let lost = [102, 104, 105, 106].contains(&seq);
            ledger.row_mut(seq).unwrap().state =
                if lost { State::Recovered } else { State::Arrived };
        }
        ledger.row_mut(106).unwrap().state = State::Missing;
        ledger.tick(after(0));
        ledger.tick(after(900));
        assert_eq!(ledger.settled().link.covered, 0);
        ledger.tick(after(1_000));
        let settled = ledger.settled();
        assert_eq!((settled.link.covered, settled.link.lost, settled.link.recovered), (10, 4, 3));
        assert_eq!((settled.unrecoverable, settled.link.highest), (1, 109));
        assert_eq!((settled.link.bursts[0], settled.link.bursts[2]), (1, 1));
        assert!(!ledger.reach(105, 105), "settled");
    }

    #[test]
    fn a_jump_of_the_numbers_resets_the_ledger() {
        let mut ledger = Ledger::new(64);
        ledger.reach(1, 10);
        assert!(ledger.reach(1_000_000, 1_000_003));
        assert_eq!(ledger.settled().uncovered, 10);
        assert!(ledger.row(5).is_none() && ledger.row(1_000_002).is_some());
    }

    #[test]
    fn numbers_that_no_longer_fit_the_ring_settle() {
        let mut ledger = Ledger::new(64);
        ledger.reach(1, 64);
        ledger.reach(100, 100);
        assert_eq!(ledger.floor(), 37);
        assert_eq!(ledger.settled().uncovered, 36);
    }
}
