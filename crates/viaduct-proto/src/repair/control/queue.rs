//! Queue of the link, as estimated from one-way delays.
//!
//! The queueing delay of a packet is its one-way delay minus the minimum of the last minutes. A
//! loss next to packets whose delay was close to the peak is attributed to a full queue, and
//! repairs must not hide such a loss from the sender.
//!
//! ```text
//!   delay   ┌ peak ─────────/|────────/|── long: from 0.8 of the peak
//!           │             /  |      /  |
//!           └ minimum ──/────|────/────|──────▶ time
//! ```
//!
//! A peak does not imply a full queue: every flow that sends in bursts causes a peak. Losses are
//! therefore attributed to a full queue only if they are more frequent at long delays than at other
//! delays ([`super::histogram`]).
//!
//! The minimum may be stale: a path that has become longer looks like a queue that never empties,
//! which a single cubic flow may cause for minutes. However, queues grow packet by packet, whereas
//! paths change abruptly; so a step that persists is attributed to the path. Clock drift also
//! changes the delay, but slowly: the assumed maximum drift is subtracted, for all the time in
//! which no queue was known to be full.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use super::histogram::{Histogram, Verdict};
use crate::fec::Seq;
use crate::time::{Duration, Instant};

/// Time for which the minimum delay is remembered.
const MEMORY: Duration = Duration::from_secs(300);
/// Length of the parts into which [`MEMORY`] is divided.
const PART: Duration = Duration::from_secs(10);
/// Assumed maximum clock drift, in microseconds a second.
const DRIFT: f64 = 100.0;
/// Time without a packet after which the path may have changed.
const PAUSE: Duration = Duration::from_secs(30);
/// Time for which a full queue is remembered.
const RECENT: Duration = Duration::from_secs(30);
/// Half-life of the counted delays.
const HALF_LIFE: Duration = Duration::from_secs(8);
/// Packets assumed at short delays, as a share of the packets at long delays: a queue that stays
/// near its peak delay and loses packets is full.
const PRIOR: f64 = 0.25;
/// Ratio of the loss rates at long and at short delays that may arise by chance: a flow that
/// fills a queue slowly overfills it by few packets.
const OFTEN: f64 = 1.1;
/// Loss rate above which a queue was certainly full: the delay at that time remains the peak for a
/// while, even if later packets wait less.
const FULL: f64 = 0.1;
/// Minimum queueing delay of a standing queue.
const STANDING: Micros = 20_000;
/// Minimum peak delay; shorter queues are noise.
const MIN_PEAK: Micros = 5_000;
/// Minimum step of a path's delay that stands out from noise.
const MIN_STEP: Micros = 5_000;
/// Steepest growth of a queue: a delay, and the time in which this delay accrues. An equal or
/// steeper rise is a step of the path's delay: 5 ms between two packets sent within 2 ms, or 30 ms
/// within 12 ms. Packets between these two may be missing: when a path changes, some packets are
/// often lost.
const STEEPEST: (Micros, Micros) = (5, 2);
/// Time for which delays must stay raised before a step is attributed to the path.
const STAYS: Duration = Duration::from_millis(500);

/// Delay or difference of two delays, in microseconds.
pub type Micros = i64;

/// Delays of the packets that arrive from one peer.
#[derive(Debug)]
pub struct Queue {
    /// Difference of the clocks at the first packet; delays are relative to it.
    base: Option<u32>,
    least: Least,
    /// Minimum delay at the last packet.
    floor: Micros,
    /// Time of the last update of the clock drift, and total time for which drift is subtracted.
    drift: (Instant, Duration),
    /// Number, send time and delay of the last packet.
    last: Option<(Seq, u32, Micros)>,
    step: Option<Step>,
    /// Queueing delay of the newest arrival.
    pub(super) waits: Micros,
    delays: Histogram,
    /// Time of the last loss by a full queue.
    full: Option<Instant>,
    /// Time and peak delay of the last queue that was certainly full.
    longest: Option<(Instant, Micros)>,
}

impl Default for Queue {
    fn default() -> Self {
        Queue {
            base: None,
            least: Least::default(),
            floor: 0,
            drift: (Instant::ZERO, Duration::ZERO),
            last: None,
            step: None,
            waits: 0,
            full: None,
            longest: None,
            delays: Histogram::new(HALF_LIFE, PRIOR, OFTEN),
        }
    }
}

/// Upward step of the delay that a change of the path may have caused.
#[derive(Clone, Copy, Debug)]
struct Step {
    since: Instant,
    /// Delay before the step.
    before: Micros,
    /// Minimum delay since the step.
    least: Micros,
}

impl Queue {
    /// Handles packet `seq`, sent at `sent` in microseconds of the peer's clock, which arrived at
    /// `now`. Returns its queueing delay.
    pub fn arrive(&mut self, now: Instant, seq: Seq, sent: u32) -> Micros {
        let difference = micros(now).wrapping_sub(sent);
        let base = *self.base.get_or_insert(difference);
        let delay = Micros::from(difference.wrapping_sub(base).cast_signed()) - self.drift(now);
        self.look_for_step(now, (seq, sent, delay));
        self.last = Some((seq, sent, delay));
        self.longest = self.longest.filter(|(at, _)| now.since(*at) < RECENT);
        let least = self.least.add(now, delay);
        if least - self.floor >= MIN_STEP {
            // The remembered delays belong to another path.
            self.delays.clear();
            self.longest = None;
        }
        self.floor = least;
        self.waits = delay - least;
        self.delays.arrive(now, self.waits);
        self.waits
    }

    /// Delay that the drift of the clocks may have added by now.
    fn drift(&mut self, now: Instant) -> Micros {
        let (at, total) = self.drift;
        let since = if self.was_full(now) { Duration::ZERO } else { now.since(at) };
        self.drift = (now, total + since);
        (DRIFT * self.drift.1.as_secs_f64()) as Micros
    }

    /// Returns whether a full queue has dropped a packet within the last 30 s.
    pub fn was_full(&self, now: Instant) -> bool {
        self.full.is_some_and(|at| now.since(at) < RECENT)
    }

    /// Returns whether the queueing delay is close to its peak: the queue may be full.
    pub fn is_standing(&self) -> bool {
        self.waits >= STANDING && self.is_long(self.waits)
    }

    /// Determines the cause of a loss, or of several in a row, next to packets with the queueing
    /// delay `waits`.
    pub fn lose(&mut self, now: Instant, waits: Micros) -> Verdict {
        // On a link that has become faster, the queue is full at a shorter delay.
        let is_heavy = self.delays.loss(waits) >= FULL;
        let peak = if is_heavy { self.delays.peak() } else { self.peak() };
        let verdict = self.delays.lose(waits, peak);
        if peak < MIN_PEAK {
            return Verdict::Chance;
        }
        if verdict == Verdict::Congestion {
            self.full = Some(now);
            if is_heavy {
                self.longest = Some((now, peak));
            }
        }
        verdict
    }

    /// Estimate of the longest recent queueing delay, including that of the last full queue.
    fn peak(&self) -> Micros {
        self.delays.peak().max(self.longest.map_or(0, |(_, peak)| peak))
    }

    /// Returns whether the queueing delay `waits` is close to the peak.
    fn is_long(&self, waits: Micros) -> bool {
        let peak = self.peak();
        peak >= MIN_PEAK && Histogram::is_high(waits, peak)
    }

    fn look_for_step(&mut self, now: Instant, (seq, sent, delay): (Seq, u32, Micros)) {
        if let Some(step) = &mut self.step {
            step.least = step.least.min(delay);
            let height = step.least - step.before;
            if height < MIN_STEP {
                self.step = None;
            } else if now.since(step.since) >= STAYS {
                self.least = Least::default();
                self.step = None;
            }
        } else if let Some((last, at, before)) = self.last
            && seq > last
            && delay - before >= MIN_STEP
            && STEEPEST.0 * Micros::from(sent.wrapping_sub(at).cast_signed())
                <= STEEPEST.1 * (delay - before)
        {
            self.step = Some(Step { since: now, before, least: delay });
        }
    }
}

/// Low 32 bits of this host's time in microseconds.
pub fn micros(now: Instant) -> u32 {
    (now.as_nanos() / 1_000) as u32
}

/// Minimum delay of the last minutes, in parts: start and minimum delay of each.
#[derive(Debug, Default)]
struct Least {
    parts: VecDeque<(Instant, Micros)>,
}

impl Least {
    fn add(&mut self, now: Instant, delay: Micros) -> Micros {
        match self.parts.back_mut() {
            Some((since, least)) if now.since(*since) < PART => *least = delay.min(*least),
            Some((since, _)) if now.since(*since) >= PAUSE => self.parts = [(now, delay)].into(),
            _ => self.parts.push_back((now, delay)),
        }
        while self.parts.front().is_some_and(|&(since, _)| now.since(since) > MEMORY) {
            self.parts.pop_front();
        }
        self.parts.iter().map(|&(_, least)| least).min().unwrap_or(delay)
    }
}
