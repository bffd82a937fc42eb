//! Processing of responses: passes packets to the receiver, and data to the application.

use bytes::Bytes;

use super::asks::{Expected, Want};
use super::generations::{Anchor, Generations};
use super::receiver::Receiver;
use super::{Arrived, Client, ENDS, Phase};
use crate::time::Instant;
use crate::trickles::continuation::{Continuation, Mode};
use crate::trickles::proof::{self, Range};
use crate::trickles::wire::{Form, Payload, Response};

impl Client {
    /// Processes a response of this connection. Returns false if it is invalid or unexpected.
    pub(super) fn take(&mut self, now: Instant, response: &Response) -> bool {
        let newer = self.generations.ahead(response.generation);
        let awaited = match self.phase {
            Phase::Opening => newer == 0,
            Phase::AddressToken | Phase::Beginning => self.generations.may_begin(newer),
            Phase::Running(_) => Generations::is_restart(newer),
        };
        match response.form {
            Form::AddressToken(bytes) if awaited && (newer > 0 || self.is_opening()) => {
                self.take_address_token(now, bytes, response)
            }
            Form::Fresh(bytes) if awaited && !self.is_opening() => {
                self.begin_generation(bytes) && self.take_packet(now, response)
            }
            _ if newer == 0 && matches!(self.phase, Phase::Running(_)) => {
                self.take_packet(now, response)
            }
            Form::AddressToken(_) | Form::Group(_) => false,
            // Data of other generations are valid as well.
            _ => {
                self.late(&response.payload);
                newer == 0 || newer > u16::MAX / 2
            }
        }
    }

    fn is_opening(&self) -> bool {
        matches!(self.phase, Phase::Opening)
    }

    fn take_address_token(&mut self, now: Instant, bytes: &[u8], response: &Response) -> bool {
        let Ok((known, _)) = Continuation::peek(bytes) else { return false };
        if known.mode != Mode::AddressToken {
            return false;
        }
        let mut proof = Vec::new();
        let number = known.number;
        proof::emit(
            known.epoch.base,
            &[Range { first: known.epoch.base, last: number, sum: 0 }],
            &mut proof,
        );
        self.generations.enter(response.generation, Anchor { bytes: bytes.to_vec(), known, proof });
        self.phase = Phase::AddressToken;
        self.forget_flight();
        self.stats.received += 1;
        self.recovery.hear_token(now);
        let expected = self.first_window.take_packet(now);
        self.deliver(expected, &response.payload);
        self.first_window.cancel(&mut self.asks);
        true
    }

    /// Processes the first packet of a generation that was requested.
    fn begin_generation(&mut self, bytes: &[u8]) -> bool {
        let Ok((known, _)) = Continuation::peek(bytes) else { return false };
        if known.mode != Mode::Begun {
            return false;
        }
        let Some(sent) = self.generations.begin(known.generation) else { return false };
        self.asks.begin();
        self.forget_flight();
        self.phase = Phase::Running(Box::new(Receiver::new(known.epoch)));
        let numbers = (known.epoch.base..).take(known.epoch.start.into());
        self.first_window.begin(&mut self.asks, numbers, sent);
        true
    }

    /// Processes a packet of the current generation.
    fn take_packet(&mut self, now: Instant, response: &Response) -> bool {
        let number = response.number;
        let is_group = matches!(response.form, Form::Group(_));
        match response.form {
            Form::Again => return self.take_repair(now, response),
            _ if !self.asks.reaches(number) => return false,
            Form::Fresh(_) | Form::Slim(_) | Form::Half => self.recovery.note_number(number),
            Form::AddressToken(_) | Form::Group(_) => {}
        }
        let Some(is_new) = self.receive(response) else { return false };
        if !is_new {
            if !is_group
                && let Phase::Running(receiver) = &mut self.phase
                && receiver.came_late(number)
            {
                self.recovery.trips.were_short();
            }
            self.late(&response.payload);
            return true;
        }
        if let Some(expected) = self.asks.came(number) {
            self.recovery.measure(now, expected.sent);
            self.deliver(expected, &response.payload);
        } else {
            self.late(&response.payload);
        }
        self.hear(now);
        self.settle(now);
        true
    }

    /// Processes the repair of a lost packet.
    fn take_repair(&mut self, now: Instant, response: &Response) -> bool {
        let Some(expected) = self.asks.came_again(response.number) else { return false };
        self.recovery.note_answer(expected.sent);
        self.held.repair(response.number, response.nonce);
        self.hear(now);
        self.deliver(expected, &response.payload);
        self.settle(now);
        true
    }

    /// Passes a packet, or the packets of a group, to the receiver. Returns whether any of them is
    /// new; `None` if the response is invalid.
    fn receive(&mut self, response: &Response) -> Option<bool> {
        let Phase::Running(receiver) = &mut self.phase else { return None };
        let Response { number, nonce, .. } = *response;
        match response.form {
            Form::AddressToken(_) | Form::Again => None,
            Form::Fresh(bytes) => {
                let (known, _) = Continuation::peek(bytes).ok()?;
                let fits = known.number == number;
                Some(fits && receiver.arrive(number, nonce, Some((bytes.to_vec(), known))))
            }
            Form::Slim(delta) => {
                let packet = receiver.whole(number, delta)?;
                Some(receiver.arrive(number, nonce, Some(packet)))
            }
            Form::Half => Some(receiver.arrive(number, nonce, None)),
            Form::Group(group) => {
                let mut is_new = false;
                for (number, nonce, bytes) in group.packets() {
                    if !self.asks.reaches(number) {
                        return None;
                    }
                    let packet = bytes.and_then(|bytes| {
                        let (known, _) = Continuation::peek(&bytes).ok()?;
                        Some((bytes, known))
                    });
                    is_new |= receiver.arrive(number, nonce, packet);
                    // Grouped packets carry no data, even if some were requested.
                    if let Some(expected) = self.asks.came(number) {
                        self.recovery.note_answer(expected.sent);
                        self.asks.want_again(expected.want);
                    }
                }
                Some(is_new)
            }
        }
    }

    /// Counts a new packet, and records its arrival for the timers.
    fn hear(&mut self, now: Instant) {
        self.stats.received += 1;
        self.recovery.hear(now);
    }

    /// Applies the receiver's decisions, and sets the timers.
    pub(super) fn settle(&mut self, now: Instant) {
        let Phase::Running(receiver) = &mut self.phase else { return };
        self.stats.recoveries += u64::from(std::mem::take(&mut receiver.recovered));
        while let Some(number) = receiver.lost.pop_front() {
            self.stats.lost += 1;
            if let Some(expected) = self.asks.is_lost(number) {
                self.asks.want_again(expected.want);
            }
        }
        while let Some((turn, known)) = receiver.turns.pop_front() {
            let (bytes, proof) = (turn.bytes.clone(), turn.proof.clone());
            self.generations.anchor = Some(Anchor { bytes, known, proof });
            self.held.push(turn);
        }
        let missing = receiver.waits_for();
        self.recovery.wait_for(now, missing);
        self.set_timers();
    }

    /// Sets all timers except [`Timer::Reorder`](super::recovery::Timer::Reorder).
    pub(super) fn set_timers(&mut self) {
        let (is_holding, is_idle) = (!self.held.is_empty(), self.is_idle());
        self.recovery.set_timers(&mut self.asks, is_holding, is_idle);
    }

    /// Delivers data. Requested bytes that the packet does not contain become wanted again.
    fn deliver(&mut self, expected: Expected, payload: &Payload) {
        let Expected { want, parcel, in_order, .. } = expected;
        if let Some(want) = want.filter(|want| want.length > 0) {
            let ends = payload.flags & ENDS != 0;
            let end = payload.position + payload.data.len() as u64;
            let wanted = want.position + want.length;
            if payload.position != want.position || payload.data.is_empty() && !ends {
                self.asks.want_again(Some(want));
            } else if end < wanted && !ends {
                self.asks.want_again(Some(Want { position: end, length: wanted - end, ..want }));
            }
        }
        self.hand_on(parcel, in_order, payload);
    }

    /// Delivers data of a packet that was no longer expected.
    fn late(&mut self, payload: &Payload) {
        self.hand_on(None, true, payload);
    }

    fn hand_on(&mut self, parcel: Option<u64>, in_order: bool, payload: &Payload) {
        if payload.data.is_empty() && payload.user.is_empty() && payload.flags == 0 {
            return;
        }
        self.arrived.push_back(Arrived {
            position: payload.position,
            flags: payload.flags,
            parcel,
            in_order,
            user: Bytes::copy_from_slice(payload.user),
            data: Bytes::copy_from_slice(payload.data),
        });
    }

    /// Drops the state of requests in flight: no further packet of this generation will arrive.
    pub(super) fn forget_flight(&mut self) {
        self.asks.forget_all();
        self.held.clear();
        self.recovery.forget_flight();
    }
}
