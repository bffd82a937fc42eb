//! A sliding window whose rate follows what the peer reports.
//!
//! The controller sets the rate of the repairs that leave by themselves. Beside them there are those that the peer
//! asks for, of packets that it misses: they come a round trip late, and mend what the others did not.

use super::control::{Controller, Limits, Report, State, Traffic};
use super::patience::Patience;
use super::section::Need;
use crate::fec::{Encoder as _, Error, Fire, MAX_COVER, Seq, window};
use crate::time::{Duration, Instant};

/// Round-trip time that is reckoned with until it is measured.
const USUAL_RTT: Duration = Duration::from_millis(100);
/// Bounds of the time for which flows can wait for a packet.
const WAIT: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(200)];
/// Repairs that the peer may ask for beyond what packets have left for, at most.
const MAX_BUDGET: f64 = 512.0;
/// Packets that are kept for requests, at least and at most.
const MIN_KEPT: f64 = 256.0;
const MAX_KEPT: f64 = 8_192.0;
/// Share of the rate by which another one differs that is worth a change.
const WORTH: f64 = 0.05;

/// The encoder of one peer, and what sets its rate.
pub(super) struct Auto {
    encoder: window::Encoder,
    controller: Controller,
    pace: Pace,
    rtt: Option<Duration>,
    patience: Patience,
    /// Packets since the last repair.
    bare: u16,
    /// Repairs that the peer may ask for.
    budget: f64,
    limits: Limits,
}

impl Auto {
    /// An encoder whose first packet has number `first`. No repairs leave until the peer reports losses.
    ///
    /// # Errors
    /// None that the parameters chosen here cause.
    pub(super) fn new(now: Instant, limits: Limits, first: Seq) -> Result<Self, Error> {
        let mut encoder = window::Encoder::new(SILENT, first)?;
        encoder.pause();
        encoder.keep(MAX_COVER);
        Ok(Auto {
            encoder,
            controller: Controller::new(now, limits),
            pace: Pace::default(),
            rtt: None,
            patience: Patience::new(now),
            bare: 0,
            budget: MAX_BUDGET / 4.0,
            limits,
        })
    }

    pub(super) fn next_seq(&self) -> Seq {
        self.encoder.next_seq()
    }

    pub(super) fn memory(&self) -> usize {
        self.encoder.memory()
    }

    pub(super) fn state(&self) -> State {
        State {
            regime: self.controller.regime(),
            overhead: self.controller.overhead(),
            pace: self.pace.value(),
            wait: self.wait(),
            rtt: self.rtt,
            report: self.controller.report(),
        }
    }

    /// Whether packets are being lost.
    pub(super) fn is_lossy(&self) -> bool {
        self.controller.overhead() > 0.0
    }

    /// Time for which flows can wait for a packet.
    pub(super) fn wait(&self) -> Duration {
        let rtt = self.rtt.unwrap_or(USUAL_RTT);
        rtt.mul_f64(self.patience.share).clamp(WAIT[0], WAIT[1])
    }

    fn traffic(&self) -> Traffic {
        Traffic { pace: self.pace.value(), wait: self.wait() }
    }

    /// An acknowledgement says that a segment of TCP came twice.
    pub(super) fn handle_dsack(&mut self, now: Instant) {
        self.patience.handle_dsack(now, self.rtt.unwrap_or(USUAL_RTT));
    }

    /// Takes the next packet, which is of TCP if `is_tcp`.
    pub(super) fn push(&mut self, now: Instant, symbol: &[u8], is_tcp: bool, fire: &mut Fire<'_>) {
        self.pace.count(now);
        self.patience.count(is_tcp);
        self.budget = (self.budget + self.limits.max_overhead).min(MAX_BUDGET);
        self.bare = self.bare.saturating_add(1);
        let (bare, budget) = (&mut self.bare, &mut self.budget);
        self.encoder.push(symbol, &mut |repair| {
            *bare = 0;
            *budget = (*budget - 1.0).max(0.0);
            fire(repair);
        });
    }

    /// Repairs the last packets, after which there were none for a while.
    pub(super) fn flush(&mut self, fire: &mut Fire<'_>) {
        let bare = std::mem::take(&mut self.bare);
        if bare == 0 || self.controller.overhead() <= 0.0 || self.budget < 1.0 {
            return;
        }
        self.budget -= 1.0;
        let last = self.next_seq().saturating_sub(1);
        self.encoder.combine(self.next_seq().saturating_sub(u64::from(bare)), last, 1, fire);
    }

    /// Takes a report, and sets the rate.
    pub(super) fn handle_report(&mut self, now: Instant, report: Report, rtt: Option<Duration>) {
        self.rtt = rtt.or(self.rtt);
        self.patience.learn(now, report.random.bursts.iter().sum());
        let traffic = self.traffic();
        self.controller.handle_report(now, report, traffic);
        // Packets may be asked for twice, each time a round trip and a wait after they have left.
        let time = 2 * (2 * traffic.wait + self.rtt.unwrap_or(USUAL_RTT));
        let kept = traffic.pace * time.as_secs_f64();
        self.encoder.keep(kept.clamp(MIN_KEPT, MAX_KEPT) as u16);
        let set = match self.controller.parameters(traffic) {
            Some(parameters) => {
                let before = self.encoder.parameters();
                let change = (parameters.overhead() / before.overhead() - 1.0).abs();
                let grown = f64::from(parameters.window) / f64::from(before.window);
                if !self.encoder.is_paused() && change < WORTH && (grown - 1.0).abs() < 4.0 * WORTH
                {
                    return;
                }
                self.encoder.change(parameters)
            }
            None => {
                self.encoder.pause();
                return;
            }
        };
        debug_assert!(set.is_ok(), "{set:?}");
    }

    /// Answers a request, as far as the budget goes.
    pub(super) fn answer(&mut self, need: Need, fire: &mut Fire<'_>) {
        let count = usize::from(need.repairs).min(self.budget as usize);
        self.budget -= count as f64;
        let last = need.first.saturating_add(u64::from(need.packets)).saturating_sub(1);
        self.encoder.combine(need.first, last, count, fire);
    }
}

/// Parameters of an encoder before its rate is known.
const SILENT: window::Parameters = window::Parameters { window: 16, repairs: 1, packets: 4_096 };

/// Packets a second.
#[derive(Debug, Default)]
struct Pace {
    since: Option<Instant>,
    count: u32,
    value: f64,
}

impl Pace {
    /// Time over which packets are counted.
    const SPAN: Duration = Duration::from_millis(100);
    /// Weight of the newest count.
    const WEIGHT: f64 = 0.3;

    fn count(&mut self, now: Instant) {
        self.count += 1;
        let since = *self.since.get_or_insert(now);
        let passed = now.since(since);
        if passed < Pace::SPAN {
            return;
        }
        let newest = f64::from(self.count) / passed.as_secs_f64();
        self.value += Pace::WEIGHT * (newest - self.value);
        (self.since, self.count) = (Some(now), 0);
    }

    fn value(&self) -> f64 {
        self.value
    }
}
