//! Requests for repairs of what those that come by themselves have not brought back.
//!
//! A packet that is still missing after the time for which flows can wait is asked for: the peer answers with
//! combinations of the packets asked for, any of which serves for any packet. Each packet is asked for once a round
//! trip until it is here, or too old.

use std::collections::BTreeMap;

use super::section::Need;
use crate::fec::{MAX_COVER, Seq};
use crate::time::{Duration, Instant};

/// Missing packets that are remembered, at most; those that are missing beyond are not asked for.
const MAX_MISSING: usize = 2_048;
/// Packets beyond what repairs on their way may bring back that are asked for at once.
const EXCESS: usize = 4;
/// Repairs that one request asks for, times the packets that each covers, at most: the peer makes them at
/// once, and everything else waits.
pub(super) const MAX_WORK: usize = 1 << 16;
/// Repairs of which one more is asked for.
const RESERVE: usize = 10;
/// Time in which a packet may be late.
const LATE: Duration = Duration::from_millis(4);
/// Age from which on a packet is of no use.
const MAX_AGE: Duration = Duration::from_secs(1);

/// What is missing.
#[derive(Debug, Default)]
pub(super) struct Requests {
    missing: BTreeMap<Seq, Missing>,
    /// Of them, those that were never asked for.
    fresh: usize,
    asked: u64,
}

#[derive(Clone, Copy, Debug)]
struct Missing {
    since: Instant,
    asked: Option<Instant>,
}

/// Times that requests are made by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// For which flows can wait for a packet.
    pub(super) wait: Duration,
    pub(super) rtt: Duration,
}

impl Times {
    /// After which a packet is asked for: what is asked for comes a round trip later, and a sender
    /// that sends it again undoes that only if it is here before.
    fn ask(&self) -> Duration {
        self.wait.min(self.rtt / 4).max(LATE)
    }
}

impl Requests {
    /// Packet `seq` is missing, and not by congestion.
    pub(super) fn missing(&mut self, now: Instant, seq: Seq) {
        if self.missing.len() < MAX_MISSING
            && self.missing.insert(seq, Missing { since: now, asked: None }).is_none()
        {
            self.fresh += 1;
        }
    }

    /// Packet `seq` is here; how long it was missing.
    pub(super) fn here(&mut self, now: Instant, seq: Seq) -> Option<Duration> {
        let missing = self.missing.remove(&seq)?;
        self.fresh -= usize::from(missing.asked.is_none());
        Some(now.since(missing.since))
    }

    /// Packets asked for.
    pub(super) fn asked(&self) -> u64 {
        self.asked
    }

    /// Forgets what is too old, or forgotten by the decoder; how many packets.
    pub(super) fn expire(&mut self, now: Instant, floor: Seq) -> usize {
        let before = self.missing.len();
        self.missing.retain(|&seq, missing| seq >= floor && now.since(missing.since) < MAX_AGE);
        self.fresh = self.missing.values().filter(|missing| missing.asked.is_none()).count();
        before - self.missing.len()
    }

    /// When there may be something to ask for, where so many equations are held or on their way.
    pub(super) fn due(&self, times: Times, coming: usize) -> Option<Instant> {
        let usual = self.missing.values().map(|missing| missing.due(times)).min();
        // The newest of a burst may just be late.
        let newest = self.missing.last_key_value().map(|(_, missing)| missing.since + LATE);
        let early = newest.filter(|_| self.fresh > coming + EXCESS);
        [usual, early].into_iter().flatten().min()
    }

    /// What to ask for before its time, as what is on its way is surely not enough.
    pub(super) fn ask_early(&mut self, now: Instant, coming: usize) -> Option<Need> {
        let excess = self.fresh.checked_sub(coming).filter(|excess| *excess > EXCESS)?;
        if self.missing.last_key_value().is_some_and(|(_, newest)| newest.since + LATE > now) {
            return None;
        }
        let mut fresh = self.missing.iter_mut().filter(|(_, missing)| missing.asked.is_none());
        let (&first, oldest) = fresh.next()?;
        oldest.asked = Some(now);
        let (mut last, mut count) = (first, 1_usize);
        for (&seq, missing) in fresh.take_while(|(seq, _)| **seq - first < u64::from(MAX_COVER)) {
            if is_too_much(first, seq, count + 1) {
                break;
            }
            (last, count) = (seq, count + 1);
            missing.asked = Some(now);
        }
        self.fresh -= count;
        self.asked += count as u64;
        let repairs = with_reserve(excess.min(count));
        Some(Need { first, packets: (last - first + 1) as u16, repairs })
    }

    /// The packets that were never asked for, the first and the last, where they are many.
    pub(super) fn fresh(&self) -> Option<(Seq, Seq)> {
        if self.fresh <= EXCESS {
            return None;
        }
        let mut fresh = self.missing.iter().filter(|(_, missing)| missing.asked.is_none());
        let (first, _) = fresh.next()?;
        Some((*first, *fresh.next_back().map_or(first, |(last, _)| last)))
    }

    /// The next request, where so many equations of the packets from one to another are `held`. No range has a packet
    /// that `is_given_up`: it is not asked for, and without it no repair of the range would be of use.
    pub(super) fn ask(
        &mut self,
        now: Instant,
        times: Times,
        held: impl Fn(Seq, Seq) -> usize,
        is_given_up: impl Fn(Seq) -> bool,
    ) -> Option<Need> {
        let mut due = self.missing.iter_mut().filter(|(_, missing)| missing.due(times) <= now);
        let (&first, oldest) = due.next()?;
        let mut fresh = usize::from(oldest.asked.replace(now).is_none());
        let (mut last, mut count) = (first, 1_usize);
        for (&seq, missing) in due.take_while(|(seq, _)| **seq - first < u64::from(MAX_COVER)) {
            if is_too_much(first, seq, count + 1) || (last + 1..seq).any(&is_given_up) {
                break;
            }
            (last, count) = (seq, count + 1);
            fresh += usize::from(missing.asked.replace(now).is_none());
        }
        self.fresh -= fresh;
        self.asked += count as u64;
        let repairs = with_reserve(count.saturating_sub(held(first, last)).max(1));
        Some(Need { first, packets: (last - first + 1) as u16, repairs })
    }
}

/// Whether a repair for each of `count` packets from one to another is more than the peer makes at once.
fn is_too_much(first: Seq, last: Seq, count: usize) -> bool {
    (last - first + 1) as usize * count > MAX_WORK
}

/// So many repairs, and some for those that will be lost: one too few of many costs all of them another
/// round trip.
fn with_reserve(repairs: usize) -> u8 {
    let reserve = if repairs > 2 { repairs.div_ceil(RESERVE) } else { 0 };
    (repairs + reserve).min(usize::from(u8::MAX)) as u8
}

impl Missing {
    fn due(&self, times: Times) -> Instant {
        match self.asked {
            Some(asked) => asked + times.rtt + times.ask(),
            None => self.since + times.ask(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: Times = Times { wait: Duration::from_millis(25), rtt: Duration::from_millis(100) };

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn what_is_missing_is_asked_for_once_a_round_trip_until_it_is_here() {
        let mut requests = Requests::default();
        [100, 107, 110].iter().for_each(|&seq| requests.missing(at(0), seq));
        requests.missing(at(20), 300);
        assert_eq!(
            (requests.due(TIMES, 9), requests.ask(at(24), TIMES, |_, _| 0, |_| false)),
            (Some(at(25)), None)
        );
        let need = requests.ask(at(25), TIMES, |_, _| 1, |_| false);
        assert_eq!(need, Some(Need { first: 100, packets: 11, repairs: 2 }));
        assert_eq!(requests.ask(at(30), TIMES, |_, _| 1, |_| false), None);
        assert_eq!(requests.here(at(50), 107), Some(Duration::from_millis(50)));
        let need = requests.ask(at(150), TIMES, |_, _| 0, |_| false);
        assert_eq!(need, Some(Need { first: 100, packets: 201, repairs: 4 }));
        assert_eq!(requests.expire(at(1_000), 0), 2);
        assert_eq!(requests.expire(at(1_000), 301), 1);
        assert_eq!(requests.due(TIMES, 0), None);
    }

    #[test]
    fn a_range_is_no_longer_than_a_repair_covers() {
        let mut requests = Requests::default();
        (0..30).for_each(|n| requests.missing(at(0), 1 + 100 * n));
        let need = requests.ask(at(25), TIMES, |_, _| 0, |_| false).unwrap();
        assert_eq!((need.packets, need.repairs), (2_001, 24), "{MAX_COVER} at most");
        let rest = requests.ask(at(25), TIMES, |_, _| 0, |_| false).unwrap();
        assert_eq!((rest.first, rest.repairs), (2_101, 10));
    }

    #[test]
    fn many_are_asked_for_in_several_requests() {
        let mut requests = Requests::default();
        (0..300).for_each(|n| requests.missing(at(0), 1 + 10 * n));
        let mut next = 1;
        while let Some(need) = requests.ask(at(25), TIMES, |_, _| 0, |_| false) {
            assert_eq!(need.first, next);
            let packets = usize::from(need.packets).div_ceil(10);
            assert!(usize::from(need.packets) * packets <= MAX_WORK, "{need:?}");
            next += 10 * packets as u64;
        }
        assert_eq!(next, 3_001);
    }

    #[test]
    fn no_range_has_a_packet_that_is_given_up() {
        let mut requests = Requests::default();
        [100, 107, 110].iter().for_each(|&seq| requests.missing(at(0), seq));
        let mut next = || requests.ask(at(25), TIMES, |_, _| 0, |seq| seq == 105);
        assert_eq!(next(), Some(Need { first: 100, packets: 1, repairs: 1 }));
        assert_eq!(next(), Some(Need { first: 107, packets: 4, repairs: 2 }));
        assert_eq!(next(), None);
    }

    #[test]
    fn what_is_surely_too_much_for_what_is_coming_is_asked_for_at_once() {
        let mut requests = Requests::default();
        (0..30).for_each(|n| requests.missing(at(n / 10), 100 + n));
        assert_eq!((requests.due(TIMES, 26), requests.due(TIMES, 10)), (Some(at(25)), Some(at(6))));
        assert_eq!((requests.ask_early(at(5), 10), requests.ask_early(at(6), 26)), (None, None));
        let need = requests.ask_early(at(6), 10);
        assert_eq!(need, Some(Need { first: 100, packets: 30, repairs: 22 }));
        assert_eq!(
            (requests.ask_early(at(7), 0), requests.ask(at(30), TIMES, |_, _| 0, |_| false)),
            (None, None)
        );
        let need = requests.ask(at(131), TIMES, |_, _| 5, |_| false).unwrap();
        assert_eq!((need.packets, need.repairs), (30, 28));
    }
}
