//! Prober of one path to a peer: when to probe it, whether it is up, its round-trip time and its
//! loss.
//!
//! ```text
//!          every interval              no answer in time: again, at once
//!   up ───────────────────▶ probe ───────────────────────────────────────▶ … `lost` in a row: down
//!    ▲                                                                        │ every interval
//!    └──────────── `back` answers in a row, more after each recent failure ───┘
//! ```

use std::collections::VecDeque;

use crate::time::{Duration, Instant};

/// Schedule of a path's probes, and the conditions under which the path goes down and up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Interval between probes while none is lost.
    pub interval: Duration,
    /// Timeout of an answer: this time, or twice the path's round-trip time if that is longer.
    pub timeout: Duration,
    /// Number of consecutive unanswered probes after which the path is down.
    pub lost: u32,
    /// Number of consecutive answers after which the path is up again. It doubles each time that
    /// the path fails within a minute of coming up, to at most 32.
    pub back: u32,
}

impl Default for Timing {
    /// Detects a failure after at most 0.55 + 4 × 0.25 s if the round-trip time is short.
    fn default() -> Self {
        Timing {
            interval: Duration::from_millis(500),
            timeout: Duration::from_millis(250),
            lost: 4,
            back: 3,
        }
    }
}

/// Number of probes over which loss is averaged.
const MEMORY: usize = 100;
/// Maximum number of pending probes. Answers to older ones are ignored.
const WAITING: usize = 16;
/// A path that fails again within this time needs more answers to be up again.
const SOON: Duration = Duration::from_secs(60);
/// Maximum number of answers that a path needs to be up again.
const MAX_BACK: u32 = 32;
/// Weight of a new round-trip time in the average (RON: 0.1).
const WEIGHT: f64 = 0.125;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    /// No answer has arrived, and the path has not failed yet.
    #[default]
    New,
    Up,
    Down,
}

#[derive(Default)]
pub(super) struct Prober {
    pub(super) timing: Timing,
    pub(super) state: State,
    /// Nonces of pending probes, and the times at which they were sent.
    waiting: VecDeque<(u64, Instant)>,
    /// Time by which an answer is due; `None` if no answer is awaited.
    due: Option<Instant>,
    next: Instant,
    /// True if a probe must be sent immediately, even if others are pending.
    urgent: bool,
    misses: u32,
    hits: u32,
    back: u32,
    up_since: Instant,
    /// Average round-trip time; `None` before the first answer.
    pub(super) rtt: Option<Duration>,
    pub(super) last_answer: Option<Instant>,
    results: VecDeque<bool>,
}

impl Prober {
    pub(super) fn new(timing: Timing, now: Instant) -> Prober {
        Prober { timing, next: now, back: timing.back, up_since: now, ..Prober::default() }
    }

    /// Share of the last probes that was lost.
    pub(super) fn loss(&self) -> f64 {
        let lost = self.results.iter().filter(|answered| !**answered).count();
        lost as f64 / self.results.len().max(1) as f64
    }

    /// Number of probes over which the loss is computed.
    pub(super) fn counted(&self) -> usize {
        self.results.len()
    }

    /// Time of the next timer.
    pub(super) fn deadline(&self) -> Instant {
        if self.urgent { Instant::ZERO } else { self.due.unwrap_or(self.next) }
    }

    /// Requests an immediate probe, because the peer should learn of a change.
    pub(super) fn hurry(&mut self) {
        self.urgent = true;
    }

    /// Handles the timeout of a probe. Returns whether the state has changed.
    pub(super) fn look(&mut self, now: Instant) -> bool {
        if self.due.is_none_or(|due| now < due) {
            return false;
        }
        self.due = None;
        self.misses += 1;
        self.hits = 0;
        self.count(false);
        if self.state != State::Down {
            self.next = now;
        }
        let fails = self.state != State::Down && self.misses >= self.timing.lost;
        if fails {
            let soon = self.state == State::Up && now < self.up_since + SOON;
            self.back = if soon { (self.back * 2).min(MAX_BACK) } else { self.timing.back };
            self.state = State::Down;
            self.next = now + self.timing.interval;
        }
        fails
    }

    /// Returns whether a probe is to be sent now, and remembers its `nonce` if so. `early`, 0 to 1,
    /// puts the next probe 1.1 to 0.9 intervals from now, so that nodes do not probe in lockstep.
    pub(super) fn probes(&mut self, now: Instant, nonce: u64, early: f64) -> bool {
        let due = self.due.is_none() && now >= self.next;
        if !due && !std::mem::take(&mut self.urgent) {
            return false;
        }
        self.urgent = false;
        self.waiting.push_back((nonce, now));
        if self.waiting.len() > WAITING {
            self.waiting.pop_front();
        }
        self.due = self.due.or(Some(now + self.probe_timeout()));
        self.next = now + self.timing.interval.mul_f64(1.1 - early.clamp(0.0, 1.0) / 5.0);
        true
    }

    /// Processes an answer; returns whether the state changed, `None` if no pending probe matches.
    pub(super) fn answered(&mut self, now: Instant, nonce: u64) -> Option<bool> {
        let at = self.waiting.iter().position(|(waiting, _)| *waiting == nonce)?;
        let (_, sent) = self.waiting.remove(at)?;
        // A late answer was counted as lost when it was due, but also proves that the path is up.
        if self.due.take().is_some() {
            self.count(true);
        }
        self.measure(now - sent);
        self.last_answer = Some(now);
        self.misses = 0;
        self.hits += 1;
        let rises = match self.state {
            State::New => true,
            State::Up => false,
            State::Down => self.hits >= self.back,
        };
        if rises {
            (self.state, self.up_since) = (State::Up, now);
        }
        Some(rises)
    }

    fn probe_timeout(&self) -> Duration {
        self.timing.timeout.max(self.rtt.unwrap_or_default() * 2)
    }

    fn measure(&mut self, rtt: Duration) {
        let average = |old: Duration| old.mul_f64(1.0 - WEIGHT) + rtt.mul_f64(WEIGHT);
        self.rtt = Some(self.rtt.map_or(rtt, average));
    }

    fn count(&mut self, answered: bool) {
        self.results.push_back(answered);
        if self.results.len() > MEMORY {
            self.results.pop_front();
        }
    }
}
