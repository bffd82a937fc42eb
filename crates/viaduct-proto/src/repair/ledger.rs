//! What is known of each packet number: announced under which name, arrived, missing, recovered.
//!
//! The ledger covers the last [`Ledger::capacity`] numbers. Rows leave it when they have settled,
//! and are then counted once: lost or not, recovered or not, and in bursts of which length.

use super::align::Tag;
use super::identity::Identity;
use super::stats::{LossReport, burst_bucket};
use crate::fec::Seq;
use crate::time::{Duration, Instant};
use crate::wire::ip::Hop;

/// How long after it was named a packet may still arrive or be recovered.
pub(super) const SETTLE: Duration = Duration::from_secs(1);

/// The state of one number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    /// Nothing that arrived has named it.
    #[default]
    Unnamed,
    /// It arrived by itself.
    Arrived,
    /// It was named and is not here.
    Missing,
    /// It was lost and has been recovered.
    Recovered,
    /// It was lost and has been recovered, but its hosts do not get it.
    Withheld,
}

/// One number.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Row {
    /// Its identity, once the packet is here.
    pub(super) identity: Identity,
    /// The identity's tag, once it is named.
    pub(super) tag: Tag,
    /// When it left, in microseconds of the peer's clock, if that was told.
    pub(super) sent: Option<u32>,
    /// Mutable fields of a packet that was recovered.
    pub(super) hop: Hop,
    /// Whether a full queue has dropped it.
    pub(super) congested: bool,
    /// Whether it is in no repair.
    pub(super) is_bare: bool,
    pub(super) state: State,
}

impl Row {
    /// Whether the packet has arrived or was recovered.
    pub(super) fn is_here(&self) -> bool {
        matches!(self.state, State::Arrived | State::Recovered | State::Withheld)
    }
}

/// What the settled rows add up to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Settled {
    pub(super) link: LossReport,
    pub(super) unrecoverable: u64,
    pub(super) uncovered: u64,
}

/// Rows by number, in a ring.
pub(super) struct Ledger {
    rows: Box<[Row]>,
    /// Numbers below have settled.
    floor: Seq,
    /// One above the highest number named; 0 before the first.
    next: Seq,
    /// The lowest number named since the peer started: those below never were.
    lowest: Seq,
    /// How far the numbers had come at recent times, oldest first.
    marks: std::collections::VecDeque<(Instant, Seq)>,
    run: u64,
    settled: Settled,
}

impl Ledger {
    /// For the last `capacity` numbers, a power of two.
    pub(super) fn new(capacity: usize) -> Self {
        Ledger {
            rows: vec![Row::default(); capacity.next_power_of_two()].into_boxed_slice(),
            floor: 0,
            next: 0,
            lowest: 0,
            marks: std::collections::VecDeque::new(),
            run: 0,
            settled: Settled::default(),
        }
    }

    pub(super) fn capacity(&self) -> u64 {
        self.rows.len() as u64
    }

    pub(super) fn memory(&self) -> usize {
        self.rows.len() * size_of::<Row>()
    }

    /// Lowest number that has not settled.
    pub(super) fn floor(&self) -> Seq {
        self.floor
    }

    /// One above the highest number named.
    pub(super) fn next(&self) -> Seq {
        self.next
    }

    pub(super) fn settled(&self) -> Settled {
        let mut settled = self.settled;
        settled.link.highest = self.next.saturating_sub(1);
        settled
    }

    /// Makes room for numbers up to `last`; false if `first` has settled already. The peer has
    /// started anew if the numbers jump beyond the ledger, forwards or back.
    pub(super) fn reach(&mut self, first: Seq, last: Seq) -> bool {
        let ahead = last >= self.next.saturating_add(self.capacity());
        let behind = last.saturating_add(self.capacity()) < self.floor;
        if self.next == 0 || ahead || behind {
            self.settle_below(self.next);
            self.flush_run();
            self.rows.fill(Row::default());
            self.marks.clear();
            // The first repair to arrive need not be of the first packets.
            self.floor = first.saturating_sub(self.capacity() / 2);
            self.next = first;
            self.lowest = first;
        }
        self.lowest = self.lowest.min(first.max(self.floor));
        if last >= self.next {
            self.settle_below((last + 1).saturating_sub(self.capacity()));
            self.next = last + 1;
        }
        first >= self.floor
    }

    /// The row of `seq`, unless it has settled or was never reached.
    pub(super) fn row(&self, seq: Seq) -> Option<&Row> {
        let within = seq >= self.floor && seq < self.next;
        within.then(|| &self.rows[self.place(seq)])
    }

    /// The row of `seq`, to change.
    pub(super) fn row_mut(&mut self, seq: Seq) -> Option<&mut Row> {
        let within = seq >= self.floor && seq < self.next;
        let place = self.place(seq);
        within.then(|| &mut self.rows[place])
    }

    fn place(&self, seq: Seq) -> usize {
        (seq & (self.capacity() - 1)) as usize
    }

    /// Settles what was named more than [`SETTLE`] ago. Call it a few times a second.
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
    }

    fn settle_below(&mut self, seq: Seq) {
        for settling in self.floor..seq.min(self.next) {
            let place = self.place(settling);
            let row = std::mem::take(&mut self.rows[place]);
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
    fn a_jump_of_the_numbers_starts_anew() {
        let mut ledger = Ledger::new(64);
        ledger.reach(1, 10);
        assert!(ledger.reach(1_000_000, 1_000_003));
        assert_eq!(ledger.settled().uncovered, 10);
        assert!(ledger.row(5).is_none() && ledger.row(1_000_002).is_some());
    }

    #[test]
    fn the_ring_settles_what_it_has_no_room_for() {
        let mut ledger = Ledger::new(64);
        ledger.reach(1, 64);
        ledger.reach(100, 100);
        assert_eq!(ledger.floor(), 37);
        assert_eq!(ledger.settled().uncovered, 36);
    }
}
