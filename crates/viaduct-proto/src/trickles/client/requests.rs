//! What a client sends: a first request, echoes, steps, restarts.

use super::asks::{Expected, Want, groups};
use super::receiver::Turn;
use super::{Client, LEAST_REQUEST, Phase, SILENCE};
use crate::time::Instant;
use crate::trickles::continuation::{CONTINUATION, Continuation, LOSS, MOST_LOSSES};
use crate::trickles::plan::Plan;
use crate::trickles::wire::request::{emit_groups, emit_open, emit_padding, emit_returned};
use crate::trickles::wire::response::overhead;
use crate::trickles::wire::{MOST_ASKS, MOST_ATTEMPTS};

impl Client {
    /// Nothing came for too long.
    pub(super) fn begin_again(&mut self, now: Instant) {
        if matches!(self.phase, Phase::Ticket) {
            self.overdue = None;
            return;
        }
        self.unpromise();
        self.forget_flight();
        self.heard = now;
        match self.anchor.clone() {
            None => self.send_open(),
            Some((bytes, _, proof)) => {
                let attempt = (self.attempts + 1).min(MOST_ATTEMPTS.into()) as u8;
                self.stats.restarts += 1;
                self.phase = Phase::Beginning;
                let mut message = Vec::new();
                emit_returned(self.count, attempt, &bytes, None, None, &proof, &mut message);
                self.promise(usize::from(attempt == 1) * 9 + 1, CONTINUATION);
                self.finish(message, LEAST_REQUEST);
            }
        }
        self.overdue = Some(now + self.trips.wait(self.attempts));
        self.attempts += 1;
    }

    fn send_open(&mut self) {
        let mut message = Vec::new();
        emit_open(self.count, self.token, self.config.message, &mut message);
        self.promise(1, CONTINUATION);
        self.finish(message, self.config.pad.max(LEAST_REQUEST));
    }

    /// Makes requests of what is held, as long as something is wanted.
    pub(super) fn request(&mut self, now: Instant) {
        if matches!(self.phase, Phase::Opening) && self.attempts == 0 && self.count == 0 {
            self.begin_again(now);
        }
        if !self.asks.is_wanting() {
            return;
        }
        if matches!(self.phase, Phase::Ticket) {
            self.echo(now);
            return;
        }
        if now.since(self.heard) > SILENCE && self.in_flight() == 0 && !self.held.is_empty() {
            self.begin_again(now);
            return;
        }
        let idle = self.in_flight() == 0;
        while self.asks.is_wanting() {
            let Some(turn) = self.held.front() else { break };
            let repaired = self.repairs(&turn.known);
            let window = turn.known.piece.base + u64::from(turn.known.piece.start);
            let owed = !turn.known.losses.runs().is_empty() && repaired.is_none();
            if owed && turn.known.number >= window {
                break;
            }
            if let Some(turn) = self.held.pop_front() {
                self.send_turn(now, &turn, repaired);
            }
        }
        if idle && self.in_flight() > 0 {
            self.heard = now;
        }
        self.set_overdue();
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

    fn echo(&mut self, now: Instant) {
        let Some((bytes, known, proof)) = self.anchor.clone() else { return };
        let mut message = Vec::new();
        emit_returned(self.count, 0, &bytes, None, None, &proof, &mut message);
        self.phase = Phase::Beginning;
        self.heard = now;
        self.promise(known.piece.start.into(), CONTINUATION);
        self.finish_groups(message);
        self.overdue = Some(now + self.trips.wait(self.attempts));
    }

    /// Asks for up to `packets` of a first window.
    fn promise(&mut self, packets: usize, continuation: usize) {
        let message =
            self.anchor.as_ref().map_or(self.config.message, |(_, known, _)| known.message);
        let room = usize::from(message).saturating_sub(overhead(Some(continuation)));
        let room = match self.anchor {
            Some(_) => room,
            // A ticket is no longer than the request.
            None => self.config.pad.max(LEAST_REQUEST).saturating_sub(overhead(Some(continuation))),
        };
        for _ in 0..packets.min(MOST_ASKS) {
            let want = self.asks.take(room.saturating_sub(self.config.reserve));
            self.promised.extend(want);
        }
    }

    /// Ends a first request or a restart: padded to `least` bytes, with what is promised.
    fn finish(&mut self, mut message: Vec<u8>, least: usize) {
        let mut tail = Vec::new();
        let wants: Vec<Want> = self.promised.iter().cloned().collect();
        emit(&wants, &mut tail);
        tail.extend_from_slice(&self.data);
        let padding = least.saturating_sub(message.len() + tail.len() + 2);
        emit_padding(padding, &mut message);
        message.extend_from_slice(&tail);
        self.post(message);
    }

    fn finish_groups(&mut self, mut message: Vec<u8>) {
        let wants: Vec<Want> = self.promised.iter().cloned().collect();
        emit(&wants, &mut message);
        message.extend_from_slice(&self.data);
        self.post(message);
    }

    /// A request that returns a continuation, and asks for as much as the server will send.
    fn send_turn(&mut self, now: Instant, turn: &Turn, repaired: Option<u64>) {
        let known = &turn.known;
        let owed = if repaired.is_some() { 0 } else { known.losses.runs().len() };
        let descendant = CONTINUATION + LOSS * (owed + turn.losses).min(MOST_LOSSES);
        let room = usize::from(known.message).saturating_sub(self.config.reserve);
        let mut wants = Vec::new();
        let made_up = turn.made_up.iter();
        for plan in made_up.chain([&turn.plan]) {
            self.expect(now, plan, room, descendant, &mut wants);
        }
        let mut message = Vec::new();
        emit_returned(self.count, 0, &turn.bytes, turn.tail, repaired, &turn.proof, &mut message);
        emit(&wants, &mut message);
        self.post(message);
    }

    /// Notes which packets a plan brings, and what they are to carry.
    fn expect(
        &mut self,
        now: Instant,
        plan: &Plan,
        room: usize,
        descendant: usize,
        wants: &mut Vec<Want>,
    ) {
        for &number in plan.again.numbers() {
            let want = self.asks.take(room.saturating_sub(overhead(None)));
            wants.extend(want.clone());
            self.asks.again.insert(number, Expected { sent: now, want });
        }
        for number in plan.grouped.numbers() {
            self.asks.fresh.insert(number, Expected { sent: now, want: None });
        }
        for number in plan.fresh.numbers() {
            let point = plan.piece.is_point(number);
            let taken = overhead(point.then_some(descendant));
            let want = self.asks.take(room.saturating_sub(taken));
            wants.extend(want.clone());
            self.asks.fresh.insert(number, Expected { sent: now, want });
        }
    }

    fn post(&mut self, message: Vec<u8>) {
        self.count = self.count.wrapping_add(1);
        self.stats.requests += 1;
        self.outbox.push_back(message);
    }
}

fn emit(wants: &[Want], out: &mut Vec<u8>) {
    let groups = groups(wants);
    emit_groups(groups.iter().map(|(user, asks)| (*user, &asks[..])), out);
}
