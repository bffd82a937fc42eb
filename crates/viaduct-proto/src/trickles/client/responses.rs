//! Processing of responses: packets go to the receiver, data to the application.

use bytes::Bytes;

use super::asks::{Expected, Want};
use super::generations::{Anchor, Generations};
use super::receiver::Receiver;
use super::timers::Timer;
use super::{Arrived, Client, ENDS, Phase};
use crate::time::Instant;
use crate::trickles::continuation::{Continuation, Mode};
use crate::trickles::proof::{self, Range};
use crate::trickles::wire::{Form, Payload, Response};

/// Number of packets that one trickle has in flight, and threshold for few trickles.
pub(super) const FEW: usize = 2;

impl Client {
    /// Processes a response of this connection. Returns false if it does not belong to an
    /// expected generation.
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
            // Data of a past generation are still valid.
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
        self.trips.opened(now.since(self.opened));
        self.hear(now);
        self.timers.stop(Timer::Restart);
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

    /// Processes a packet of the present generation.
    fn take_packet(&mut self, now: Instant, response: &Response) -> bool {
        let Phase::Running(receiver) = &mut self.phase else { return false };
        let number = response.number;
        let mut new = false;
        if !matches!(response.form, Form::Again) && !self.asks.reaches(number) {
            return false;
        }
        if matches!(response.form, Form::Fresh(_) | Form::Slim(_) | Form::Half) {
            if number < self.latest {
                self.trips.overtaken();
            }
            self.latest = self.latest.max(number);
        }
        match response.form {
            Form::AddressToken(_) => return false,
            Form::Again => {
                let Some(expected) = self.asks.came_again(number) else { return false };
                self.asked = self.asked.max(expected.sent);
                self.held.repair(number, response.nonce);
                self.hear(now);
                self.deliver(expected, &response.payload);
                self.settle(now);
                return true;
            }
            Form::Fresh(bytes) => {
                let Ok((known, _)) = Continuation::peek(bytes) else { return false };
                if known.number == number {
                    new = receiver.arrive(number, response.nonce, Some((bytes.to_vec(), known)));
                }
            }
            Form::Slim(delta) => {
                let Some((bytes, known)) = receiver.whole(number, delta) else { return false };
                new = receiver.arrive(number, response.nonce, Some((bytes, known)));
            }
            Form::Half => new = receiver.arrive(number, response.nonce, None),
            Form::Group(group) => {
                for (number, nonce, bytes) in group.packets() {
                    if !self.asks.reaches(number) {
                        return false;
                    }
                    let packet = bytes.and_then(|bytes| {
                        let (known, _) = Continuation::peek(&bytes).ok()?;
                        Some((bytes, known))
                    });
                    new |= receiver.arrive(number, nonce, packet);
                    // Grouped packets carry no data, even if some were requested.
                    if let Some(expected) = self.asks.came(number) {
                        self.asked = self.asked.max(expected.sent);
                        self.asks.want_again(expected.want);
                    }
                }
            }
        }
        if !new {
            if !matches!(response.form, Form::Group(_)) && receiver.came_late(number) {
                self.trips.were_short();
            }
            self.late(&response.payload);
            return true;
        }
        if let Some(expected) = self.asks.came(number) {
            self.asked = self.asked.max(expected.sent);
            if self.repeat.is_plain(expected.sent) {
                self.trips.measure(now.since(expected.sent));
                self.repeat.measured();
            }
            self.deliver(expected, &response.payload);
        } else {
            self.late(&response.payload);
        }
        self.hear(now);
        self.settle(now);
        true
    }

    /// Resets the retransmission timers, as something new has arrived.
    fn hear(&mut self, now: Instant) {
        self.stats.received += 1;
        self.heard = now;
        self.attempts = 0;
        self.probed = false;
    }

    /// Applies the receiver's decisions, and sets the timers.
    pub(super) fn settle(&mut self, now: Instant) {
        let Phase::Running(receiver) = &mut self.phase else { return };
        self.stats.recoveries += u64::from(receiver.take_recovered());
        while let Some(number) = receiver.take_lost() {
            self.stats.lost += 1;
            if let Some(expected) = self.asks.is_lost(number) {
                self.asks.want_again(expected.want);
            }
        }
        while let Some((turn, known)) = receiver.take_turn() {
            let (bytes, proof) = (turn.bytes.clone(), turn.proof.clone());
            self.generations.set_anchor(Anchor { bytes, known, proof });
            self.held.push(turn);
        }
        self.stuck = false;
        let waits_for = receiver.waits_for();
        if self.missing != waits_for {
            let until = now + self.trips.reorder_timeout();
            self.missing = waits_for;
            self.timers.set(Timer::Reorder, waits_for.map(|_| until));
        }
        self.set_timers();
    }

    /// Sets the timers but [`Timer::Reorder`].
    pub(super) fn set_timers(&mut self) {
        let wait = self.trips.wait(self.attempts);
        let repair = self.asks.oldest_again().map(|sent| sent + wait);
        // Bytes may be wanted when no trickle is left to request them, or none that has its
        // repairs.
        let answer = (!self.is_idle()).then(|| self.heard + wait);
        let answer = self.stuck.then(|| self.repeat_time()).flatten().or(answer);
        self.timers.set(Timer::Restart, [repair, answer].into_iter().flatten().min());
        self.timers.set(Timer::Repeat, self.repeat_due());
        // Tail: a trickle is held while packets are in flight. Nothing else is wanted, so no
        // packet behind the last ones would show that they are lost.
        let tail = !self.held.is_empty() && !self.asks.is_wanting() && self.in_flight() > 0;
        let may = tail && !self.probed && self.attempts == 0;
        let first = may.then(|| self.asks.first_wanted()).flatten();
        let probe = first.and_then(|sent| {
            let wait = self.trips.probe()?;
            let passed = self.trips.overtakes(self.asked, sent);
            // While packets arrive, the round trip may have grown.
            Some(if passed { self.heard } else { (sent + wait).max(self.heard + wait / 8) })
        });
        self.timers.set(Timer::Probe, probe);
    }

    /// Time at which the last request is sent again: packets are in flight, and none arrives.
    pub(super) fn repeat_due(&self) -> Option<Instant> {
        // With a single trickle in flight the timeout is as good (RFC 8985, 7.2). Most clients
        // in a crowd have no more.
        let waits = self.in_flight() > FEW && self.attempts == 0 && !self.stuck;
        waits.then(|| self.repeat_time()).flatten()
    }

    fn repeat_time(&self) -> Option<Instant> {
        self.repeat.due(self.heard, self.trips.repeat()?)
    }

    /// Delivers data. Bytes that were wanted from this packet and did not arrive with it are
    /// wanted again.
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

    /// Delivers data that were not expected any more.
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

    /// Drops the state of all requests in flight; no packet of the present generation will
    /// arrive.
    pub(super) fn forget_flight(&mut self) {
        self.asks.forget_all();
        self.held.clear();
        self.repeat.forget();
        self.missing = None;
        for timer in [Timer::Reorder, Timer::Probe, Timer::Repeat] {
            self.timers.stop(timer);
        }
    }
}
