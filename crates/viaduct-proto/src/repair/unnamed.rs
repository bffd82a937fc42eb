//! Packet numbers whose names were lost, and are to be requested.

use std::collections::VecDeque;

use super::names::APART_TIME;
use super::section::{MAX_NAMES, Need};
use crate::fec::Seq;
use crate::time::{Duration, Instant};

/// Time in which names may be repeated without a request.
const REPEATED: Duration = APART_TIME;
/// Age at which names become useless.
const MAX_AGE: Duration = Duration::from_secs(1);
/// Maximum number of remembered ranges.
const MAX_RANGES: usize = 32;

/// Ranges of numbers without names, oldest first.
#[derive(Debug, Default)]
pub(super) struct Unnamed {
    ranges: VecDeque<Range>,
}

/// Range of numbers for one request.
#[derive(Clone, Copy, Debug)]
struct Range {
    first: Seq,
    last: Seq,
    since: Instant,
    asked: Option<Instant>,
}

impl Unnamed {
    /// Records that the numbers from `first` to `last` were not named.
    pub(super) fn passed(&mut self, now: Instant, first: Seq, last: Seq) {
        let mut begin = first;
        while begin <= last && self.ranges.len() < MAX_RANGES {
            let end = last.min(begin + MAX_NAMES as u64 - 1);
            self.ranges.push_back(Range { first: begin, last: end, since: now, asked: None });
            begin = end + 1;
        }
    }

    /// Returns whether no name is missing.
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Time of the next request, over a path of the given round-trip time.
    pub(super) fn due(&self, rtt: Duration) -> Option<Instant> {
        self.ranges.iter().map(|range| range.due(rtt)).min()
    }

    /// Returns the next request. `is_named` returns whether a number has been named in the
    /// meantime.
    pub(super) fn ask(
        &mut self,
        now: Instant,
        rtt: Duration,
        is_named: impl Fn(Seq) -> bool,
    ) -> Option<Need> {
        self.ranges.retain(|range| {
            let is_wanted = (range.first..=range.last).any(|seq| !is_named(seq));
            is_wanted && now.since(range.since) < MAX_AGE
        });
        let range = self.ranges.iter_mut().find(|range| range.due(rtt) <= now)?;
        range.asked = Some(now);
        let packets = (range.last - range.first + 1) as u16;
        Some(Need { first: range.first, packets, repairs: 0 })
    }
}

impl Range {
    fn due(&self, rtt: Duration) -> Instant {
        let again = (rtt * 3 / 2).max(REPEATED);
        self.asked.map_or(self.since + REPEATED, |asked| asked + again)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_names_are_requested_until_they_arrive_or_expire() {
        let at = |millis| Instant::ZERO + Duration::from_millis(millis);
        let rtt = Duration::from_millis(100);
        let mut unnamed = Unnamed::default();
        unnamed.passed(at(0), 11, 210);
        assert_eq!((unnamed.due(rtt), unnamed.ask(at(9), rtt, |_| false)), (Some(at(10)), None));
        let first = unnamed.ask(at(10), rtt, |_| false);
        assert_eq!(first, Some(Need { first: 11, packets: 128, repairs: 0 }));
        let second = unnamed.ask(at(10), rtt, |_| false);
        assert_eq!(second, Some(Need { first: 139, packets: 72, repairs: 0 }));
        assert_eq!(unnamed.ask(at(10), rtt, |_| false), None);
        let again = unnamed.ask(at(160), rtt, |seq| seq < 139).unwrap();
        assert_eq!(again.first, 139, "the others are named");
        assert_eq!((unnamed.ask(at(1_000), rtt, |_| false), unnamed.due(rtt)), (None, None));
    }
}
