//! What a client sends: a first request, echoes, steps, restarts.

use super::asks::{Budget, Expected, Want, groups};
use super::receiver::{Step, Turn};
use super::responses::FEW;
use super::{Client, Feed, LEAST_MESSAGE, LEAST_REQUEST, Phase};
use crate::time::Instant;
use crate::trickles::SILENCE;
use crate::trickles::continuation::{CONTINUATION, Continuation, LOSS, MOST_LOSSES};
use crate::trickles::plan::Plan;
use crate::trickles::wire::request::{emit_groups, emit_open, emit_padding, emit_returned};
use crate::trickles::wire::response::{continuation_len, overhead};
use crate::trickles::wire::{MOST_ASKS, MOST_ATTEMPTS};

/// Bytes of an answer that are left for what the application says to what a request takes along.
const NOTES: usize = 192;
/// Bytes of a first request or a restart that are left for what it takes along, if there is something.
const PARCEL: usize = 512;
/// Bytes of a step that are left for asks, if something is wanted and what it takes along does not need them.
const ASKS: usize = 512;
/// Bytes of a first request, or of a step that names no losses, beside asks and what it takes along, at most.
pub(in crate::trickles) const HEAD: usize = 128;

/// What a step's packets are to be.
#[derive(Debug)]
struct Layout {
    now: Instant,
    /// Bytes of a message, less what is reserved.
    room: usize,
    /// Bytes of continuations that the packets bear.
    descendant: usize,
    /// Bytes to be left in the first packet with data, as long as there was none.
    notes: usize,
    budget: Budget,
    wants: Vec<Want>,
    parcel: Option<u64>,
}

impl Layout {
    /// Bytes that a plan's packets have room for.
    fn brings(&self, plan: &Plan) -> u64 {
        let again = plan.again.numbers().iter().map(|_| overhead(None));
        let fresh = plan
            .fresh
            .numbers()
            .map(|number| overhead(plan.piece.is_point(number).then_some(self.descendant)));
        again.chain(fresh).map(|taken| self.room.saturating_sub(taken) as u64).sum()
    }
}

impl Client {
    /// Nothing came for too long.
    fn begin_again(&mut self, now: Instant, feed: &mut dyn Feed) {
        self.due = false;
        if matches!(self.phase, Phase::Ticket) {
            self.overdue = None;
            return;
        }
        self.unpromise();
        self.forget_flight();
        self.heard = now;
        match self.anchor.clone() {
            None => self.send_open(feed),
            Some((bytes, _, proof)) => {
                let attempt = (self.attempts + 1).min(MOST_ATTEMPTS.into()) as u8;
                self.stats.restarts += 1;
                self.phase = Phase::Beginning;
                self.begins(self.generation.wrapping_add(attempt.into()), now);
                let mut message = Vec::new();
                emit_returned(self.count, attempt, &bytes, None, None, &proof, &mut message);
                let packets = usize::from(attempt == 1) * 9 + 1;
                self.promise(packets, CONTINUATION, message.len(), feed);
                self.finish(message, LEAST_REQUEST, feed);
            }
        }
        self.overdue = Some(now + self.trips.wait(self.attempts));
        self.attempts += 1;
    }

    /// A generation is asked for: so its answer says how long that took, however often another was asked for since.
    fn begins(&mut self, generation: u16, now: Instant) {
        self.begun.retain(|(asked, _)| *asked != generation);
        self.begun.push((generation, now));
    }

    fn send_open(&mut self, feed: &mut dyn Feed) {
        let mut message = Vec::new();
        emit_open(self.count, self.token, self.config.message, &mut message);
        self.promise(1, CONTINUATION, message.len(), feed);
        self.finish(message, self.pad(), feed);
    }

    /// Bytes of the longest request now. If a first request is not answered it may have been too long for the way,
    /// and nobody has said so.
    fn longest(&self) -> usize {
        let again = matches!(self.phase, Phase::Opening) && self.attempts > 0;
        if again { self.config.request.min(LEAST_MESSAGE) } else { self.config.request }
    }

    /// Bytes of a first request, at least.
    fn pad(&self) -> usize {
        self.config.pad.max(LEAST_REQUEST).min(self.longest())
    }

    /// Makes requests of what is held, as long as something is wanted, or to be taken along.
    pub(super) fn request(&mut self, now: Instant, feed: &mut dyn Feed) {
        let first = matches!(self.phase, Phase::Opening) && self.attempts == 0 && self.count == 0;
        if first || self.due {
            self.begin_again(now, feed);
        }
        self.pending = feed.is_pending();
        if !self.asks.is_wanting() && !self.pending && !feed.is_eager() {
            self.look();
            return;
        }
        if matches!(self.phase, Phase::Ticket) {
            self.echo(now, feed);
            return;
        }
        let silent = now.since(self.heard) > SILENCE && self.in_flight() == 0;
        if silent && !self.held.is_empty() {
            self.begin_again(now, feed);
            return;
        }
        let idle = self.in_flight() == 0;
        while self.asks.is_wanting() || feed.is_pending() || feed.is_eager() {
            let Some(step) = self.held.front().and_then(Turn::step) else { break };
            let known = &step.known;
            let repaired = self.repairs(known);
            let window = known.piece.base + u64::from(known.piece.start);
            let owed = !known.losses.runs().is_empty() && repaired.is_none();
            if owed && known.number >= window {
                break;
            }
            if let Some(turn) = self.held.pop_front() {
                self.send_turn(now, &turn, &step, repaired, feed);
            }
        }
        self.pending = feed.is_pending();
        if idle && self.in_flight() > 0 {
            self.heard = now;
        }
        self.look();
    }

    /// All that could be sent was: sets the timers for what there is to wait for.
    fn look(&mut self) {
        if matches!(self.phase, Phase::Running(_)) {
            self.stuck = self.is_stuck();
            self.set_overdue();
        }
    }

    /// Whether several trickles wait for repairs, and nothing else is to come. Whatever came last was asked for later: so
    /// repairs are lost, and a wait as long as packets may overtake each other is enough (RFC 8985, 6.2).
    fn is_stuck(&self) -> bool {
        let waits = self.asks.is_wanting() || self.in_flight() > 0;
        waits && self.asks.are_repairs() && self.held.len() > FEW && self.attempts == 0
    }

    /// The nonces of all repairs that a continuation waits for, xored; None if one is missing.
    fn repairs(&self, known: &Continuation) -> Option<u64> {
        let mut sum = None;
        for run in known.losses.runs() {
            for number in run.first..=run.last() {
                sum = Some(sum.unwrap_or(0) ^ self.repaired.get(&number)?);
            }
        }
        sum
    }

    fn echo(&mut self, now: Instant, feed: &mut dyn Feed) {
        let Some((bytes, known, proof)) = self.anchor.clone() else { return };
        let mut message = Vec::new();
        emit_returned(self.count, 0, &bytes, None, None, &proof, &mut message);
        self.phase = Phase::Beginning;
        self.heard = now;
        self.begun.clear();
        self.begins(self.generation, now);
        self.promise(known.piece.start.into(), CONTINUATION, message.len(), feed);
        self.emit_promised(&mut message);
        self.load(&mut message, feed);
        self.post(message);
        self.overdue = Some(now + self.trips.wait(self.attempts));
    }

    /// Asks for up to `packets` of a first window, in a request that has `taken` bytes already.
    fn promise(&mut self, packets: usize, continuation: usize, taken: usize, feed: &dyn Feed) {
        let message =
            self.anchor.as_ref().map_or(self.config.message, |(_, known, _)| known.message);
        let room = usize::from(message).saturating_sub(overhead(Some(continuation)));
        let room = match self.anchor {
            Some(_) => room,
            // A ticket is no longer than the request.
            None => self.pad().saturating_sub(overhead(Some(continuation))),
        };
        let room = room.saturating_sub(self.config.reserve);
        let mut budget = self.budget(taken, feed);
        for n in 0..packets.min(MOST_ASKS) {
            let left = if n == 0 { notes(feed) } else { 0 };
            let want = self.asks.take(room.saturating_sub(left), &mut budget);
            self.promised.extend(want);
        }
    }

    /// Bytes for the asks of a request that has `taken` bytes already.
    fn budget(&self, taken: usize, feed: &dyn Feed) -> Budget {
        let parcel = if feed.is_pending() { PARCEL.max(feed.needs()) } else { 0 };
        Budget::new(self.longest().saturating_sub(taken.saturating_add(parcel)))
    }

    /// Ends a first request or a restart: padded to `least` bytes, with what is promised.
    fn finish(&mut self, mut message: Vec<u8>, least: usize, feed: &mut dyn Feed) {
        let mut tail = Vec::new();
        self.emit_promised(&mut tail);
        let taken = message.len() + 2;
        let room = self.longest().saturating_sub(taken + tail.len());
        self.promised_parcel = feed.take(room, &mut tail);
        let padding = least.min(self.longest()).saturating_sub(taken + tail.len());
        emit_padding(padding, &mut message);
        message.extend_from_slice(&tail);
        self.post(message);
    }

    fn emit_promised(&self, out: &mut Vec<u8>) {
        let wants: Vec<Want> = self.promised.iter().cloned().collect();
        emit(&wants, out);
    }

    /// Has the request of a first window take something along.
    fn load(&mut self, message: &mut Vec<u8>, feed: &mut dyn Feed) {
        let room = self.config.request.saturating_sub(message.len());
        self.promised_parcel = feed.take(room, message);
    }

    /// A request that returns a continuation, and asks for as much as the server will send.
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
        let losses = (owed + losses).min(MOST_LOSSES);
        let slim = known.delta && losses == 0 && plan.piece.base == known.piece.base;
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
        self.repeat.sent(now, &message);
        self.post(message);
    }

    /// Has a request of `taken` bytes, whose answer has room for `brings`, take something along.
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
            // What is asked for comes first.
            feed.brings(if wants { 0 } else { brings.saturating_sub(NOTES as u64) });
        } else if !wants && feed.is_eager() {
            layout.parcel = feed.take_eager(room, brings, out);
        }
    }

    /// Notes which packets a plan brings, and what they are to carry.
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
            let point = plan.piece.is_point(number);
            let expected = self.ask(overhead(point.then_some(layout.descendant)), layout);
            self.asks.expect(number, expected);
        }
    }

    /// Asks for what fits a packet that has `taken` bytes already.
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

/// Bytes to be left in the answer to what `feed` gives.
fn notes(feed: &dyn Feed) -> usize {
    if feed.is_pending() { NOTES } else { 0 }
}

fn emit(wants: &[Want], out: &mut Vec<u8>) {
    let groups = groups(wants);
    emit_groups(groups.iter().map(|(user, asks)| (*user, &asks[..])), out);
}
