//! BBR: Cardwell et al., "BBR: Congestion-Based Congestion Control" (ACM Queue, 2016), with a
//! gentler ProbeRTT and a response to heavy loss from its later drafts (draft-ietf-ccwg-bbr).
//!
//! ```text
//!   Startup ──the rate grows no more──▶ Drain ──the queue is gone──▶ Cruise: ask, give back, 6 × 1
//!      ▲                                                              │ ▲
//!      └──────────── 10 s without a round trip as short as the least ─▶ Look
//! ```

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};

use super::pacer::quantum;
use super::path::Path;
use super::samples::Samples;

/// Startup pacing gain, which doubles the rate each round trip: 2 / ln 2.
const HIGH: f64 = 2.885;
/// Steps of a cycle, each a round trip long: the first probes for more bandwidth, the second
/// drains the excess, the others send at the path's rate.
const STEPS: usize = 8;
/// Pacing gain of the first step. The publication probes with 5/4 always, which puts a queue of
/// a quarter of a round trip in front of the flows that share the path. Here a probe is small
/// after one that found no more bandwidth; after one that did, the next is large and follows at
/// once.
const SMALL: f64 = 1.08;
const LARGE: f64 = 1.25;
/// Growth of the rate that counts as more bandwidth found.
const ANSWER: f64 = 1.04;
/// Pacing gain of the second step.
const BACK: f64 = 0.75;
/// Window gain, of the bandwidth-delay product: while the path is not known; and later. The
/// publication has 2 throughout, to allow for aggregated acknowledgements. The bandwidth
/// estimate is a little too high rather than too low, so that a queue would stand then.
/// Aggregation is measured instead, and added.
const UNKNOWN: f64 = 2.0;
const KNOWN: f64 = 1.05;
/// Pacing margin: a little below the estimate. The estimate is the highest of many samples, and
/// so a little too high; without a margin a queue stands. (0.99 and 1.2 above: an echo took 1.3
/// round trips beside a bulk flow under FEC, now 1.07 where the machine is idle enough.)
const MARGIN: f64 = 0.98;
/// Further margin after a round in which a queue stood without a probe: the estimate was too
/// high by more. The queue drains by a twentieth of a round trip in each round, where the
/// publication waits for the step of 3/4.
const YIELD: f64 = 0.95;
/// Startup ends when the rate has grown by less than this in [`FULL_BW_COUNT`] rounds.
const GROWTH: f64 = 1.25;
const FULL_BW_COUNT: u32 = 3;
/// ProbeRTT, which measures the shortest round trip again: window gain meanwhile, and duration.
const LOOK: f64 = 0.5;
const LOOKING: Duration = Duration::from_millis(200);
/// Loss threshold: a round that loses more than this share bounds the bytes in flight. Less is
/// the path's own loss, and no sign of a queue.
const HEAVY: f64 = 1.0 / 32.0;
/// Bound after heavy loss, as a share of the bytes in flight at that time; never below the
/// bandwidth-delay product.
const BOUND: f64 = 0.85;
/// Packets in flight at the beginning (RFC 9002, section 7.2), and the minimum.
const INITIAL: u64 = 10;
const MIN_PIPE_CWND: u64 = 4;

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Startup,
    Drain,
    /// In a step of the cycle, since a time.
    Cruise(usize, Instant),
    /// Until a time, set once few enough bytes are in flight.
    Look(Option<Instant>),
}

/// Factory: makes a controller for each path.
#[derive(Debug)]
pub(in super::super) struct BbrConfig;

impl ControllerFactory for BbrConfig {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        Box::new(Bbr::new(now, mtu))
    }
}

/// Congestion controller of a path.
#[derive(Clone, Debug)]
pub(super) struct Bbr {
    mtu: u64,
    state: State,
    samples: Samples,
    path: Path,
    /// Rate when it last grew, and rounds since.
    grown: (f64, u32),
    /// Pacing gain of the first step, and the rate when the probe began.
    ask: f64,
    asked_at: f64,
    /// A queue stood during all of the last round.
    stood: bool,
    window: u64,
    bound: Option<u64>,
    /// In this round: bytes lost, bytes in flight at the first loss, and bytes delivered before
    /// the round.
    lost: u64,
    lost_at: u64,
    round_began: u64,
}

impl Bbr {
    pub(super) fn new(now: Instant, mtu: u16) -> Bbr {
        let mtu = u64::from(mtu);
        Bbr {
            mtu,
            state: State::Startup,
            samples: Samples::new(now),
            path: Path::new(now),
            grown: (0.0, 0),
            ask: SMALL,
            asked_at: f64::INFINITY,
            stood: false,
            window: INITIAL * mtu,
            bound: None,
            lost: 0,
            lost_at: 0,
            round_began: 0,
        }
    }

    /// Pacing rate, in bytes a second.
    fn pace(&self) -> Option<f64> {
        let gain = match self.state {
            State::Startup => HIGH,
            State::Drain => 1.0 / HIGH,
            State::Cruise(0, _) => self.ask,
            State::Cruise(1, _) => BACK,
            State::Cruise(..) if self.stood => YIELD,
            State::Cruise(..) => 1.0,
            State::Look(_) => 1.0,
        };
        // A sender with little to send has shown little bandwidth: the initial rate is always
        // allowed.
        let least = (INITIAL * self.mtu) as f64 / self.path.rtt()?.as_secs_f64().max(1e-6);
        Some(gain * MARGIN * self.path.rate()?.max(least))
    }

    /// Bandwidth-delay product times `gain`.
    fn fits(&self, gain: f64) -> u64 {
        match (self.path.rate(), self.path.rtt()) {
            (Some(rate), Some(rtt)) => (gain * rate * rtt.as_secs_f64()) as u64,
            _ => INITIAL * self.mtu,
        }
    }

    fn least(&self) -> u64 {
        MIN_PIPE_CWND * self.mtu
    }

    /// Notes at the end of a round whether the rate still grows. An application-limited sender
    /// cannot tell, unless a queue has stood all the while.
    fn see_growth(&mut self, limited: bool, queue: bool) {
        let Some(rate) = self.path.rate() else { return };
        if self.state != State::Startup || (limited && !queue) {
            return;
        }
        if rate >= GROWTH * self.grown.0 {
            self.grown = (rate, 0);
            return;
        }
        self.grown.1 += 1;
        if self.grown.1 >= FULL_BW_COUNT {
            self.state = State::Drain;
        }
    }

    /// Applies loss at the end of a round: heavy loss bounds the bytes in flight, otherwise the
    /// bound grows.
    fn weigh_loss(&mut self, delivered: u64) {
        let (lost, came) = (self.lost as f64, (delivered - self.round_began) as f64);
        if lost > HEAVY * (lost + came) {
            let bound = (BOUND * self.lost_at as f64) as u64;
            self.bound = Some(bound.max(self.fits(1.0)));
        } else if let Some(bound) = self.bound {
            let bound = bound + bound / 8;
            self.bound = (bound < self.fits(LARGE)).then_some(bound);
        }
        (self.lost, self.round_began) = (0, delivered);
    }

    fn step(&mut self, now: Instant, in_flight: u64, stale: bool, limited: bool) {
        let rtt = self.path.rtt().unwrap_or_default();
        match self.state {
            State::Look(None) if in_flight <= self.look() => {
                self.state = State::Look(Some(now + LOOKING.max(rtt)));
            }
            State::Look(Some(until)) if now >= until => {
                self.path.refresh(now);
                self.state = match self.grown.1 >= FULL_BW_COUNT {
                    true => State::Cruise(2, now),
                    false => State::Startup,
                };
            }
            State::Look(_) => {}
            _ if stale => self.state = State::Look(None),
            State::Drain if in_flight <= self.fits(1.0) => self.state = State::Cruise(2, now),
            State::Cruise(step, since) => {
                let long = now.saturating_duration_since(since) >= rtt;
                let over = match step {
                    // Until the path was probed, or loses packets, or there is too little to
                    // send.
                    0 if self.ask < LARGE && self.is_answered() => {
                        self.ask = LARGE;
                        false
                    }
                    0 => long && (limited || self.lost > 0 || in_flight >= self.fits(self.ask)),
                    1 => long || in_flight <= self.fits(1.0),
                    _ => long,
                };
                if over {
                    self.next_step(step, now);
                }
            }
            State::Startup | State::Drain => {}
        }
    }

    /// Begins the next step. The result of a probe is known a round trip after its end.
    fn next_step(&mut self, step: usize, now: Instant) {
        let answered = step == 2 && self.is_answered();
        let next = if answered { 0 } else { (step + 1) % STEPS };
        if next == 0 {
            self.ask = if answered { LARGE } else { SMALL };
            self.asked_at = self.path.rate().unwrap_or(f64::INFINITY);
        }
        self.state = State::Cruise(next, now);
    }

    /// Returns whether the last probe found more bandwidth.
    fn is_answered(&self) -> bool {
        self.path.rate().is_some_and(|rate| rate >= ANSWER * self.asked_at)
    }

    /// Bytes that may be in flight during ProbeRTT.
    fn look(&self) -> u64 {
        self.fits(LOOK).max(self.least())
    }

    /// Moves the window towards its target, by the bytes delivered.
    fn set_window(&mut self, acked: u64) {
        let (gain, filled) = match self.state {
            State::Startup => (UNKNOWN, false),
            State::Drain | State::Look(_) => (UNKNOWN, true),
            State::Cruise(step, _) => (KNOWN * if step == 0 { self.ask } else { 1.0 }, true),
        };
        let burst = quantum(self.pace().unwrap_or(0.0), self.mtu);
        let target = self.fits(gain) + self.path.cluster() + 3 * burst;
        let grown = self.window + acked;
        self.window = if filled || grown < target { grown.min(target) } else { self.window };
        self.window = self.window.max(self.least());
    }

    /// Upper bound of the window in this state. Loss bounds neither a path that is not known
    /// yet nor a probe for more.
    fn limit(&self) -> u64 {
        match self.state {
            State::Look(_) => self.look(),
            State::Startup | State::Cruise(0, _) => u64::MAX,
            _ => self.bound.unwrap_or(u64::MAX),
        }
    }
}

impl Controller for Bbr {
    fn on_sent(&mut self, now: Instant, bytes: u64, _: u64) {
        self.samples.sent(now, bytes);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, _: bool, _: &RttEstimator) {
        self.samples.acked(now, sent, bytes);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, limited: bool, _: Option<u64>) {
        let Some(sample) = self.samples.take(now, in_flight, limited) else { return };
        let seen = self.path.see(now, &sample);
        if seen.round {
            self.stood = seen.stood;
            self.see_growth(sample.limited, seen.queue);
            self.weigh_loss(sample.delivered);
        }
        self.step(now, in_flight, seen.stale, sample.limited);
        self.set_window(sample.acked);
    }

    fn on_congestion_event(&mut self, _: Instant, _: Instant, persistent: bool, lost: u64) {
        if self.lost == 0 {
            self.lost_at = self.samples.in_flight();
        }
        self.lost += lost;
        if persistent {
            // Nothing came through for long: the window grows again as bytes are delivered.
            self.window = self.least();
        }
    }

    fn on_mtu_update(&mut self, mtu: u16) {
        self.mtu = mtu.into();
    }

    fn window(&self) -> u64 {
        self.window.min(self.limit()).max(self.least())
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = ControllerMetrics::default();
        metrics.congestion_window = self.window();
        metrics.pacing_rate = self.pace().map(|bytes| (8.0 * bytes) as u64);
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        INITIAL * self.mtu
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests;
