//! Requests that a client sends: first requests, echoes of address tokens, steps (which return a
//! continuation), restarts.

use super::asks::{Budget, Expected, Want, groups};
use super::generations::Anchor;
use super::receiver::{Step, Turn};
use super::{Client, Feed, MIN_MESSAGE, MIN_REQUEST, Phase};
use crate::time::Instant;
use crate::trickles::SILENCE;
use crate::trickles::continuation::{CONTINUATION, LOSS, MAX_LOSSES};
use crate::trickles::plan::Plan;
use crate::trickles::wire::request::{emit_groups, emit_open, emit_padding, emit_returned};
use crate::trickles::wire::response::{continuation_len, overhead};
use crate::trickles::wire::{MAX_ASKS, MAX_ATTEMPTS};

/// Bytes of an answer that are reserved for the user continuations with which the application
/// answers the request's parcel (the notes of [`standard`](crate::trickles::standard)).
const NOTES: usize = 192;
/// Bytes of a first request or a restart that are reserved for its parcel, if there is one.
const PARCEL: usize = 512;
/// Bytes of a step reserved for asks, if bytes are wanted and the parcel leaves room.
const ASKS: usize = 512;
/// Maximum length, without asks and parcel, of a first request or of a step that names no losses.
pub(in crate::trickles) const HEAD: usize = 128;

/// Layout of the packets that answer a step.
#[derive(Debug)]
struct Layout {
    now: Instant,
    /// Bytes of a message, less the reserve.
    room: usize,
    /// Length of the continuation in each packet.
    descendant: usize,
    /// Bytes reserved for notes in the next packet with data; 0 after the first such packet.
    notes: usize,
    budget: Budget,
    wants: Vec<Want>,
    parcel: Option<u64>,
}

impl Layout {
    /// Bytes of data that a plan's packets have room for.
    fn brings(&self, plan: &Plan) -> u64 {
        let again = plan.again.numbers().iter().map(|_| overhead(None));
        let fresh = plan
            .fresh
            .numbers()
            .map(|number| overhead(plan.epoch.is_point(number).then_some(self.descendant)));
        again.chain(fresh).map(|taken| self.room.saturating_sub(taken) as u64).sum()
    }
}

impl Client {
    /// Sends or repeats the first request, or restarts the connection after a timeout or long
    /// silence. While an address token is held, only stops the timer.
    fn begin_again(&mut self, now: Instant, feed: &mut dyn Feed) {
        if matches!(self.phase, Phase::AddressToken) {
            self.recovery.stop_restart();
            return;
        }
        self.first_window.cancel(&mut self.asks);
        self.forget_flight();
        self.recovery.heard = now;
        match self.generations.anchor.clone() {
            None => self.send_open(feed),
            Some(Anchor { bytes, proof, .. }) => {
                let attempt = (self.recovery.attempts + 1).min(MAX_ATTEMPTS.into()) as u8;
                self.stats.restarts += 1;
                self.phase = Phase::Beginning;
                self.generations.restarted(attempt.into(), now);
                let mut message = Vec::new();
                emit_returned(self.count, attempt, &bytes, None, None, &proof, &mut message);
                // A first attempt may follow a silence, and then yields the initial window, by
                // default ten packets. Any other restart yields the loss window, by default one.
                let packets = usize::from(attempt == 1) * 9 + 1;
                self.assign(packets, CONTINUATION, message.len(), feed);
                self.finish(message, MIN_REQUEST, feed);
            }
        }
        self.recovery.await_answer(now);
        self.recovery.attempts += 1;
    }

    fn send_open(&mut self, feed: &mut dyn Feed) {
        let mut message = Vec::new();
        emit_open(self.count, self.token, self.config.message, &mut message);
        self.assign(1, CONTINUATION, message.len(), feed);
        self.finish(message, self.pad(), feed);
    }

    /// Maximum length of the next request. If a first request got no answer, it may have exceeded
    /// the path MTU without an ICMP error.
    fn longest(&self) -> usize {
        let again = matches!(self.phase, Phase::Opening) && self.recovery.attempts > 0;
        if again { self.config.request.min(MIN_MESSAGE) } else { self.config.request }
    }

    /// Minimum length of a first request in bytes.
    fn pad(&self) -> usize {
        self.config.pad.max(MIN_REQUEST).min(self.longest())
    }

    /// Sends the first request, an echo or a restart if one is due. Otherwise sends requests with
    /// the held continuations, while bytes are wanted, or the feed has a parcel or is eager.
    pub(super) fn request(&mut self, now: Instant, feed: &mut dyn Feed) {
        let first = matches!(self.phase, Phase::Opening) && self.count == 0;
        if std::mem::take(&mut self.recovery.restart_is_due) || first && self.recovery.attempts == 0
        {
            self.begin_again(now, feed);
        }
        self.pending = feed.is_pending();
        if !self.asks.is_wanting() && !self.pending && !feed.is_eager() {
            self.update_timers();
            return;
        }
        if matches!(self.phase, Phase::AddressToken) {
            self.echo(now, feed);
            return;
        }
        let silent = now.since(self.recovery.heard) > SILENCE && self.in_flight() == 0;
        if silent && !self.held.is_empty() {
            self.begin_again(now, feed);
            return;
        }
        let idle = self.in_flight() == 0;
        while (self.asks.is_wanting() || feed.is_pending() || feed.is_eager())
            && let Some((turn, step, repaired)) = self.held.take()
        {
            self.send_turn(now, &turn, &step, repaired, feed);
        }
        self.pending = feed.is_pending();
        if idle && self.in_flight() > 0 {
            self.recovery.heard = now;
        }
        self.update_timers();
    }

    /// Sets the timers once no further request can be sent.
    fn update_timers(&mut self) {
        if matches!(self.phase, Phase::Running(_)) {
            self.recovery.check_stuck(&self.asks, self.held.len());
            self.set_timers();
        }
    }

    fn echo(&mut self, now: Instant, feed: &mut dyn Feed) {
        let Some(Anchor { bytes, known, proof }) = self.generations.anchor.clone() else {
            return;
        };
        let mut message = Vec::new();
        emit_returned(self.count, 0, &bytes, None, None, &proof, &mut message);
        self.phase = Phase::Beginning;
        self.recovery.heard = now;
        self.generations.echoed(now);
        self.assign(known.epoch.start.into(), CONTINUATION, message.len(), feed);
        emit(self.first_window.wants(), &mut message);
        self.load(&mut message, feed);
        self.post(message);
        self.recovery.await_answer(now);
    }

    /// Assigns wants to at most `packets` packets of a first window. The request already has
    /// `taken` bytes.
    fn assign(&mut self, packets: usize, continuation: usize, taken: usize, feed: &dyn Feed) {
        let message = match &self.generations.anchor {
            Some(anchor) => anchor.known.message.into(),
            // The answer to a first request is no longer than the request.
            None => self.pad(),
        };
        let room = message.saturating_sub(overhead(Some(continuation)));
        let room = room.saturating_sub(self.config.reserve);
        let mut budget = self.budget(taken, feed);
        for n in 0..packets.min(MAX_ASKS) {
            let left = if n == 0 { notes(feed) } else { 0 };
            let want = self.asks.take(room.saturating_sub(left), &mut budget);
            self.first_window.assign(want);
        }
    }

    /// Bytes available for the asks of a request that already has `taken` bytes.
    fn budget(&self, taken: usize, feed: &dyn Feed) -> Budget {
        let parcel = if feed.is_pending() { PARCEL.max(feed.needs()) } else { 0 };
        Budget::new(self.longest().saturating_sub(taken.saturating_add(parcel)))
    }

    /// Completes a first request or a restart: adds the assigned asks and the parcel, and pads the
    /// message to `least` bytes.
    fn finish(&mut self, mut message: Vec<u8>, least: usize, feed: &mut dyn Feed) {
        let mut tail = Vec::new();
        emit(self.first_window.wants(), &mut tail);
        let taken = message.len() + 2;
        let room = self.longest().saturating_sub(taken + tail.len());
        self.first_window.parcel = feed.take(room, &mut tail);
        let padding = least.min(self.longest()).saturating_sub(taken + tail.len());
        emit_padding(padding, &mut message);
        message.extend_from_slice(&tail);
        self.post(message);
    }

    /// Adds a parcel to the request of a first window.
    fn load(&mut self, message: &mut Vec<u8>, feed: &mut dyn Feed) {
        let room = self.config.request.saturating_sub(message.len());
        self.first_window.parcel = feed.take(room, message);
    }

    /// Sends a request that returns a continuation, with asks for the packets that the server
    /// will send.
    fn send_turn(
        &mut self,
        now: Instant,
        turn: &Turn,
        step: &Step,
        repaired: Option<u64>,
        feed: &mut dyn Feed,
    ) {
        let Step { known, made_up, plan, losses } = step;
        let owed = if repaired.is_some() { 0 } else { known.losses.runs().len() };
        let mut message = Vec::new();
        emit_returned(self.count, 0, &turn.bytes, turn.tail, repaired, &turn.proof, &mut message);
        let plans = || made_up.iter().chain([plan]);
        let losses = (owed + losses).min(MAX_LOSSES);
        let slim = known.delta && losses == 0 && plan.epoch.base == known.epoch.base;
        let mut layout = Layout {
            now,
            room: usize::from(known.message).saturating_sub(self.config.reserve),
            descendant: continuation_len(CONTINUATION + LOSS * losses, slim),
            notes: 0,
            budget: Budget::new(0),
            wants: Vec::new(),
            parcel: None,
        };
        let roomy = |plan: &Plan| !plan.again.numbers().is_empty() || plan.fresh.count() > 0;
        let mut bytes = Vec::new();
        if plans().any(roomy) {
            let brings = plans().map(|plan| layout.brings(plan)).sum();
            self.take_along(brings, message.len(), &mut layout, &mut bytes, feed);
        }
        layout.budget =
            Budget::new(self.config.request.saturating_sub(message.len() + bytes.len()));
        plans().for_each(|plan| self.expect(plan, &mut layout));
        emit(&layout.wants, &mut message);
        message.extend_from_slice(&bytes);
        self.recovery.repeat.sent(now, &message);
        self.post(message);
    }

    /// Adds a parcel to a request of `taken` bytes, whose answer has room for `brings` bytes.
    fn take_along(
        &self,
        brings: u64,
        taken: usize,
        layout: &mut Layout,
        out: &mut Vec<u8>,
        feed: &mut dyn Feed,
    ) {
        let wants = self.asks.is_wanting();
        let left = self.config.request.saturating_sub(taken);
        let asks = if wants { ASKS.min(left.saturating_sub(feed.needs())) } else { 0 };
        let room = left.saturating_sub(asks.max(1));
        if feed.is_pending() {
            feed.spare(1 + self.held.len());
            layout.parcel = feed.take(room, out);
            layout.notes = if layout.parcel.is_some() { NOTES } else { 0 };
            // Asks have precedence over output of the parcel's input.
            feed.brings(if wants { 0 } else { brings.saturating_sub(NOTES as u64) });
        } else if !wants && feed.is_eager() {
            layout.parcel = feed.take_eager(room, brings, out);
        }
    }

    /// Records the expected packets of a plan, and the bytes that each is asked to carry.
    fn expect(&mut self, plan: &Plan, layout: &mut Layout) {
        for &number in plan.again.numbers() {
            let expected = self.ask(overhead(None), layout);
            self.asks.expect_again(number, expected);
        }
        for number in plan.grouped.numbers() {
            let expected = Expected::new(layout.now, None, layout.parcel);
            self.asks.expect(number, expected);
        }
        for number in plan.fresh.numbers() {
            let point = plan.epoch.is_point(number);
            let expected = self.ask(overhead(point.then_some(layout.descendant)), layout);
            self.asks.expect(number, expected);
        }
    }

    /// Assigns a want that fits a packet with `taken` bytes of overhead.
    fn ask(&mut self, taken: usize, layout: &mut Layout) -> Expected {
        let notes = std::mem::take(&mut layout.notes);
        let room = layout.room.saturating_sub(taken + notes);
        let want = self.asks.take(room, &mut layout.budget);
        layout.wants.extend(want.clone());
        Expected::new(layout.now, want, layout.parcel)
    }

    fn post(&mut self, message: Vec<u8>) {
        self.count = self.count.wrapping_add(1);
        self.stats.requests += 1;
        self.outbox.push_back(message);
    }
}

/// Bytes to be reserved in the answer to a parcel of `feed`.
fn notes(feed: &dyn Feed) -> usize {
    if feed.is_pending() { NOTES } else { 0 }
}

fn emit(wants: &[Want], out: &mut Vec<u8>) {
    let groups = groups(wants);
    emit_groups(groups.iter().map(|(user, asks)| (*user, &asks[..])), out);
}
