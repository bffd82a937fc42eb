//! Copies of packets that are sent after a possible burst of losses has passed.

use std::collections::VecDeque;

use super::section::{COPIES_OVERHEAD, COPY_OVERHEAD};
use crate::fec::Seq;
use crate::time::{Duration, Instant};
use crate::wire::ip::MutableFields;

/// Delays of the copies of a packet: all but the first copy are sent only if losses come in bursts.
/// The first two delays are too short for users to notice, and on most links longer than a burst.
/// The last two are for the longer bursts of links with little traffic; they are still shorter than
/// the sender's retransmission timeout.
const AFTER: [Duration; 4] = [
    Duration::from_millis(5),
    Duration::from_millis(9),
    Duration::from_millis(20),
    Duration::from_millis(45),
];
/// Time by which a copy may be sent early, so that it can share a datagram.
const SLACK: Duration = Duration::from_millis(2);
/// Maximum number of waiting packets; packets beyond this limit are not copied.
const MAX_WAITING: usize = 1_024;
/// Minimum rate of copies in bytes a second (2 Mb/s), whatever the traffic.
const MIN_RATE: f64 = 250_000.0;
/// Size of the token bucket of copies, in bytes.
const MAX_TOKENS: f64 = 125_000.0;
/// Tokens reserved for first copies, in bytes.
const RESERVE: f64 = 62_500.0;

/// Packets whose copies are to be sent.
#[derive(Debug)]
pub(super) struct Copies {
    /// Packets by the number of copies already sent; each queue oldest first.
    waiting: [VecDeque<Waiting>; AFTER.len()],
    /// Packets whose only copy leaves immediately.
    at_once: VecDeque<Waiting>,
    spare: Vec<Vec<u8>>,
    /// Bytes of copies that may be sent now.
    tokens: f64,
    filled: Instant,
}

/// Packet whose copy is to be sent.
#[derive(Debug)]
pub(super) struct Waiting {
    since: Instant,
    pub(super) seq: Seq,
    pub(super) fields: MutableFields,
    pub(super) packet: Vec<u8>,
}

impl Copies {
    pub(super) fn new(now: Instant) -> Self {
        Copies {
            waiting: [const { VecDeque::new() }; AFTER.len()],
            at_once: VecDeque::new(),
            spare: Vec::new(),
            tokens: MAX_TOKENS,
            filled: now,
        }
    }

    /// Counts a sent packet of `len` bytes, which permits copies of `share` times as many bytes.
    pub(super) fn count(&mut self, len: usize, share: f64) {
        self.tokens = (self.tokens + share * len as f64).min(MAX_TOKENS);
    }

    pub(super) fn push(&mut self, now: Instant, seq: Seq, fields: MutableFields, packet: &[u8]) {
        if self.waiting.iter().map(VecDeque::len).sum::<usize>() >= MAX_WAITING {
            return;
        }
        let waiting = self.waiting(now, seq, fields, packet);
        self.waiting[0].push_back(waiting);
    }

    /// Adds a packet whose only copy leaves immediately, whatever the rate of copies.
    pub(super) fn push_at_once(
        &mut self,
        now: Instant,
        seq: Seq,
        fields: MutableFields,
        packet: &[u8],
    ) {
        if self.at_once.len() < MAX_WAITING {
            let waiting = self.waiting(now, seq, fields, packet);
            self.at_once.push_back(waiting);
        }
    }

    fn waiting(
        &mut self,
        since: Instant,
        seq: Seq,
        fields: MutableFields,
        packet: &[u8],
    ) -> Waiting {
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.extend_from_slice(packet);
        Waiting { since, seq, fields, packet: bytes }
    }

    /// Time of the next copy.
    pub(super) fn due(&self) -> Option<Instant> {
        let due = |(queue, after): (&VecDeque<Waiting>, Duration)| {
            queue.front().map(|waiting| waiting.since + after)
        };
        let at_once = self.at_once.front().map(|waiting| waiting.since);
        self.waiting.iter().zip(AFTER).filter_map(due).chain(at_once).min()
    }

    /// Calls `send` with the copies that are due, in groups of consecutive packets with the
    /// same mutable fields that fit `room` bytes. Schedules further copies if losses come in
    /// bursts.
    pub(super) fn leave(
        &mut self,
        now: Instant,
        in_bursts: bool,
        room: usize,
        mut send: impl FnMut(&[Waiting]),
    ) {
        let at_once = self.at_once.make_contiguous();
        send_groups(at_once, room, &mut send);
        for mut waiting in self.at_once.drain(..) {
            waiting.packet.clear();
            self.spare.push(waiting.packet);
        }
        self.fill(now);
        for at in (0..AFTER.len()).rev() {
            let mut leaving = Vec::new();
            take(&mut self.waiting[at], now, AFTER[at], &mut leaving);
            let reserve = if at == 0 { 0.0 } else { RESERVE };
            let tokens = &mut self.tokens;
            leaving.retain(|waiting| {
                let len = waiting.packet.len() as f64;
                let fits = *tokens >= reserve + len;
                *tokens -= if fits { len } else { 0.0 };
                fits
            });
            send_groups(&leaving, room, &mut send);
            for mut waiting in leaving {
                if in_bursts && at + 1 < AFTER.len() {
                    self.waiting[at + 1].push_back(waiting);
                } else {
                    waiting.packet.clear();
                    self.spare.push(waiting.packet);
                }
            }
        }
    }

    /// Takes tokens for a requested copy of `len` bytes; returns whether it may be sent now.
    pub(super) fn take(&mut self, now: Instant, len: usize) -> bool {
        self.fill(now);
        let fits = self.tokens >= len as f64;
        self.tokens -= if fits { len as f64 } else { 0.0 };
        fits
    }

    fn fill(&mut self, now: Instant) {
        let passed = now.since(std::mem::replace(&mut self.filled, now));
        self.tokens = (self.tokens + MIN_RATE * passed.as_secs_f64()).min(MAX_TOKENS);
    }

    /// Frees the spare buffers if no packet waits.
    pub(super) fn tidy(&mut self) {
        if self.waiting.iter().chain([&self.at_once]).all(VecDeque::is_empty) {
            self.spare = Vec::new();
        }
    }

    pub(super) fn memory(&self) -> usize {
        let waiting = self.waiting.iter().chain([&self.at_once]).flatten();
        let waiting = waiting.map(|of| of.packet.capacity());
        waiting.chain(self.spare.iter().map(Vec::capacity)).sum()
    }
}

/// Calls `send` with these packets, in groups of consecutive packets with the same mutable fields
/// that fit `room` bytes.
fn send_groups(mut rest: &[Waiting], room: usize, send: &mut impl FnMut(&[Waiting])) {
    while !rest.is_empty() {
        let (group, tail) = rest.split_at(group(rest, room));
        send(group);
        rest = tail;
    }
}

/// Moves to `leaving` all packets whose copies are due now or within [`SLACK`], but only if the
/// oldest packet's copy is due. A copy is due when the time `after` has passed since its packet.
fn take(queue: &mut VecDeque<Waiting>, now: Instant, after: Duration, leaving: &mut Vec<Waiting>) {
    if queue.front().is_some_and(|of| of.since + after <= now) {
        let many = queue.partition_point(|of| of.since + (after - SLACK) <= now);
        leaving.extend(queue.drain(..many));
    }
}

/// Number of packets at the start of `waiting` that can share a section.
fn group(waiting: &[Waiting], room: usize) -> usize {
    let (mut many, mut bytes) = (1, COPIES_OVERHEAD + COPY_OVERHEAD + waiting[0].packet.len());
    for pair in waiting.windows(2) {
        bytes += COPY_OVERHEAD + pair[1].packet.len();
        if pair[0].seq + 1 != pair[1].seq || pair[0].fields != pair[1].fields || bytes > room {
            break;
        }
        many += 1;
    }
    many
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    fn left(copies: &mut Copies, millis: u64, in_bursts: bool) -> Vec<Vec<Seq>> {
        let mut left = Vec::new();
        copies.leave(at(millis), in_bursts, 1_000, |group| {
            left.push(group.iter().map(|of| of.seq).collect());
        });
        left
    }

    fn push(copies: &mut Copies, millis: u64, seq: Seq) {
        copies.push(at(millis), seq, MutableFields::default(), &[0; 300]);
    }

    #[test]
    fn one_copy_is_sent_and_more_if_losses_come_in_bursts() {
        let mut copies = Copies::new(at(0));
        push(&mut copies, 0, 7);
        assert!(left(&mut copies, 4, true).is_empty());
        assert_eq!((copies.due(), left(&mut copies, 5, true)), (Some(at(5)), vec![vec![7]]));
        push(&mut copies, 6, 8);
        assert_eq!(copies.due(), Some(at(9)));
        assert_eq!(left(&mut copies, 9, false), [[7]]);
        assert_eq!(left(&mut copies, 11, false), [[8]]);
        assert_eq!((copies.due(), left(&mut copies, 50, true)), (None, vec![]));
        push(&mut copies, 100, 9);
        let times = (100..200).filter(|at| !left(&mut copies, *at, true).is_empty());
        assert_eq!(times.collect::<Vec<_>>(), [105, 109, 120, 145]);
    }

    #[test]
    fn a_duplicate_leaves_immediately_and_only_once() {
        let mut copies = Copies::new(at(0));
        for seq in [7, 8, 20] {
            copies.push_at_once(at(3), seq, MutableFields::default(), &[0; 300]);
        }
        copies.tokens = 0.0;
        assert_eq!(
            (copies.due(), left(&mut copies, 3, true)),
            (Some(at(3)), vec![vec![7, 8], vec![20]])
        );
        assert_eq!((copies.due(), left(&mut copies, 60, true)), (None, vec![]));
    }

    #[test]
    fn consecutive_packets_share_a_section_if_they_fit() {
        let mut copies = Copies::new(at(0));
        (1..=4).for_each(|seq| push(&mut copies, seq / 3, seq));
        push(&mut copies, 2, 9);
        push(&mut copies, 3, 10);
        assert_eq!(left(&mut copies, 5, false), [vec![1, 2, 3], vec![4], vec![9]]);
    }

    #[test]
    fn copies_are_bounded_by_rate_and_share() {
        let mut copies = Copies::new(at(0));
        let mut run = |share: f64| {
            let mut count = 0;
            for n in 0..10_000 {
                copies.count(1_000, share);
                copies.push(at(n), n + 1, MutableFields::default(), &[0; 1_000]);
                copies.leave(at(n), false, 1_000, |group| count += group.len());
            }
            (copies.tokens, copies.filled) = (0.0, at(0));
            copies.waiting[0].clear();
            count
        };
        assert!((2_500..2_700).contains(&run(0.0)), "250 kB a second");
        assert!((4_400..4_600).contains(&run(0.2)));
        assert!(copies.memory() < 200_000);
    }
}
