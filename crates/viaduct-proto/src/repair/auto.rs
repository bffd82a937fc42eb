//! Sliding-window encoder whose rate adapts to the peer's reports.
//!
//! The controller sets the rate of unrequested repairs. In addition the peer requests repairs of
//! packets that it still misses; these repairs arrive a round trip later.

mod handover;
mod pace;

use std::collections::VecDeque;

use super::allowance::Allowance;
use super::answers::Answers;
use super::classes::{Classifier, Repairs, Treatment};
use super::coding::Settings;
use super::control::{Controller, Limits, Report, State, Traffic};
use super::copies::{Copies, Waiting};
use super::reordering_window::ReorderingWindow;
use super::requests::MAX_WORK;
use super::section::Need;
use crate::fec::{Encoder as _, Error, Fire, Seq, window};
use crate::time::{Duration, Instant};
use crate::wire::ip::MutableFields;
use crate::wire::{tcp_sack, transport};
pub(super) use pace::Pace;

/// Round-trip time assumed until it is measured.
const USUAL_RTT: Duration = Duration::from_millis(100);
/// Bounds of the time for which flows can wait for a lost packet.
const WAIT: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(200)];
/// Maximum budget for requested repairs; each packet that is not excluded from repairs adds to it.
const MAX_BUDGET: f64 = 512.0;
/// Cost of requested names, in repairs.
const NAMES_COST: f64 = 0.25;
/// Minimum number of packets kept for requests.
const MIN_KEPT: f64 = 4_096.0;
/// Maximum number of packets kept for requests.
const MAX_KEPT: f64 = 8_192.0;
/// Number of repairs that are sent for the last packets before a pause, if losses come in bursts.
const FLUSHES: usize = 3;
/// Time after a request during which the path counts as losing packets.
const LOSING: Duration = Duration::from_millis(500);
/// Time since the last request after which names may be delayed for longer.
const QUIET_AFTER: Duration = Duration::from_secs(10);
/// Maximum number of latency-sensitive packets in a requested range for which all of them are
/// repeated, even if fewer packets are missing.
const MAX_REPEATED: usize = 16;
/// Minimum relative change of the rate for which the encoder is reconfigured; the window must
/// change by four times as much.
const WORTH: f64 = 0.05;

/// Encoder of one peer, and the control of its rate.
pub(super) struct Auto {
    encoder: window::Encoder,
    pub(super) controller: Controller,
    pub(super) pace: Pace,
    rtt: Option<Duration>,
    reordering_window: ReorderingWindow,
    pub(super) classifier: Classifier,
    pub(super) copies: Copies,
    /// Number of packets that need the window's repairs, since the last repair or pause.
    bare: u16,
    /// True if traffic has paused: the next such packet restarts the count.
    has_paused: bool,
    /// Budget of repairs that the peer may request.
    budget: f64,
    allowance: Allowance,
    /// Requested repairs that leave over another path.
    pub(super) answers: Answers,
    /// Numbers of the latest latency-sensitive packets, in ascending order.
    urgent: VecDeque<Seq>,
    /// Time of the peer's last request for repairs.
    requested: Option<Instant>,
    limits: Limits,
    /// True if copies leave over a path other than that of the packets.
    pub(super) has_other_path: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Leaving<'a> {
    pub(super) fields: MutableFields,
    pub(super) packet: &'a [u8],
    /// Packet with its prefix; empty if no repair covers the packet.
    pub(super) symbol: &'a [u8],
    pub(super) repairs: Repairs,
    /// Maximum number of repairs that are sent for the packet.
    pub(super) most: f64,
}

impl Auto {
    /// Creates an encoder whose first packet has number `first`. The encoder sends no repairs
    /// before the peer's first report. Errors: none with the parameters chosen here.
    pub(super) fn new(now: Instant, settings: &Settings, first: Seq) -> Result<Self, Error> {
        let limits = settings.limits;
        let mut encoder = window::Encoder::new(SILENT, first)?;
        encoder.pause();
        encoder.keep(MIN_KEPT as u16);
        Ok(Auto {
            encoder,
            controller: Controller::new(now, limits),
            pace: Pace::default(),
            rtt: None,
            reordering_window: ReorderingWindow::new(now),
            classifier: Classifier::new(settings.classes.clone(), settings.acks),
            copies: Copies::new(now),
            bare: 0,
            has_paused: false,
            budget: MAX_BUDGET / 4.0,
            allowance: Allowance::new(now, limits.max_rate),
            answers: Answers::new(now),
            urgent: VecDeque::new(),
            requested: None,
            limits,
            has_other_path: false,
        })
    }

    pub(super) fn next_seq(&self) -> Seq {
        self.encoder.next_seq()
    }

    pub(super) fn memory(&self) -> usize {
        let urgent = self.urgent.capacity() * size_of::<Seq>();
        self.encoder.memory() + self.copies.memory() + self.classifier.memory() + urgent
    }

    /// Bytes of memory held for packets that the peer may request.
    pub(super) fn kept(&self) -> usize {
        self.encoder.held()
    }

    /// Frees the memory of the oldest packets kept for requests.
    pub(super) fn shed(&mut self) {
        self.encoder.shed();
    }

    /// Forgets the packets below number `seq`.
    pub(super) fn forget_below(&mut self, seq: Seq) {
        self.encoder.forget_below(seq);
        self.copies.tidy();
        self.urgent.drain(..self.urgent.partition_point(|urgent| *urgent < seq));
        self.urgent.shrink_to(2 * self.urgent.len());
    }

    /// Classifies a normalised packet that leaves; `fields` are its mutable fields.
    pub(super) fn judge(&mut self, now: Instant, bytes: &[u8], fields: MutableFields) -> Treatment {
        self.classifier.judge(now, bytes, fields, self.rtt.unwrap_or(USUAL_RTT))
    }

    pub(super) fn state(&self, now: Instant) -> State {
        State {
            regime: self.controller.regime,
            overhead: self.controller.overhead,
            pace: self.pace.value(),
            wait: self.wait(now),
            rtt: self.rtt,
            report: self.controller.report(),
        }
    }

    /// Returns whether packets are being lost.
    pub(super) fn is_lossy(&self) -> bool {
        self.controller.overhead > 0.0
    }

    /// Returns whether no repairs are sent and the peer has not requested any recently. If the peer
    /// has another path, this path is never quiet, because its failure must be noticed early.
    pub(super) fn is_quiet(&self, now: Instant) -> bool {
        !self.is_lossy()
            && !self.has_other_path
            && self.requested.is_none_or(|at| now.since(at) >= QUIET_AFTER)
    }

    /// Returns whether copies leave over another path, and the peer has recently requested packets
    /// that were lost on this path. The losses of a dying path are a single burst, for which the
    /// controller does not raise its rate.
    fn is_failing(&self, now: Instant) -> bool {
        self.has_other_path && self.requested.is_some_and(|at| now.since(at) < LOSING)
    }

    /// Time for which flows can wait for a lost packet.
    pub(super) fn wait(&self, now: Instant) -> Duration {
        let rtt = self.rtt.unwrap_or(USUAL_RTT);
        let wait = rtt.mul_f64(self.reordering_window.share).clamp(WAIT[0], WAIT[1]);
        self.classifier.wait(now, wait)
    }

    fn traffic(&self, now: Instant) -> Traffic {
        Traffic { pace: self.pace.value(), wait: self.wait(now) }
    }

    /// Evaluates the acknowledgement in a packet from the peer's site, including the duplicates
    /// that the acknowledgement reports (DSACK).
    pub(super) fn overhear(&mut self, now: Instant, packet: &[u8]) {
        let rtt = self.rtt.unwrap_or(USUAL_RTT);
        let Some(acknowledged) = tcp_sack::acknowledged(packet) else { return };
        if acknowledged.twice.is_some() && self.is_lossy() {
            self.reordering_window.handle_dsack(now, rtt);
        }
        self.classifier.overhear(now, packet, acknowledged, rtt);
    }

    pub(super) fn push(&mut self, now: Instant, of: Leaving<'_>, fire: &mut Fire<'_>) {
        let most = match of.repairs {
            Repairs::Window => of.most,
            Repairs::Copies | Repairs::Duplicate | Repairs::None => 0.0,
        };
        if most > 0.0 {
            // Only packets that need the window's repairs count towards the packet rate; the same
            // repairs also cover the other packets.
            if self.pace.count(now) && !self.encoder.is_paused() {
                // A flow in slow start doubles its rate before the peer's next report.
                self.set(now);
            }
            let protocol = transport::payload(of.packet).map(|(protocol, _)| protocol);
            self.reordering_window.count(protocol == Some(transport::TCP));
            let before = if self.has_paused { 0 } else { self.bare };
            (self.bare, self.has_paused) = (before.saturating_add(1), false);
        }
        self.copies.count(of.packet.len(), self.limits.max_overhead);
        let seq = self.next_seq();
        if matches!(of.repairs, Repairs::Copies | Repairs::Duplicate) {
            if self.urgent.len() >= MAX_KEPT as usize {
                self.urgent.pop_front();
            }
            self.urgent.push_back(seq);
        }
        match of.repairs {
            Repairs::Duplicate if self.has_other_path => {
                self.copies.push_at_once(now, seq, of.fields, of.packet);
            }
            Repairs::Copies | Repairs::Duplicate if self.is_lossy() || self.is_failing(now) => {
                self.copies.push(now, seq, of.fields, of.packet);
            }
            _ => {}
        }
        if of.repairs != Repairs::None {
            let share = if most > 0.0 { most } else { 1.0 };
            self.budget = (self.budget + self.limits.max_overhead.min(share)).min(MAX_BUDGET);
        }
        let most = (most * f64::from(self.encoder.parameters().packets)).ceil() as u16;
        let Auto { encoder, bare, budget, allowance, .. } = self;
        encoder.push_at_most(of.symbol, most, &mut |repair| {
            *bare = 0;
            *budget = (*budget - 1.0).max(0.0);
            if allowance.take_spare(now, repair.body.len()) {
                fire(repair);
            }
        });
    }

    /// Calls `send` with the copies that are due, in groups that fit `room` bytes.
    pub(super) fn copy(&mut self, now: Instant, room: usize, mut send: impl FnMut(&[Waiting])) {
        let Auto { copies, allowance, controller, .. } = self;
        copies.leave(now, controller.is_bursty(), room, |group| {
            if allowance.take(now, group.iter().map(|of| of.packet.len()).sum()) {
                send(group);
            }
        });
    }

    /// Fires a repair of a single packet.
    pub(super) fn repeat(&mut self, seq: Seq, fire: &mut Fire<'_>) {
        self.encoder.combine(seq, seq, 1, fire);
    }

    /// Number of calls of [`Auto::flush`] in a pause: one, or more if losses come in bursts.
    pub(super) fn stages(&self) -> usize {
        if self.controller.is_bursty() { FLUSHES } else { 1 }
    }

    /// Fires a repair of the packets since the last repair, if packets are being lost. Called when
    /// traffic has paused.
    pub(super) fn flush(&mut self, now: Instant, fire: &mut Fire<'_>) {
        self.has_paused = true;
        if self.bare == 0 || self.controller.overhead <= 0.0 || self.budget < 1.0 {
            return;
        }
        self.budget -= 1.0;
        let (next, bare) = (self.next_seq(), u64::from(self.bare));
        self.combine(now, next.saturating_sub(bare), next.saturating_sub(1), 1, fire);
    }

    /// Fires `count` repairs of the packets from `first` to `last`, as far as the rate allows.
    fn combine(&mut self, now: Instant, first: Seq, last: Seq, count: usize, fire: &mut Fire<'_>) {
        let Auto { encoder, allowance, .. } = self;
        encoder.combine(first, last, count, &mut |repair| {
            if allowance.take_spare(now, repair.body.len()) {
                fire(repair);
            }
        });
    }

    pub(super) fn handle_report(&mut self, now: Instant, report: Report, rtt: Option<Duration>) {
        self.rtt = rtt.or(self.rtt);
        self.reordering_window.learn(now, report.random.bursts.iter().sum());
        let traffic = self.traffic(now);
        if report.congested > self.controller.report().congested {
            self.encoder.restart();
        }
        self.controller.handle_report(now, report, traffic);
        self.set(now);
    }

    /// Sets the number of packets that the encoder keeps, and its rate.
    fn set(&mut self, now: Instant) {
        let traffic = self.traffic(now);
        // Time for two requests of a packet, each of which takes up to two waits and one round
        // trip.
        let time = 2 * (2 * traffic.wait + self.rtt.unwrap_or(USUAL_RTT));
        let kept = traffic.pace * time.as_secs_f64();
        self.answers.set_rate(self.limits.max_overhead * traffic.pace);
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

    /// Returns whether names may be repeated. If so, charges the budget a fraction of a repair.
    pub(super) fn may_name(&mut self) -> bool {
        let may = self.budget >= NAMES_COST;
        self.budget -= if may { NAMES_COST } else { 0.0 };
        may
    }

    /// Answers a request: immediately for latency-sensitive packets, and within the budget for the
    /// others. While a queue drops packets, fewer repairs of the others are sent.
    pub(super) fn answer(&mut self, now: Instant, need: Need, fire: &mut Fire<'_>) {
        self.requested = Some(now);
        let repeated = self.answer_urgent(now, need, fire);
        let wanted = f64::from(need.repairs) * self.controller.room.share();
        let most = MAX_WORK / usize::from(need.packets).max(1);
        let count = (wanted as usize).min(self.budget as usize).min(most);
        if self.has_other_path {
            let is_new = self.answers.push(now, need, count);
            self.budget -= if is_new { count as f64 } else { 0.0 };
            self.answer_waiting(now, fire);
        } else {
            let count = if need.is_whole() { count.saturating_sub(repeated) } else { count };
            self.budget -= count as f64;
            self.combine(now, need.first, need.last(), count, fire);
        }
    }

    /// Repeats the latency-sensitive packets of a request, each by itself, at the rate of copies:
    /// decoding a combination would also require the repairs of the other missing packets. If the
    /// range has many latency-sensitive packets and few packets are missing, the request does not
    /// say which packets are missing, so none is repeated. Returns the number of repairs sent.
    fn answer_urgent(&mut self, now: Instant, need: Need, fire: &mut Fire<'_>) -> usize {
        let Auto { encoder, allowance, copies, urgent, .. } = self;
        let [from, to] =
            [need.first, need.last() + 1].map(|end| urgent.partition_point(|urgent| *urgent < end));
        let mut repeated = 0;
        if to - from > usize::from(need.repairs).max(MAX_REPEATED) {
            return repeated;
        }
        for &seq in urgent.range(from..to) {
            let mut has_room = true;
            encoder.combine(seq, seq, 1, &mut |repair| {
                let len = repair.body.len();
                has_room = copies.take(now, len) && allowance.take(now, len);
                if has_room {
                    repeated += 1;
                    fire(repair);
                }
            });
            // Further repairs would be computed in vain, and the peer may request any number of
            // them.
            if !has_room {
                break;
            }
        }
        repeated
    }

    /// Fires the requested repairs whose turn it is.
    pub(super) fn answer_waiting(&mut self, now: Instant, fire: &mut Fire<'_>) {
        let Auto { encoder, allowance, answers, .. } = self;
        answers.leave(now, |first, last| {
            encoder.combine(first, last, 1, &mut |repair| {
                if allowance.take_spare(now, repair.body.len()) {
                    fire(repair);
                }
            });
        });
    }
}

/// Parameters of an encoder before its rate is known.
const SILENT: window::Parameters = window::Parameters { window: 16, repairs: 1, packets: 4_096 };
