//! Layout of the packets of an answer.

use super::grant::Event;
use super::judge::{Home, Judged};
use super::{Arrival, Refusal, Server, instant};
use crate::time::Instant;
use crate::trickles::continuation::{Continuation, Mode};
use crate::trickles::epoch::Epoch;
use crate::trickles::plan::{Run, Span};
use crate::trickles::replay::Once;
use crate::trickles::wire::request::Returned;
use crate::trickles::wire::response::{Kind, continuation_len, most_grouped, overhead};

#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub(super) kind: Kind,
    /// Number of packets in a group; otherwise 1.
    pub(super) count: u8,
    pub(super) number: u64,
    pub(super) nonce: u64,
    pub(super) template: usize,
    /// Bytes of room for user continuation and data.
    pub(super) room: usize,
}

impl Item {
    /// Splits a group into groups of at most `most` packets.
    pub(super) fn split(self, most: u8) -> impl Iterator<Item = Item> {
        (0..self.count).step_by(most.into()).map(move |before| Item {
            count: most.min(self.count - before),
            number: self.number + u64::from(before),
            ..self
        })
    }
}

/// Maximum number of packets in the groups of one answer. The trickles of further packets end, as
/// if these packets were lost. Each packet is recorded in the replay window, so this bounds the
/// number of entries that one request can use.
const MAX_GROUPED: usize = 2_048;
/// Number of packets already sent in earlier answers at which the layout of a span stops. With a
/// correct client there are no such packets.
const MAX_KNOWN: usize = 64;

/// Index of the template for groups of the request's own epoch. They make up for lost requests, or
/// for requests that were not sent at the end of the previous epoch.
pub(super) const TAIL: usize = 0;
/// Index of the template for all other packets: those of the plan's epoch, and retransmissions.
pub(super) const MAIN: usize = 1;

impl Server {
    /// Processes a step: the request of a trickle, or the echo of an address token.
    pub(super) fn step(&mut self, at: Arrival, returned: &Returned) -> Result<Event, Refusal> {
        let now = at.now;
        let known = Continuation::open(&self.ring, returned.continuation)?;
        let made = instant(now, known.timestamp);
        if !self.replay.admit(now, made) {
            return Err(Refusal::Stale { age: now.since(made) });
        }
        let address = match self.home(at.from, &known, returned) {
            Home::Here(address) => address,
            home => return self.elsewhere(at, &known, 1, home),
        };
        let connection = known.connection;
        if self.replay.knows(connection, Once::Over(known.generation)) {
            return Err(Refusal::Superseded(known.generation));
        }
        let known = self.timed(now, address, known);
        if known.mode == Mode::AddressToken {
            self.echo(at, &known)?;
            return Ok(Event::Request { connection });
        }
        self.use_series_of(&known, at.from)?;
        // The proof is checked before the continuation is recorded as answered, so that an
        // eavesdropper cannot consume the continuation.
        let judged = self.judge(&known, returned)?;
        let end = self.ends(&known, judged.gaps.runs())?;
        if !self.replay.note(now, connection, Once::Answered(known.number)) {
            return Err(Refusal::Replayed);
        }
        if let Some(first) = end {
            self.note_end(now, &known, first);
        }
        self.note_lack(now, connection, known.number, judged.gaps.runs());
        if judged.tail.as_ref().is_some_and(|tail| !tail.again.numbers().is_empty()) {
            self.replay.note(now, connection, Once::Lacked(known.epoch.base));
        }
        let same = returned.continuation.first() == Some(&self.ring.newest().number());
        self.issue(now, &known, &judged, same)?;
        self.stats.recoveries += u64::from(!judged.gaps.runs().is_empty());
        Ok(Event::Request { connection })
    }

    /// Lays out the packets of a step. With deltas enabled, and without losses that wait for their
    /// repair, packets of the same epoch and secret as the request's continuation are slim: they
    /// omit the common fields.
    fn issue(
        &mut self,
        now: Instant,
        known: &Continuation,
        judged: &Judged,
        same_secret: bool,
    ) -> Result<(), Refusal> {
        let [losses, later] = judged.losses;
        let plan = &judged.plan;
        let recovered = plan.epoch.base != known.epoch.base;
        let mode = if recovered { Mode::Survivors } else { known.mode };
        self.templates[TAIL] = Continuation { losses, ..*known };
        self.templates[MAIN] = Continuation { mode, epoch: plan.epoch, losses: later, ..*known };
        let slim = known.delta && same_secret && !recovered && later.runs().is_empty();
        if let Some(tail) = &judged.tail {
            self.again(now, known, tail.again.numbers(), true)?;
            self.group(now, TAIL, tail.grouped);
        }
        self.make_up(now, known, judged.gaps.runs())?;
        self.again(now, known, plan.again.numbers(), true)?;
        self.group(now, MAIN, plan.grouped);
        if recovered {
            // Each survivor is recorded, so that it is not sent again in answer to another request.
            let connection = known.connection;
            for number in plan.fresh.numbers() {
                if self.replay.note(now, connection, Once::Survivor(number)) {
                    self.fresh(plan.epoch, Span::new(number, number + 1), false);
                }
            }
        } else {
            self.fresh(plan.epoch, plan.fresh, slim);
        }
        Ok(())
    }

    /// Lays out retransmissions, with room for data if `asked`.
    pub(super) fn again(
        &mut self,
        now: Instant,
        known: &Continuation,
        numbers: &[u64],
        asked: bool,
    ) -> Result<(), Refusal> {
        let room = usize::from(known.message).saturating_sub(overhead(None));
        let room = if asked { room } else { 0 };
        for &number in numbers {
            if self.is_invented(known.connection, number) {
                self.stats.invented += 1;
                continue;
            }
            if self.replay.note(now, known.connection, Once::Again(number)) {
                let nonce = self.nonce_keys(known)?.nonces_again(self.series).of(number);
                let (kind, template) = (Kind::Again, MAIN);
                self.work.push(Item { kind, count: 1, number, nonce, template, room });
            }
        }
        Ok(())
    }

    /// Marks packet `number` in the replay window if its request reports the previous packet as
    /// lost.
    pub(super) fn note_lack(&mut self, now: Instant, connection: u64, number: u64, gaps: &[Run]) {
        if gaps.last().is_some_and(|gap| gap.last() + 1 == number) {
            self.replay.note(now, connection, Once::Lacked(number));
        }
    }

    /// Returns whether a reported loss is false: the packet's own continuation was answered, or the
    /// next packet's, in a request that proved this packet's arrival. Then the packet's slot in the
    /// window is used up, and Reno would send nothing for the packet.
    fn is_invented(&self, connection: u64, number: u64) -> bool {
        let knows = |what| self.replay.knows(connection, what);
        let next = number + 1;
        knows(Once::Answered(number)) || knows(Once::Answered(next)) && !knows(Once::Lacked(next))
    }

    /// Lays out packets without data as groups of continuations.
    pub(super) fn group(&mut self, now: Instant, template: usize, span: Span) {
        let Continuation { connection, message, .. } = self.templates[template];
        let most = most_grouped(message.into(), self.templates[template].len());
        let groups = self.work.iter().filter(|item| item.kind == Kind::Group);
        let grouped: usize = groups.map(|item| usize::from(item.count)).sum();
        let (mut left, mut known) = (MAX_GROUPED.saturating_sub(grouped), 0);
        for number in span.numbers() {
            if left == 0 {
                return;
            }
            if !self.replay.note(now, connection, Once::Survivor(number)) {
                // Bounds the cost of requests that repeatedly name entire windows.
                known += 1;
                if known == MAX_KNOWN {
                    return;
                }
                continue;
            }
            left -= 1;
            match self.work.last_mut() {
                Some(Item { kind: Kind::Group, count, number: first, template: of, .. })
                    if *of == template && *first + u64::from(*count) == number && *count < most =>
                {
                    *count += 1;
                }
                _ => {
                    let (kind, count, nonce, room) = (Kind::Group, 1, 0, 0);
                    self.work.push(Item { kind, count, number, nonce, template, room });
                }
            }
        }
    }

    /// Lays out new packets with room for data. `slim` allows deltas.
    pub(super) fn fresh(&mut self, epoch: Epoch, span: Span, slim: bool) {
        let template = self.templates[MAIN];
        let Some(keys) = self.ring.get(template.nonces) else { return };
        let mut nonces = keys.nonces(self.series);
        let message = usize::from(template.message);
        for number in span.numbers() {
            let point = epoch.is_point(number);
            let kind = match (point, slim) {
                (true, true) => Kind::Slim,
                (true, false) => Kind::Fresh,
                (false, _) => Kind::Half,
            };
            let taken = overhead(point.then(|| continuation_len(template.len(), slim)));
            let (nonce, room) = (nonces.of(number), message.saturating_sub(taken));
            self.work.push(Item { kind, count: 1, number, nonce, template: MAIN, room });
        }
    }
}
