//! Requests for repairs of packets that unrequested repairs have not recovered.
//!
//! A packet is requested if it is still missing after the time for which flows can wait, or after a
//! quarter of a round trip if that time is shorter, but never within the first 4 ms. Packets are
//! requested earlier if more of them are missing than the expected repairs can recover. The peer
//! answers with combinations of the requested packets; each combination can recover any one of
//! these packets. A request is repeated about once a round trip until the packet has arrived or is
//! too old.

use std::collections::BTreeMap;

use super::section::Need;
use crate::fec::{MAX_COVER, Seq};
use crate::time::{Duration, Instant};

/// Maximum number of packets in one request: the number of its repairs, including the reserve, must
/// fit in a byte.
const MAX_ASKED: usize = 231;
/// Maximum number of remembered missing packets: as many as eight requests hold. Further packets
/// are not requested.
const MAX_MISSING: usize = 8 * MAX_ASKED;
/// Excess of missing packets over the expected recoveries above which packets are requested early.
const EXCESS: usize = 4;
/// Maximum number of repairs in one request, times the number of packets that each repair covers:
/// the peer computes all these repairs in one go, which delays its other work.
pub(super) const MAX_WORK: usize = 1 << 16;
/// Number of repairs for each of which a request includes one reserve repair.
const RESERVE: usize = 10;
/// Time for which a missing packet may merely be late.
const LATE: Duration = Duration::from_millis(4);
/// Age at which a packet becomes useless.
const MAX_AGE: Duration = Duration::from_secs(1);

/// Index of the missing packets, by number, and the requests for them.
#[derive(Debug, Default)]
pub(super) struct Requests {
    missing: BTreeMap<Seq, MissingPacket>,
    /// Number of missing packets that were never requested.
    fresh: usize,
    /// Lower bounds of two times: the oldest loss among the missing packets that were never
    /// requested, and the oldest of the last requests of the other missing packets. These bounds
    /// give the next deadline without a search.
    oldest: [Option<Instant>; 2],
    pub(super) asked: u64,
}

#[derive(Clone, Copy, Debug)]
struct MissingPacket {
    since: Instant,
    asked: Option<Instant>,
}

/// Times that govern requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// Time for which flows can wait for a packet.
    pub(super) wait: Duration,
    pub(super) rtt: Duration,
}

impl Times {
    /// Age at which a packet is requested. The repair arrives a round trip later, and a TCP sender
    /// undoes its window reduction only if the packet arrives before the retransmission.
    fn ask(&self) -> Duration {
        self.wait.min(self.rtt / 4).max(LATE)
    }

    /// Time from one request of a packet to the next.
    fn ask_again(&self) -> Duration {
        self.rtt + self.ask()
    }
}

impl Requests {
    /// Records that packet `seq` is missing for a reason other than congestion.
    pub(super) fn missing(&mut self, now: Instant, seq: Seq) {
        if self.missing.len() == MAX_MISSING {
            return;
        }
        let before = self.missing.insert(seq, MissingPacket { since: now, asked: None });
        // A peer may reuse a number.
        if before.is_none_or(|before| before.asked.is_some()) {
            self.fresh += 1;
            self.oldest[0].get_or_insert(now);
        }
    }

    /// Records that packet `seq` has arrived or was recovered; returns the time for which it was
    /// missing.
    pub(super) fn here(&mut self, now: Instant, seq: Seq) -> Option<Duration> {
        let missing = self.missing.remove(&seq)?;
        self.fresh -= usize::from(missing.asked.is_none());
        Some(now.since(missing.since))
    }

    /// Forgets packets that are too old, or that the decoder has forgotten; returns their number.
    pub(super) fn expire(&mut self, now: Instant, floor: Seq) -> usize {
        let before = self.missing.len();
        self.missing.retain(|&seq, missing| seq >= floor && now.since(missing.since) < MAX_AGE);
        self.fresh = self.missing.values().filter(|missing| missing.asked.is_none()).count();
        self.search();
        before - self.missing.len()
    }

    /// Returns whether no packet is missing.
    pub(super) fn is_empty(&self) -> bool {
        self.missing.is_empty()
    }

    /// Time of the next possible request, if `expected` equations are held or in flight.
    pub(super) fn due(&self, times: Times, expected: usize) -> Option<Instant> {
        let [fresh, asked] = self.oldest;
        let usual = [fresh.map(|at| at + times.ask()), asked.map(|at| at + times.ask_again())];
        // The newest packets of a burst may merely be late.
        let newest = self.missing.last_key_value().map(|(_, missing)| missing.since + LATE);
        let early = newest.filter(|_| self.fresh > expected + EXCESS);
        usual.into_iter().chain([early]).flatten().min()
    }

    /// Makes the bounds in `oldest` exact.
    fn search(&mut self) {
        let fresh = self.missing.values().filter(|of| of.asked.is_none()).map(|of| of.since);
        let asked = self.missing.values().filter_map(|of| of.asked);
        self.oldest = [fresh.min(), asked.min()];
    }

    /// Returns an early request if the expected equations are certain to be too few.
    pub(super) fn ask_early(&mut self, now: Instant, expected: usize) -> Option<Need> {
        let excess = self.fresh.checked_sub(expected).filter(|excess| *excess > EXCESS)?;
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
        self.search();
        let repairs = with_reserve(excess.min(count));
        Some(Need { first, packets: (last - first + 1) as u16, repairs })
    }

    /// First and last of the packets that were never requested; `None` unless there are many of
    /// them.
    pub(super) fn fresh(&self) -> Option<(Seq, Seq)> {
        if self.fresh <= EXCESS {
            return None;
        }
        // In most cases, these packets are the newest.
        let missing = self.missing.iter().rev();
        let mut fresh = missing.filter(|(_, missing)| missing.asked.is_none());
        let (last, _) = fresh.next()?;
        Some((fresh.nth(self.fresh - 2).map_or(*last, |(first, _)| *first), *last))
    }

    /// Returns the next request. `held` returns the number of equations that the decoder holds for
    /// a range of packets. A request never includes a packet for which `is_given_up` returns true:
    /// such a packet is not requested, and while it is missing, repairs of a range that includes it
    /// would be useless.
    pub(super) fn ask(
        &mut self,
        now: Instant,
        times: Times,
        held: impl Fn(Seq, Seq) -> usize,
        is_given_up: impl Fn(Seq) -> bool,
    ) -> Option<Need> {
        let [first, again] = self.oldest;
        let is_due = first.is_some_and(|at| at + times.ask() <= now)
            || again.is_some_and(|at| at + times.ask_again() <= now);
        if !is_due {
            return None;
        }
        let mut due = self.missing.iter_mut().filter(|(_, missing)| missing.due(times) <= now);
        let Some((&first, oldest)) = due.next() else {
            self.search();
            return None;
        };
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
        self.search();
        let repairs = with_reserve(count.saturating_sub(held(first, last)).max(1));
        Some(Need { first, packets: (last - first + 1) as u16, repairs })
    }
}

/// Returns whether `count` packets are too many for one request, or their repairs too much work for
/// the peer in one go.
fn is_too_much(first: Seq, last: Seq, count: usize) -> bool {
    count > MAX_ASKED || (last - first + 1) as usize * count > MAX_WORK
}

/// Adds a reserve for lost repairs: without it, all packets would wait for another round trip.
fn with_reserve(repairs: usize) -> u8 {
    let reserve = if repairs > 2 { repairs.div_ceil(RESERVE) } else { 0 };
    (repairs + reserve).min(usize::from(u8::MAX)) as u8
}

impl MissingPacket {
    fn due(&self, times: Times) -> Instant {
        match self.asked {
            Some(asked) => asked + times.ask_again(),
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
    fn missing_packets_are_requested_once_a_round_trip() {
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
    fn many_missing_packets_take_several_requests() {
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
    fn requests_exclude_packets_that_are_given_up() {
        let mut requests = Requests::default();
        [100, 107, 110].iter().for_each(|&seq| requests.missing(at(0), seq));
        let mut next = || requests.ask(at(25), TIMES, |_, _| 0, |seq| seq == 105);
        assert_eq!(next(), Some(Need { first: 100, packets: 1, repairs: 1 }));
        assert_eq!(next(), Some(Need { first: 107, packets: 4, repairs: 2 }));
        assert_eq!(next(), None);
    }

    #[test]
    fn losses_beyond_the_expected_repairs_are_requested_early() {
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
