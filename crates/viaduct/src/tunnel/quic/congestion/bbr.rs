//! BBR: Cardwell et al., "BBR: Congestion-Based Congestion Control" (ACM Queue, 2016), with a
//! gentler ProbeRTT and a response to heavy loss from its later drafts (draft-ietf-ccwg-bbr).
//!
//! ```text
//!   Startup ──the rate stops growing──▶ Drain ──the queue is gone──▶ ProbeBw: up, down, 6 × cruise
//!      ▲                                                              │ ▲
//!      └── 10 s without a round trip as short as the minimum ──▶ ProbeRtt ┘
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
const STARTUP_PACING_GAIN: f64 = 2.885;
/// Number of phases of a ProbeBW cycle, each about a round trip long: UP probes for more bandwidth,
/// DOWN drains the excess, the others (CRUISE) send at the path's rate.
const PROBE_BW_PHASES: usize = 8;
/// Pacing gains of ProbeBW_UP. The paper always probes with 5/4, which delays the flows that share
/// the path by a queue of a quarter of a round trip. Here, the gain is small if the previous probe
/// found no more bandwidth; otherwise the gain is large, and the next probe follows immediately.
const MIN_PROBE_UP_PACING_GAIN: f64 = 1.08;
const MAX_PROBE_UP_PACING_GAIN: f64 = 1.25;
/// Minimum growth factor of the rate at which a probe counts as having found more bandwidth.
const PROBE_UP_GROWTH: f64 = 1.04;
const PROBE_DOWN_PACING_GAIN: f64 = 0.75;
/// Window gains, as multiples of the bandwidth-delay product: outside ProbeBW, and in it. The paper
/// uses 2 throughout, to allow for aggregated acknowledgements. But the bandwidth estimate tends
/// to be a little too high, so a gain of 2 would keep a standing queue. Here, aggregation is
/// measured and added.
const STARTUP_CWND_GAIN: f64 = 2.0;
const PROBE_BW_CWND_GAIN: f64 = 1.05;
/// Pacing gain in all states. The rate estimate is the maximum of many samples, and so a little too
/// high; without this margin there would be a standing queue. (With 0.99 here and 1.2 as
/// [`PROBE_BW_CWND_GAIN`], an echo during a bulk flow under FEC took 1.3 round trips; now it takes
/// 1.07 on an idle machine.)
const PACING_MARGIN: f64 = 0.98;
/// Pacing gain in CRUISE after a round with a standing queue: the estimate was too high by more
/// than the margin. The queue drains by a twentieth of a round trip in each round; the paper waits
/// for the phase with gain 3/4.
const STANDING_QUEUE_PACING_GAIN: f64 = 0.95;
/// Startup ends after [`FULL_BW_COUNT`] rounds in which the rate did not grow by this factor.
const FULL_BW_GROWTH: f64 = 1.25;
const FULL_BW_COUNT: u32 = 3;
/// Window gain and duration of ProbeRTT, which measures the minimum round-trip time again.
const PROBE_RTT_CWND_GAIN: f64 = 0.5;
const PROBE_RTT_DURATION: Duration = Duration::from_millis(200);
/// Loss threshold: after a round in which more than this share of the bytes is lost, the bytes in
/// flight are bounded. Less loss is attributed to the path itself, not to a queue.
const LOSS_THRESH: f64 = 1.0 / 32.0;
/// Upper bound after loss beyond [`LOSS_THRESH`], as a share of the bytes in flight at that time;
/// never below the bandwidth-delay product.
const BETA: f64 = 0.85;
/// Initial window (RFC 9002, section 7.2) and minimum window, in packets.
const INITIAL_CWND: u64 = 10;
const MIN_PIPE_CWND: u64 = 4;

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Startup,
    Drain,
    /// ProbeBW: the phase of the cycle, and the time of its start.
    ProbeBw(usize, Instant),
    /// ProbeRTT: the time of its end, which is set once few enough bytes are in flight.
    ProbeRtt(Option<Instant>),
}

/// Factory of the controllers, one for each path.
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
    /// Rate when it had last grown by [`FULL_BW_GROWTH`], and number of rounds since then.
    full_bw: (f64, u32),
    /// Pacing gain of ProbeBW_UP.
    probe_gain: f64,
    /// Rate at the start of the last ProbeBW_UP, in bytes a second; infinite before the first.
    probe_start_rate: f64,
    /// True if there was a queue throughout the last round.
    queue_stood: bool,
    window: u64,
    /// Bound of the bytes in flight after loss beyond [`LOSS_THRESH`].
    inflight_hi: Option<u64>,
    /// Bytes lost in this round.
    lost: u64,
    /// Bytes in flight at the first loss in this round.
    in_flight_at_loss: u64,
    /// Bytes delivered before this round.
    round_start: u64,
}

impl Bbr {
    pub(super) fn new(now: Instant, mtu: u16) -> Bbr {
        let mtu = u64::from(mtu);
        Bbr {
            mtu,
            state: State::Startup,
            samples: Samples::new(now),
            path: Path::new(now),
            full_bw: (0.0, 0),
            probe_gain: MIN_PROBE_UP_PACING_GAIN,
            probe_start_rate: f64::INFINITY,
            queue_stood: false,
            window: INITIAL_CWND * mtu,
            inflight_hi: None,
            lost: 0,
            in_flight_at_loss: 0,
            round_start: 0,
        }
    }

    /// Pacing rate, in bytes a second.
    fn pacing_rate(&self) -> Option<f64> {
        let gain = match self.state {
            State::Startup => STARTUP_PACING_GAIN,
            State::Drain => 1.0 / STARTUP_PACING_GAIN,
            State::ProbeBw(0, _) => self.probe_gain,
            State::ProbeBw(1, _) => PROBE_DOWN_PACING_GAIN,
            State::ProbeBw(..) if self.queue_stood => STANDING_QUEUE_PACING_GAIN,
            State::ProbeBw(..) => 1.0,
            State::ProbeRtt(_) => 1.0,
        };
        // The estimate is too low if there was little to send, so the initial rate is always
        // allowed.
        let initial_rate =
            (INITIAL_CWND * self.mtu) as f64 / self.path.rtt()?.as_secs_f64().max(1e-6);
        Some(gain * PACING_MARGIN * self.path.rate()?.max(initial_rate))
    }

    /// Bandwidth-delay product times `gain`.
    fn bdp(&self, gain: f64) -> u64 {
        match (self.path.rate(), self.path.rtt()) {
            (Some(rate), Some(rtt)) => (gain * rate * rtt.as_secs_f64()) as u64,
            _ => INITIAL_CWND * self.mtu,
        }
    }

    fn min_cwnd(&self) -> u64 {
        MIN_PIPE_CWND * self.mtu
    }

    /// Checks at the end of a round whether the rate still grows. Application-limited rounds do not
    /// count, unless there was a queue throughout the round.
    fn check_full_bw(&mut self, limited: bool, queue: bool) {
        let Some(rate) = self.path.rate() else { return };
        if self.state != State::Startup || (limited && !queue) {
            return;
        }
        if rate >= FULL_BW_GROWTH * self.full_bw.0 {
            self.full_bw = (rate, 0);
            return;
        }
        self.full_bw.1 += 1;
        if self.full_bw.1 >= FULL_BW_COUNT {
            self.state = State::Drain;
        }
    }

    /// Handles the losses of a round at its end: loss beyond [`LOSS_THRESH`] bounds the bytes in
    /// flight, otherwise the bound grows.
    fn check_loss(&mut self, delivered: u64) {
        let (lost, came) = (self.lost as f64, (delivered - self.round_start) as f64);
        if lost > LOSS_THRESH * (lost + came) {
            let bound = (BETA * self.in_flight_at_loss as f64) as u64;
            self.inflight_hi = Some(bound.max(self.bdp(1.0)));
        } else if let Some(bound) = self.inflight_hi {
            let bound = bound + bound / 8;
            self.inflight_hi = (bound < self.bdp(MAX_PROBE_UP_PACING_GAIN)).then_some(bound);
        }
        (self.lost, self.round_start) = (0, delivered);
    }

    fn advance(&mut self, now: Instant, in_flight: u64, stale: bool, limited: bool) {
        let rtt = self.path.rtt().unwrap_or_default();
        match self.state {
            State::ProbeRtt(None) if in_flight <= self.probe_rtt_cwnd() => {
                self.state = State::ProbeRtt(Some(now + PROBE_RTT_DURATION.max(rtt)));
            }
            State::ProbeRtt(Some(until)) if now >= until => {
                self.path.refresh(now);
                self.state = match self.full_bw.1 >= FULL_BW_COUNT {
                    true => State::ProbeBw(2, now),
                    false => State::Startup,
                };
            }
            State::ProbeRtt(_) => {}
            _ if stale => self.state = State::ProbeRtt(None),
            State::Drain if in_flight <= self.bdp(1.0) => self.state = State::ProbeBw(2, now),
            State::ProbeBw(phase, since) => {
                let long = now.saturating_duration_since(since) >= rtt;
                let over = match phase {
                    // UP continues with the large gain as soon as it finds more bandwidth. After at
                    // least a round trip, UP ends when the bytes in flight have reached the probe's
                    // target, when packets are lost, or when there is too little to send.
                    0 if self.probe_gain < MAX_PROBE_UP_PACING_GAIN && self.found_bandwidth() => {
                        self.probe_gain = MAX_PROBE_UP_PACING_GAIN;
                        false
                    }
                    0 => {
                        long && (limited || self.lost > 0 || in_flight >= self.bdp(self.probe_gain))
                    }
                    1 => long || in_flight <= self.bdp(1.0),
                    _ => long,
                };
                if over {
                    self.next_phase(phase, now);
                }
            }
            State::Startup | State::Drain => {}
        }
    }

    /// Begins the next phase. The result of a probe is known a round trip after its end.
    fn next_phase(&mut self, phase: usize, now: Instant) {
        let answered = phase == 2 && self.found_bandwidth();
        let next = if answered { 0 } else { (phase + 1) % PROBE_BW_PHASES };
        if next == 0 {
            self.probe_gain =
                if answered { MAX_PROBE_UP_PACING_GAIN } else { MIN_PROBE_UP_PACING_GAIN };
            self.probe_start_rate = self.path.rate().unwrap_or(f64::INFINITY);
        }
        self.state = State::ProbeBw(next, now);
    }

    /// Returns whether the last probe found more bandwidth.
    fn found_bandwidth(&self) -> bool {
        self.path.rate().is_some_and(|rate| rate >= PROBE_UP_GROWTH * self.probe_start_rate)
    }

    /// Bytes that may be in flight during ProbeRTT.
    fn probe_rtt_cwnd(&self) -> u64 {
        self.bdp(PROBE_RTT_CWND_GAIN).max(self.min_cwnd())
    }

    /// Grows the window towards its target, by the bytes delivered. After Startup, a window above
    /// the target is reduced to the target immediately.
    fn set_window(&mut self, acked: u64) {
        let (gain, filled) = match self.state {
            State::Startup => (STARTUP_CWND_GAIN, false),
            State::Drain | State::ProbeRtt(_) => (STARTUP_CWND_GAIN, true),
            State::ProbeBw(phase, _) => {
                (PROBE_BW_CWND_GAIN * if phase == 0 { self.probe_gain } else { 1.0 }, true)
            }
        };
        let burst = quantum(self.pacing_rate().unwrap_or(0.0), self.mtu);
        let target = self.bdp(gain) + self.path.cluster() + 3 * burst;
        let grown = self.window + acked;
        self.window = if filled || grown < target { grown.min(target) } else { self.window };
        self.window = self.window.max(self.min_cwnd());
    }

    /// Upper bound of the window in this state. The bound after loss does not apply to Startup
    /// and ProbeBW_UP.
    fn cwnd_limit(&self) -> u64 {
        match self.state {
            State::ProbeRtt(_) => self.probe_rtt_cwnd(),
            State::Startup | State::ProbeBw(0, _) => u64::MAX,
            _ => self.inflight_hi.unwrap_or(u64::MAX),
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
            self.queue_stood = seen.stood;
            self.check_full_bw(sample.limited, seen.queue);
            self.check_loss(sample.delivered);
        }
        self.advance(now, in_flight, seen.stale, sample.limited);
        self.set_window(sample.acked);
    }

    fn on_congestion_event(&mut self, _: Instant, _: Instant, persistent: bool, lost: u64) {
        if self.lost == 0 {
            self.in_flight_at_loss = self.samples.in_flight;
        }
        self.lost += lost;
        if persistent {
            // Persistent congestion (RFC 9002, section 7.6). The window grows again as bytes are
            // delivered.
            self.window = self.min_cwnd();
        }
    }

    fn on_mtu_update(&mut self, mtu: u16) {
        self.mtu = mtu.into();
    }

    fn window(&self) -> u64 {
        self.window.min(self.cwnd_limit()).max(self.min_cwnd())
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = ControllerMetrics::default();
        metrics.congestion_window = self.window();
        metrics.pacing_rate = self.pacing_rate().map(|bytes| (8.0 * bytes) as u64);
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        INITIAL_CWND * self.mtu
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests;
