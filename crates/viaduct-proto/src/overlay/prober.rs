//! One path to a peer: when to probe it, whether it is up, how long it is and what it loses.
//!
//! ```text
//!          every interval              no answer in time: again, at once
//!   up ───────────────────▶ probe ───────────────────────────────────────▶ … `lost` in a row: down
//!    ▲                                                                        │ every interval
//!    └──────────── `back` answers in a row, more after each recent failure ───┘
//! ```

use std::collections::VecDeque;

use crate::time::{Duration, Instant};

/// When paths are probed, and what makes one fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Between probes of a path on which none is lost.
    pub interval: Duration,
    /// An answer comes within this, or within twice the path's round trip if that is longer.
    pub timeout: Duration,
    /// So many probes in a row without an answer: the path is down.
    pub lost: u32,
    /// So many answers in a row: it is up again.
    pub back: u32,
}

impl Default for Timing {
    /// A failure is known after at most 0.55 + 4 × 0.25 s where the round trip is short.
    fn default() -> Self {
        Timing {
            interval: Duration::from_millis(500),
            timeout: Duration::from_millis(250),
            lost: 4,
            back: 3,
        }
    }
}

/// Probes that loss is the average of.
const MEMORY: usize = 100;
/// Probes whose answer still counts.
const WAITING: usize = 16;
/// A path that fails again so soon is trusted later.
const SOON: Duration = Duration::from_secs(60);
const MOST_BACK: u32 = 32;
/// How much of a new round trip goes into the average: RON's 0.1, and more, as we probe for seconds.
const WEIGHT: f64 = 0.125;

/// What is known of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Nothing yet.
    New,
    Up,
    Down,
}

pub(super) struct Prober {
    timing: Timing,
    state: State,
    /// Nonces of probes, and when they were sent.
    waiting: VecDeque<(u64, Instant)>,
    /// When the last one should be answered, if it is not.
    due: Option<Instant>,
    next: Instant,
    /// A probe is to go out at once, whatever waits.
    urgent: bool,
    misses: u32,
    hits: u32,
    back: u32,
    up_since: Instant,
    rtt: Option<Duration>,
    last_answer: Option<Instant>,
    results: VecDeque<bool>,
}

impl Prober {
    pub(super) fn new(timing: Timing, now: Instant) -> Prober {
        Prober {
            timing,
            state: State::New,
            waiting: VecDeque::new(),
            due: None,
            next: now,
            urgent: false,
            misses: 0,
            hits: 0,
            back: timing.back,
            up_since: now,
            rtt: None,
            last_answer: None,
            results: VecDeque::new(),
        }
    }

    pub(super) fn state(&self) -> State {
        self.state
    }

    /// The average round trip, if an answer has ever come.
    pub(super) fn rtt(&self) -> Option<Duration> {
        self.rtt
    }

    /// What part of the last probes was lost.
    pub(super) fn loss(&self) -> f64 {
        let lost = self.results.iter().filter(|answered| !**answered).count();
        lost as f64 / self.results.len().max(1) as f64
    }

    /// Number of those probes.
    pub(super) fn counted(&self) -> usize {
        self.results.len()
    }

    /// Time between probes on which none is lost.
    pub(super) fn interval(&self) -> Duration {
        self.timing.interval
    }

    /// When the last answer came.
    pub(super) fn last_answer(&self) -> Option<Instant> {
        self.last_answer
    }

    /// When something is to be done.
    pub(super) fn deadline(&self) -> Instant {
        if self.urgent { Instant::ZERO } else { self.due.unwrap_or(self.next) }
    }

    /// There is something that the peer should hear at once.
    pub(super) fn hurry(&mut self) {
        self.urgent = true;
    }

    /// Sees that time has passed; whether the state has changed.
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
            self.back = if soon { (self.back * 2).min(MOST_BACK) } else { self.timing.back };
            self.state = State::Down;
            self.next = now + self.timing.interval;
        }
        fails
    }

    /// Whether a probe is to be sent now; its `nonce` is remembered if so. `early`, 0 to 1, takes off up
    /// to a fifth of the time to the next, so that nodes do not probe in step.
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
        self.due = self.due.or(Some(now + self.patience()));
        self.next = now + self.timing.interval.mul_f64(1.1 - early.clamp(0.0, 1.0) / 5.0);
        true
    }

    /// An answer; `None` if no probe waits for it, otherwise whether the state has changed.
    pub(super) fn answered(&mut self, now: Instant, nonce: u64) -> Option<bool> {
        let at = self.waiting.iter().position(|(waiting, _)| *waiting == nonce)?;
        let (_, sent) = self.waiting.remove(at)?;
        // A late one, too, says that the path is there.
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

    fn patience(&self) -> Duration {
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
