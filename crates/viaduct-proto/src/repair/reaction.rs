//! Reaction of a TCP sender to losses.
//!
//! Repairs help senders that slow down when a packet is lost. A sender that does not slow down,
//! such as BBR, only loses the capacity that repairs take. The two kinds of senders differ in the
//! bytes in flight after a loss: the first kind reduces them by a third, the second does not reduce
//! them. While repairs hide all losses, no reaction is seen; but BBR also drains the path every few
//! seconds, without a preceding loss. The flow of a sender that drains the path gets no repairs for
//! a trial period, until a few losses have shown its reaction.
//!
//! ```text
//!   in flight  ──────────┐    ┌─────────────     drained, then full again: no repairs, on trial
//!                        └────┘        ×    ×    lost, but as much in flight: no repairs
//! ```

use crate::time::{Duration, Instant};
use crate::wire::tcp_sack::Acknowledged;
use crate::wire::transport::Segment;

/// Share of the bytes in flight before a loss below which a sender has slowed down.
const SLOWED: f64 = 0.9;
/// Number of round trips after a loss before the sender's reaction is evaluated.
const JUDGED: u32 = 3;
/// Number of losses without a reaction after which a flow gets no repairs; each loss with a
/// reaction reduces the count by two.
const ENOUGH: u32 = 3;
/// Maximum of the count of losses without a reaction.
const MAX_CALM: u32 = 6;
/// Growth of the bytes in flight per round trip at which a sender is in slow start: a loss then has
/// no effect on these bytes, or ends the slow start.
const STARTS: f64 = 1.2;
/// Minimum number of bytes in flight for which a sender's reaction is evaluated.
const MIN_FLIGHT: f64 = 65_536.0;
/// Bytes in flight up to which the path counts as drained: a share of the usual bytes in flight, or
/// an absolute number of bytes, whichever is more.
const DRAINED: f64 = 0.125;
const DRAINED_BYTES: f64 = 12_000.0;
/// Minimum duration of a drain.
const DRAINS: Duration = Duration::from_millis(150);
/// Number of round trips without retransmissions that must precede a drain.
const QUIET: u32 = 4;
/// Maximum duration of a trial. The trial ends earlier once losses have shown the sender's
/// reaction.
const TRIAL: Duration = Duration::from_secs(10);
/// Time until the next trial of a sender that has slowed down; doubled each time.
const BACKOFF: Duration = Duration::from_secs(60);
/// Maximum time until the next trial.
const MAX_BACKOFF: Duration = Duration::from_secs(3_600);

/// State of one TCP sender.
#[derive(Debug, Default)]
pub(super) struct Reaction {
    /// Sequence number after the last byte sent.
    sent: u32,
    /// Sequence number after the last byte that has arrived, even if bytes before it are missing.
    /// Cumulative acknowledgements would overstate the bytes in flight for the round trip or two
    /// until missing segments are retransmitted.
    acknowledged: u32,
    /// Start of the averaging of the bytes in flight.
    since: Instant,
    /// Sum of the samples of the bytes in flight since then.
    sum: f64,
    /// Number of samples in `sum`.
    looks: f64,
    /// Mean bytes in flight in the last round trip.
    last: f64,
    /// Mean bytes in flight in the round trip before the last.
    before: f64,
    /// Moving average of the bytes in flight over many round trips.
    steady: f64,
    /// Loss that the sender has detected, and to which its reaction has not been evaluated yet.
    lost: Option<Loss>,
    /// Time of the last retransmission.
    again: Option<Instant>,
    /// Start of the current drain.
    drained: Option<Instant>,
    /// Number of losses without a reaction, minus twice the number of losses with a reaction.
    calm: u32,
    is_insensitive: bool,
    trial: Option<Instant>,
    next_trial: Instant,
    backoff: Duration,
}

/// Loss that the sender has detected.
#[derive(Clone, Copy, Debug)]
struct Loss {
    at: Instant,
    /// Sequence number of the first retransmission.
    sequence: u32,
    /// Bytes in flight in the round trip before the loss.
    before: f64,
}

impl Reaction {
    pub(super) fn new(now: Instant, first: &Segment) -> Self {
        Reaction {
            sent: first.sequence,
            acknowledged: first.sequence,
            since: now,
            next_trial: now,
            backoff: BACKOFF,
            ..Reaction::default()
        }
    }

    /// Returns whether the flow gets no repairs: its sender does not slow down on losses, or a
    /// trial is under way.
    pub(super) fn is_left_alone(&self) -> bool {
        self.is_insensitive || self.trial.is_some()
    }

    pub(super) fn sends(&mut self, now: Instant, segment: &Segment, rtt: Duration) {
        let end = segment.sequence.wrapping_add(segment.data);
        if end.wrapping_sub(self.sent).cast_signed() > 0 {
            self.sent = end;
        } else if segment.data > 0 {
            self.again = Some(now);
            let is_steady = self.last >= MIN_FLIGHT && self.last < STARTS * self.before;
            if self.lost.is_none() && is_steady {
                self.lost = Some(Loss { at: now, sequence: segment.sequence, before: self.last });
            }
        }
        self.look(now, rtt);
    }

    /// Handles an acknowledgement. A retransmission that a DSACK reports as duplicate was not
    /// caused by a loss, and the sender may have undone its reduction.
    pub(super) fn hears(
        &mut self,
        now: Instant,
        Acknowledged { highest, twice }: Acknowledged,
        rtt: Duration,
    ) {
        if highest.wrapping_sub(self.acknowledged).cast_signed() > 0 {
            self.acknowledged = highest;
        }
        self.lost = self.lost.filter(|lost| {
            twice.is_none_or(|(left, right)| {
                lost.sequence.wrapping_sub(left) >= right.wrapping_sub(left)
            })
        });
        self.look(now, rtt);
    }

    fn look(&mut self, now: Instant, rtt: Duration) {
        let flight = self.sent.wrapping_sub(self.acknowledged).cast_signed().max(0);
        let flight = f64::from(flight);
        self.sum += flight;
        self.looks += 1.0;
        if now.since(self.since) >= rtt {
            self.before = std::mem::replace(&mut self.last, self.sum / self.looks);
            let weight = if self.steady > 0.0 { 0.1 } else { 1.0 };
            self.steady += weight * (self.last - self.steady);
            (self.since, self.sum, self.looks) = (now, 0.0, 0.0);
        }
        self.judge(now, rtt);
        self.look_for_drain(now, flight, rtt);
        if self.trial.is_some_and(|since| now.since(since) > TRIAL) {
            self.trial = None;
        }
    }

    fn judge(&mut self, now: Instant, rtt: Duration) {
        let Some(lost) = self.lost.take_if(|lost| now.since(lost.at) >= rtt * JUDGED) else {
            return;
        };
        if self.last >= SLOWED * lost.before {
            self.calm = (self.calm + 1).min(MAX_CALM);
            if self.calm >= ENOUGH {
                (self.is_insensitive, self.trial) = (true, None);
            }
            return;
        }
        self.calm = self.calm.saturating_sub(2);
        if self.trial.take().is_some() || self.is_insensitive && self.calm == 0 {
            self.is_insensitive = false;
            self.next_trial = now + self.backoff;
            self.backoff = (self.backoff * 2).min(MAX_BACKOFF);
        }
    }

    /// Starts a trial if the path was drained without a preceding loss and is at least half full
    /// again. A path without any bytes in flight was not drained: the sender had no data.
    fn look_for_drain(&mut self, now: Instant, flight: f64, rtt: Duration) {
        if self.steady < MIN_FLIGHT || flight <= 0.0 {
            self.drained = None;
        } else if flight <= (DRAINED * self.steady).max(DRAINED_BYTES) {
            self.drained.get_or_insert(now);
        } else if flight >= self.steady / 2.0
            && let Some(since) = self.drained.take()
        {
            let was_quiet = self.again.is_none_or(|at| at + rtt * QUIET < since);
            let long = now.since(since);
            if (DRAINS..DRAINS + rtt * 6).contains(&long) && was_quiet && now >= self.next_trial {
                self.trial = Some(now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(100);
    const MSS: u32 = 1_000;

    /// Sender with a given number of bytes in flight, and the clock.
    struct Sender {
        reaction: Reaction,
        now: Instant,
        next: u32,
        acknowledged: u32,
    }

    fn segment(sequence: u32, acknowledgement: u32, data: u32) -> Segment {
        Segment::test(sequence, acknowledgement, data)
    }

    /// Acknowledgement of all bytes before `highest`, with a DSACK of the segment at `twice`, if
    /// any.
    fn all(highest: u32, twice: Option<u32>) -> Acknowledged {
        Acknowledged { highest, twice: twice.map(|left| (left, left + MSS)) }
    }

    impl Sender {
        fn new() -> Sender {
            let reaction = Reaction::new(Instant::ZERO, &segment(0, 0, 0));
            Sender { reaction, now: Instant::ZERO, next: 0, acknowledged: 0 }
        }

        /// Keeps `flight` bytes in flight for `millis` milliseconds: each millisecond some bytes
        /// are acknowledged, and new bytes are sent.
        fn run(&mut self, millis: u64, flight: u32) {
            for _ in 0..millis {
                self.now += Duration::from_millis(1);
                let outstanding = self.next - self.acknowledged;
                // 1 % of the bytes in flight is acknowledged each millisecond.
                self.acknowledged += (outstanding / 100).max(outstanding.min(MSS));
                self.reaction.hears(self.now, all(self.acknowledged, None), RTT);
                while self.next - self.acknowledged + MSS <= flight {
                    self.reaction.sends(self.now, &segment(self.next, 0, MSS), RTT);
                    self.next += MSS;
                }
            }
        }

        fn lose(&mut self) {
            let again = segment(self.acknowledged, 0, MSS);
            self.reaction.sends(self.now, &again, RTT);
        }
    }

    #[test]
    fn a_sender_that_does_not_slow_down_is_left_alone() {
        let mut sender = Sender::new();
        sender.run(1_000, 400_000);
        for n in 0..3 {
            assert!(!sender.reaction.is_left_alone(), "{n}");
            sender.lose();
            sender.run(1_000, 400_000);
        }
        assert!(sender.reaction.is_left_alone());
        for flight in [280_000, 196_000] {
            assert!(sender.reaction.is_left_alone());
            sender.lose();
            sender.run(1_000, flight);
        }
        assert!(!sender.reaction.is_left_alone(), "the sender slows down now");
    }

    #[test]
    fn a_sender_in_slow_start_is_not_left_alone() {
        let mut sender = Sender::new();
        for n in 0..8 {
            sender.run(100, 70_000 << n);
            sender.lose();
            assert!(!sender.reaction.is_left_alone(), "{n}");
        }
    }

    #[test]
    fn a_sender_that_slows_down_is_protected() {
        let mut sender = Sender::new();
        sender.run(1_000, 400_000);
        for flight in [280_000, 196_000, 137_000, 96_000] {
            sender.lose();
            sender.run(1_000, flight);
            assert!(!sender.reaction.is_left_alone());
        }
    }

    #[test]
    fn a_sender_that_drains_the_path_gets_a_trial() {
        let mut sender = Sender::new();
        sender.run(2_000, 400_000);
        sender.run(500, 4_000);
        sender.run(200, 400_000);
        assert!(sender.reaction.is_left_alone());
        sender.run(300, 400_000);
        sender.lose();
        sender.run(1_000, 280_000);
        assert!(!sender.reaction.is_left_alone(), "the sender slows down");
        sender.run(500, 4_000);
        sender.run(200, 280_000);
        assert!(!sender.reaction.is_left_alone(), "no second trial so soon");
    }

    #[test]
    fn after_timeouts_and_spurious_retransmissions_a_sender_is_still_protected() {
        let mut sender = Sender::new();
        sender.run(2_000, 400_000);
        sender.lose();
        sender.run(500, 4_000);
        sender.run(200, 400_000);
        assert!(!sender.reaction.is_left_alone());
        for _ in 0..5 {
            let lost = sender.acknowledged;
            sender.lose();
            let twice = all(sender.acknowledged, Some(lost));
            sender.reaction.hears(sender.now, twice, RTT);
            sender.run(1_000, 400_000);
        }
        assert!(!sender.reaction.is_left_alone());
        for _ in 0..3 {
            sender.lose();
            let other = all(sender.acknowledged, Some(sender.acknowledged + MSS));
            sender.reaction.hears(sender.now, other, RTT);
            sender.run(1_000, 400_000);
        }
        assert!(sender.reaction.is_left_alone(), "the DSACK was for another segment");
    }
}
