//! Byte ranges that a client wants, and those that it has requested.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use bytes::Bytes;

use super::parcels::Parcels;
use crate::time::Instant;
use crate::trickles::wire::Ask;

/// Maximum length of an ask on the wire, without its user continuation.
const ASK: usize = 9 + 5;
/// Maximum overhead of a group of asks, without the user continuation itself.
const GROUP: usize = 2 + 1;

/// A range of bytes that is wanted, and the user continuation that yields it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Want {
    pub(super) position: u64,
    pub(super) length: u64,
    pub(super) user: Bytes,
}

impl Want {
    fn end(&self) -> u64 {
        self.position + self.length
    }

    /// Returns whether `next` starts where this range ends, under the same user continuation.
    fn is_before(&self, next: &Want) -> bool {
        self.end() == next.position && self.user == next.user
    }

    /// The parts of the range that are outside `range`.
    fn without(self, range: &Range<u64>) -> impl Iterator<Item = Want> {
        let before = self.position..self.end().min(range.start);
        let after = self.position.max(range.end)..self.end();
        let left = [before, after].into_iter().filter(|left| left.start < left.end);
        left.map(move |left| Want {
            position: left.start,
            length: left.end - left.start,
            user: self.user.clone(),
        })
    }
}

#[derive(Clone, Debug)]
pub(super) struct Expected {
    pub(super) sent: Instant,
    /// Range that the packet was asked to carry.
    pub(super) want: Option<Want>,
    /// Parcel of the request that the packet answers.
    pub(super) parcel: Option<u64>,
    /// Index of the packet in the answer to the parcel.
    turn: u32,
    /// True if all earlier packets of the answer to the parcel have arrived; set on arrival.
    pub(super) in_order: bool,
}

impl Expected {
    pub(super) fn new(sent: Instant, want: Option<Want>, parcel: Option<u64>) -> Expected {
        Expected { sent, want, parcel, turn: 0, in_order: true }
    }

    /// Returns whether the packet is expected to carry wanted bytes.
    fn brings(&self) -> bool {
        self.want.as_ref().is_some_and(|want| want.length > 0)
    }
}

/// Wants, and expected packets by number.
#[derive(Debug, Default)]
pub(super) struct Asks {
    /// Highest packet number that was requested.
    furthest: u64,
    wants: VecDeque<Want>,
    fresh: BTreeMap<u64, Expected>,
    /// Number below which no packet in `fresh` is expected to carry wanted bytes.
    barren: u64,
    again: BTreeMap<u64, Expected>,
    /// The packets in `again`, in the order of their requests.
    repairs: BTreeSet<(Instant, u64)>,
    pub(super) parcels: Parcels,
}

/// Bytes of a request that are available for asks.
#[derive(Debug)]
pub(super) struct Budget {
    left: usize,
    user: Option<Bytes>,
}

impl Budget {
    pub(super) fn new(left: usize) -> Self {
        Budget { left, user: None }
    }

    /// Returns whether an ask under `user` fits; if so, deducts its length.
    fn spend(&mut self, user: &Bytes) -> bool {
        let same = self.user.as_ref() == Some(user);
        let cost = if same { ASK } else { ASK + GROUP + user.len() };
        if cost > self.left {
            return false;
        }
        self.left -= cost;
        self.user = Some(user.clone());
        true
    }
}

impl Asks {
    pub(super) fn want(&mut self, want: Want) {
        match self.wants.back_mut() {
            _ if want.length == 0 => {}
            Some(last) if last.is_before(&want) => last.length += want.length,
            _ => self.wants.push_back(want),
        }
    }

    /// Returns lost bytes to the wants, before the wants of later bytes. Adjacent ranges are
    /// merged, because a packet for each small remainder would cost much overhead.
    pub(super) fn want_again(&mut self, want: Option<Want>) {
        let Some(mut want) = want.filter(|want| want.length > 0) else { return };
        let later = self.wants.iter().position(|later| later.position > want.position);
        let mut place = later.unwrap_or(self.wants.len());
        if let Some(next) = self.wants.get(place).filter(|next| want.is_before(next)) {
            want.length += next.length;
            self.wants.remove(place);
        }
        let before = place.checked_sub(1).and_then(|before| self.wants.get(before));
        if let Some(before) = before.filter(|before| before.is_before(&want)) {
            (want.position, want.length) = (before.position, before.length + want.length);
            place -= 1;
            self.wants.remove(place);
        }
        self.wants.insert(place, want);
    }

    /// Cancels all wants in `range`. Bytes in flight are not requested again if they are lost.
    pub(super) fn unwant(&mut self, range: &Range<u64>) {
        for want in std::mem::take(&mut self.wants) {
            self.wants.extend(want.without(range));
        }
        let expected = self.fresh.values_mut().chain(self.again.values_mut());
        for want in expected.filter_map(|expected| expected.want.as_mut()) {
            if range.contains(&want.position) {
                want.length = 0;
            } else if want.position < range.start && (range.start..=range.end).contains(&want.end())
            {
                want.length = range.start - want.position;
            }
        }
    }

    /// Replaces the user continuation `before` of pending wants by `now`. Requests in flight keep
    /// the old continuation, because they are answered soon.
    pub(super) fn renew(&mut self, before: &Bytes, now: &Bytes) {
        for want in self.wants.iter_mut().filter(|want| want.user == *before) {
            want.user = now.clone();
        }
    }

    pub(super) fn is_wanting(&self) -> bool {
        !self.wants.is_empty()
    }

    /// Takes up to `room` bytes of the first want, if the request has room for the ask.
    pub(super) fn take(&mut self, room: usize, budget: &mut Budget) -> Option<Want> {
        let first = self.wants.front_mut()?;
        let length = first.length.min(room as u64);
        if length == 0 || !budget.spend(&first.user) {
            return None;
        }
        let taken = Want { position: first.position, length, user: first.user.clone() };
        first.position += length;
        first.length -= length;
        if first.length == 0 {
            self.wants.pop_front();
        }
        Some(taken)
    }

    pub(super) fn in_flight(&self) -> usize {
        self.fresh.len() + self.again.len()
    }

    /// Returns whether all packets in flight are retransmissions of lost ones.
    pub(super) fn are_repairs(&self) -> bool {
        self.fresh.is_empty()
    }

    /// Request time of the first packet in flight that should carry wanted bytes.
    pub(super) fn first_wanted(&mut self) -> Option<Instant> {
        self.first_that_brings().map(|expected| expected.sent)
    }

    /// First packet in flight that should carry wanted bytes; `barren` saves repeated scans.
    fn first_that_brings(&mut self) -> Option<&mut Expected> {
        let first = self.fresh.range(self.barren..).find(|(_, expected)| expected.brings());
        self.barren = first.map_or(self.furthest + 1, |(&number, _)| number);
        self.fresh.get_mut(&self.barren)
    }

    /// Request time of the oldest repair in flight.
    pub(super) fn oldest_again(&self) -> Option<Instant> {
        self.repairs.first().map(|&(sent, _)| sent)
    }

    /// Adds a packet in flight.
    pub(super) fn expect(&mut self, number: u64, mut expected: Expected) {
        expected.turn = self.parcels.expect(expected.parcel);
        self.furthest = self.furthest.max(number);
        self.barren = self.barren.min(number);
        if let Some(before) = self.fresh.insert(number, expected) {
            self.parcels.is_out(before.parcel);
        }
    }

    /// Adds a retransmission in flight.
    pub(super) fn expect_again(&mut self, number: u64, mut expected: Expected) {
        expected.turn = self.parcels.expect(expected.parcel);
        self.repairs.insert((expected.sent, number));
        if let Some(before) = self.again.insert(number, expected.clone()) {
            self.parcels.is_out(before.parcel);
            if before.sent != expected.sent {
                self.repairs.remove(&(before.sent, number));
            }
        }
    }

    /// Finds the first packet in flight that should carry wanted bytes, and adds these bytes to the
    /// wants again, although the packet may still arrive. Returns whether there is such a packet.
    pub(super) fn doubt_first(&mut self) -> bool {
        let want = self.first_that_brings().and_then(|expected| expected.want.take());
        let doubted = want.is_some();
        self.want_again(want);
        doubted
    }

    /// Removes a packet that arrived, and returns its expectation.
    pub(super) fn came(&mut self, number: u64) -> Option<Expected> {
        self.fresh.remove(&number).map(|expected| self.arrived(expected))
    }

    /// Removes a packet that is lost, and returns its expectation.
    pub(super) fn is_lost(&mut self, number: u64) -> Option<Expected> {
        self.fresh.remove(&number).inspect(|expected| self.parcels.is_out(expected.parcel))
    }

    /// Removes a retransmission that arrived, and returns its expectation.
    pub(super) fn came_again(&mut self, number: u64) -> Option<Expected> {
        let expected = self.again.remove(&number)?;
        self.repairs.remove(&(expected.sent, number));
        Some(self.arrived(expected))
    }

    fn arrived(&mut self, expected: Expected) -> Expected {
        let in_order = self.parcels.came(expected.parcel, expected.turn);
        Expected { in_order, ..expected }
    }

    /// Begins a generation, which has its own packet numbers.
    pub(super) fn begin(&mut self) {
        self.furthest = 0;
    }

    /// Returns whether packet `number` may arrive: this packet or a later one was requested.
    pub(super) fn reaches(&self, number: u64) -> bool {
        number <= self.furthest
    }

    /// Moves the bytes of all packets in flight, which will not arrive, back to the wants.
    pub(super) fn forget_all(&mut self) {
        let fresh = std::mem::take(&mut self.fresh);
        let again = std::mem::take(&mut self.again);
        self.repairs.clear();
        for expected in fresh.into_values().chain(again.into_values()) {
            self.parcels.is_out(expected.parcel);
            self.want_again(expected.want);
        }
    }
}

/// Groups wants for a request, by user continuation.
pub(super) fn groups(wants: &[Want]) -> Vec<(&[u8], Vec<Ask>)> {
    let mut groups: Vec<(&[u8], Vec<Ask>)> = Vec::new();
    for want in wants {
        let ask = Ask { position: want.position, length: want.length as u32 };
        match groups.last_mut() {
            Some((user, asks)) if *user == &want.user[..] => asks.push(ask),
            _ => groups.push((&want.user, vec![ask])),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use crate::time::Duration;

    /// Compares the cached first packet and oldest repair with the results of a full scan.
    #[test]
    fn the_cached_first_packet_and_oldest_repair_equal_those_of_a_scan() {
        let mut rng = Rng::from_seed(5);
        let (mut asks, mut now, mut next) = (Asks::default(), Instant::ZERO, 0);
        for _ in 0..20_000 {
            now += Duration::from_nanos(rng.below(2));
            let number = rng.below(next + 2);
            let want = Want { position: number, length: rng.below(2), user: Bytes::new() };
            let expected = Expected::new(now, Some(want), None);
            match rng.below(8) {
                0 | 1 => asks.expect(next, expected),
                2 => asks.expect_again(number, expected),
                3 => drop(asks.came(number)),
                4 => drop(asks.came_again(number)),
                5 => asks.unwant(&(number..number + 1)),
                6 => drop(asks.doubt_first()),
                _ if rng.below(500) == 0 => {
                    asks.forget_all();
                    asks.begin();
                    next = 0;
                }
                _ => {}
            }
            next = next.max(asks.furthest + 1);
            let first = asks.fresh.values().find(|expected| expected.brings());
            let first = first.map(|expected| expected.sent);
            assert_eq!(asks.first_wanted(), first);
            let oldest = asks.again.values().map(|expected| expected.sent).min();
            assert_eq!(asks.oldest_again(), oldest);
        }
    }

    #[test]
    fn lost_bytes_are_requested_again_unless_they_were_cancelled() {
        for (range, left) in [(20..30, 10), (20..40, 10), (30..40, 20), (40..50, 20), (5..20, 0)] {
            let mut asks = Asks::default();
            let want = Want { position: 10, length: 20, user: Bytes::new() };
            asks.expect(0, Expected::new(Instant::ZERO, Some(want), None));
            asks.unwant(&range);
            let lost = asks.is_lost(0).and_then(|expected| expected.want);
            assert_eq!(lost.map(|want| want.length), Some(left), "{range:?}");
        }
    }

    #[test]
    fn adjacent_wants_are_merged() {
        let mut asks = Asks::default();
        let want = |position, length, user| {
            Some(Want { position, length, user: Bytes::from_static(user) })
        };
        for again in [want(0, 10, b"a"), want(20, 10, b"a"), want(30, 10, b"b"), want(10, 10, b"a")]
        {
            asks.want_again(again);
        }
        let mut budget = Budget::new(1_000);
        let mut taken = || asks.take(25, &mut budget).map(|want| (want.position, want.length));
        assert_eq!([taken(), taken(), taken()], [Some((0, 25)), Some((25, 5)), Some((30, 10))]);
        assert_eq!(taken(), None);
    }
}
