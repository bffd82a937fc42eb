//! Loss detection by time: properties of the path, and the timers derived from them.
//!
//! ```text
//!   arrivals ─▶ round trip, reordering ─▶ set_timers ─▶ poll_expired: Reorder, Probe,
//!   asks, held trickles ──────────────────────┘                       Repeat, Restart
//! ```

use super::asks::Asks;
use super::repeat::Repeat;
use super::round_trip::Trips;
use crate::time::Instant;
use crate::timers::TimerTable;

/// Maximum number of packets that a single trickle has in flight. Up to this many held trickles are
/// treated like a single one.
const FEW: usize = 2;

/// Timers of a client. If several have expired, they fire in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// A missing packet, for which later ones wait, is given up.
    Reorder,
    /// Tail probe: a held trickle asks again for data that may be lost.
    Probe,
    /// The last request is sent again.
    Repeat,
    /// Retransmission timeout: an answer, or a repair, is overdue.
    Restart,
}

/// State of the loss detection.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    timers: TimerTable<Timer>,
    pub(super) trips: Trips,
    pub(super) repeat: Repeat,
    /// Number of restarts, or of transmissions of the first request, since the last arrival.
    pub(super) attempts: u32,
    /// True if the next message is a restart, or repeats the first request.
    pub(super) restart_is_due: bool,
    /// True if a probe was sent since the last arrival.
    is_probed: bool,
    /// True if trickles wait for repairs, and no other packet is expected.
    is_stuck: bool,
    /// The missing packet that [`Timer::Reorder`] gives up.
    missing: Option<u64>,
    /// Time of the last arrival, or of the request that ended an idle period.
    pub(super) heard: Instant,
    /// Time at which the connection was opened.
    opened: Instant,
    /// Highest number of a packet that has arrived, not counting repairs.
    highest: u64,
    /// Send time of the latest request that was answered.
    answered: Instant,
}

impl Recovery {
    /// State of a connection that is opened at `now`. Its first request is due immediately.
    pub(super) fn new(now: Instant) -> Recovery {
        let mut recovery =
            Recovery { heard: now, opened: now, answered: now, ..Recovery::default() };
        recovery.timers.set(Timer::Restart, now);
        recovery
    }

    /// Deadline of the earliest timer, if any.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next_deadline()
    }

    /// The next timer that has expired; `None` if there is none.
    pub(super) fn poll_expired(&mut self, now: Instant) -> Option<Timer> {
        let timer = self.timers.poll_expired(now)?;
        match timer {
            Timer::Reorder => self.missing = None,
            Timer::Probe => self.is_probed = true,
            Timer::Repeat => {}
            Timer::Restart => self.restart_is_due = true,
        }
        Some(timer)
    }

    /// Sets the timeout for the answer to a first request, an echo or a restart.
    pub(super) fn await_answer(&mut self, now: Instant) {
        self.timers.set(Timer::Restart, now + self.trips.wait(self.attempts));
    }

    /// Stops the retransmission timer, because no answer is expected.
    pub(super) fn stop_restart(&mut self) {
        self.timers.stop(Timer::Restart);
    }

    /// Records the arrival of a new packet.
    pub(super) fn hear(&mut self, now: Instant) {
        self.heard = now;
        self.attempts = 0;
        self.is_probed = false;
    }

    /// Records the arrival of an address token.
    pub(super) fn hear_token(&mut self, now: Instant) {
        self.trips.first.get_or_insert(now.since(self.opened));
        self.hear(now);
        self.stop_restart();
    }

    /// Records the number of a packet that arrived, other than a repair.
    pub(super) fn note_number(&mut self, number: u64) {
        if number < self.highest {
            self.trips.is_uneven = true;
        }
        self.highest = self.highest.max(number);
    }

    /// Records that the request sent at `sent` was answered.
    pub(super) fn note_answer(&mut self, sent: Instant) {
        self.answered = self.answered.max(sent);
    }

    /// Like [`Recovery::note_answer`], for a packet that yields a round-trip sample.
    pub(super) fn measure(&mut self, now: Instant, sent: Instant) {
        self.note_answer(sent);
        if self.repeat.is_plain(sent) {
            self.trips.measure(now.since(sent));
            self.repeat.count = 0;
        }
    }

    /// Returns the last request, to be sent again, and sets the timer of the next repetition.
    pub(super) fn take_repetition(&mut self, now: Instant, asks: &Asks) -> Vec<u8> {
        let message = self.repeat.take(now);
        self.timers.set(Timer::Repeat, self.repeat_due(asks));
        message
    }

    /// Sets the missing packet that later ones wait for, if any.
    pub(super) fn wait_for(&mut self, now: Instant, missing: Option<u64>) {
        self.is_stuck = false;
        if self.missing != missing {
            let until = now + self.trips.reorder_timeout();
            self.missing = missing;
            self.timers.set(Timer::Reorder, missing.map(|_| until));
        }
    }

    /// Determines whether several of the `held` trickles wait for repairs, and nothing else is
    /// expected. In this case packets that were requested after the repairs have arrived, so the
    /// repairs are lost. The restart then waits only until [`Recovery::repeat_time`], because
    /// packets are not reordered by more than that (RFC 8985, 6.2).
    pub(super) fn check_stuck(&mut self, asks: &Asks, held: usize) {
        let waits = asks.is_wanting() || asks.in_flight() > 0;
        self.is_stuck = waits && asks.are_repairs() && held > FEW && self.attempts == 0;
    }

    /// Sets all timers except [`Timer::Reorder`].
    pub(super) fn set_timers(&mut self, asks: &mut Asks, is_holding: bool, is_idle: bool) {
        let wait = self.trips.wait(self.attempts);
        let repair = asks.oldest_again().map(|sent| sent + wait);
        // Bytes may be wanted when no trickle is left to request them, or only trickles that wait
        // for repairs. So the timer is set even if nothing is in flight.
        let answer = (!is_idle).then(|| self.heard + wait);
        let answer = self.is_stuck.then(|| self.repeat_time()).flatten().or(answer);
        self.timers.set(Timer::Restart, [repair, answer].into_iter().flatten().min());
        self.timers.set(Timer::Repeat, self.repeat_due(asks));
        self.timers.set(Timer::Probe, self.probe_due(asks, is_holding));
    }

    /// Time of a tail probe. A probe is needed if a trickle is held while packets are in flight and
    /// nothing else is wanted, because then no later packet would show that the last ones are lost.
    fn probe_due(&self, asks: &mut Asks, is_holding: bool) -> Option<Instant> {
        let is_tail = is_holding && !asks.is_wanting() && asks.in_flight() > 0;
        if !is_tail || self.is_probed || self.attempts > 0 {
            return None;
        }
        let sent = asks.first_wanted()?;
        let wait = self.trips.probe()?;
        let passed = self.trips.overtakes(self.answered, sent);
        // The round trip may have grown, so the probe is not sent soon after an arrival.
        Some(if passed { self.heard } else { (sent + wait).max(self.heard + wait / 8) })
    }

    /// Time at which the last request is sent again if packets are in flight and none arrives.
    fn repeat_due(&self, asks: &Asks) -> Option<Instant> {
        // With a single trickle in flight, as most clients have under congestion, the
        // retransmission timeout is as good as a repetition (RFC 8985, 7.2).
        let waits = asks.in_flight() > FEW && self.attempts == 0 && !self.is_stuck;
        waits.then(|| self.repeat_time()).flatten()
    }

    fn repeat_time(&self) -> Option<Instant> {
        self.repeat.due(self.heard, self.trips.repeat()?)
    }

    /// Drops the state of requests in flight, because no further packet of the current generation
    /// will arrive.
    pub(super) fn forget_flight(&mut self) {
        self.repeat.forget();
        self.missing = None;
        for timer in [Timer::Reorder, Timer::Probe, Timer::Repeat] {
            self.timers.stop(timer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn the_first_request_is_due_immediately_and_repetitions_back_off() {
        let mut recovery = Recovery::new(at(5));
        assert_eq!(recovery.poll_timeout(), Some(at(5)));
        assert_eq!(recovery.poll_expired(at(5)), Some(Timer::Restart));
        assert!(recovery.restart_is_due && recovery.poll_timeout().is_none());
        for (attempt, millis) in [(1, 1_005), (2, 2_005), (3, 4_005)] {
            recovery.await_answer(at(5));
            recovery.attempts += 1;
            assert_eq!((recovery.attempts, recovery.poll_timeout()), (attempt, Some(at(millis))));
        }
        recovery.hear_token(at(100));
        assert_eq!((recovery.attempts, recovery.poll_timeout()), (0, None));
    }

    #[test]
    fn a_missing_packet_is_given_up_once_however_often_it_is_missed() {
        let mut recovery = Recovery::new(at(0));
        recovery.stop_restart();
        recovery.measure(at(100), at(0));
        recovery.wait_for(at(100), Some(7));
        recovery.wait_for(at(110), Some(7));
        assert_eq!(recovery.poll_timeout(), Some(at(125)), "a quarter of the round trip");
        assert_eq!(recovery.poll_expired(at(125)), Some(Timer::Reorder));
        assert_eq!(recovery.poll_expired(at(125)), None);
        recovery.wait_for(at(130), Some(9));
        recovery.wait_for(at(130), None);
        assert_eq!(recovery.poll_timeout(), None);
    }
}
