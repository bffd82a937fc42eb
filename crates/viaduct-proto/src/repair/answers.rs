//! Requested repairs that leave over a path other than that of their packets.
//!
//! A path that dies loses all packets of a round trip or more. If repairs of all these packets left
//! immediately, they would fill the queue of the other path, and delay its packets and the copies
//! of latency-sensitive packets. The repairs are therefore spread over time, at a share of the
//! packet rate:
//!
//! ```text
//!   requested  ▇▇▇▇▇▇▇▇▇▇           ▇ repairs of 1,500 bytes, at the permitted rate
//!   sent       ▇ ▇ ▇ ▇ ▇ ▇ ▇ ▇ ▇ ▇ ─▶ time
//! ```

use std::collections::VecDeque;

use super::allowance::Allowance;
use super::section::Need;
use crate::fec::Seq;
use crate::time::{Duration, Instant};

/// Interval at which repairs leave.
const EVERY: Duration = Duration::from_millis(2);
/// Age at which a request expires: the peer has forgotten the missing packets by then.
const MAX_AGE: Duration = Duration::from_secs(1);
/// Maximum number of waiting requests; the peer repeats requests beyond this limit.
const MAX_WAITING: usize = 64;
/// Minimum rate of repairs in bytes a second (2 Mb/s), whatever the traffic.
const MIN_RATE: f64 = 250_000.0;
/// Assumed length of a repair, in bytes.
const LENGTH: usize = 1_500;

/// Requests that wait for their turn, oldest first.
#[derive(Debug)]
pub(super) struct Answers {
    waiting: VecDeque<Answer>,
    allowance: Allowance,
    /// Time at which the next repairs leave.
    pub(super) due: Option<Instant>,
}

/// Unanswered part of a request.
#[derive(Debug)]
struct Answer {
    since: Instant,
    first: Seq,
    last: Seq,
    /// True if all packets of the range are missing.
    is_whole: bool,
    /// Number of repairs to send.
    left: usize,
}

impl Answers {
    pub(super) fn new(now: Instant) -> Self {
        let allowance = Allowance::new(now, Some(MIN_RATE));
        Answers { waiting: VecDeque::new(), allowance, due: None }
    }

    /// Sets the rate, in repairs a second.
    pub(super) fn set_rate(&mut self, repairs: f64) {
        self.allowance.rate = Some((repairs * LENGTH as f64).max(MIN_RATE));
    }

    /// Queues `count` repairs for a request, unless it overlaps a waiting request or too many
    /// requests wait. Returns whether the repairs are queued.
    pub(super) fn push(&mut self, now: Instant, need: Need, count: usize) -> bool {
        let (first, last, is_whole) = (need.first, need.last(), need.is_whole());
        let mut waiting = self.waiting.iter();
        let is_new = waiting.all(|of| last < of.first || of.last < first);
        let is_added = is_new && self.waiting.len() < MAX_WAITING;
        if is_added {
            self.waiting.push_back(Answer { since: now, first, last, is_whole, left: count });
            self.due.get_or_insert(now);
        }
        is_added
    }

    /// Calls `send` with the first and the last packet of each repair that leaves now. If all
    /// packets of a range are missing, each packet is sent by itself: its recovery then depends on
    /// no other repair, and no packets have to be combined.
    pub(super) fn leave(&mut self, now: Instant, mut send: impl FnMut(Seq, Seq)) {
        if self.due.is_none_or(|due| now < due) {
            return;
        }
        while let Some(of) = self.waiting.front_mut() {
            if of.left == 0 || of.first > of.last || now.since(of.since) >= MAX_AGE {
                self.waiting.pop_front();
                continue;
            }
            if !self.allowance.take(now, LENGTH) {
                break;
            }
            let (first, last) = (of.first, if of.is_whole { of.first } else { of.last });
            send(first, last);
            of.first += u64::from(of.is_whole);
            of.left -= 1;
        }
        self.due = (!self.waiting.is_empty()).then_some(now + EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    fn need(first: Seq, packets: u16, repairs: u8) -> Need {
        Need { first, packets, repairs }
    }

    fn left(answers: &mut Answers, millis: u64) -> Vec<(Seq, Seq)> {
        let mut left = Vec::new();
        answers.leave(at(millis), |first, last| left.push((first, last)));
        left
    }

    #[test]
    fn a_range_of_missing_packets_is_sent_packet_by_packet_at_the_rate() {
        let mut answers = Answers::new(at(0));
        answers.set_rate(1_000.0);
        assert!(answers.push(at(1_000), need(100, 200, 220), 220));
        assert!(!answers.push(at(1_001), need(150, 10, 11), 11), "these packets wait already");
        let mut sent = Vec::new();
        while let Some(due) = answers.due {
            let millis = due.since(at(0)).as_millis() as u64;
            let now = left(&mut answers, millis);
            assert!(now.len() <= if sent.is_empty() { 20 } else { 2 }, "{now:?} after {millis} ms");
            sent.extend(now);
            assert!((1_000..1_200).contains(&millis));
        }
        assert_eq!(sent, (100..300).map(|seq| (seq, seq)).collect::<Vec<_>>());
    }

    #[test]
    fn repairs_of_a_range_with_few_missing_packets_are_combined() {
        let mut answers = Answers::new(at(0));
        answers.push(at(1_000), need(100, 11, 2), 2);
        assert_eq!(left(&mut answers, 1_000), [(100, 110), (100, 110)]);
        assert_eq!(answers.due, None);
    }

    #[test]
    fn requests_expire() {
        let mut answers = Answers::new(at(0));
        answers.push(at(0), need(1, 200, 220), 200);
        let first = left(&mut answers, 900).len();
        assert!((1..10).contains(&first));
        assert!(left(&mut answers, 1_000).is_empty() && answers.due.is_none());
    }
}
