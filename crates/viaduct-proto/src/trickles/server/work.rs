//! How a request is judged, and its answer's packets are laid out.

use std::net::SocketAddr;

use super::answer::Event;
use super::{APART, LEAST_AGE, LEAST_MESSAGE, Refusal, Server, Settings};
use crate::time::{Duration, Instant};
use crate::trickles::continuation::{Continuation, Invalid, Losses, Mode};
use crate::trickles::keys::Keys;
use crate::trickles::piece::Piece;
use crate::trickles::plan::{self, Plan, Run, Span};
use crate::trickles::proof::Gaps;
use crate::trickles::replay::Once;
use crate::trickles::wire::request::Returned;
use crate::trickles::wire::response::{MOST_GROUP, overhead};

/// One packet of an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub(super) form: Form,
    pub(super) number: u64,
    pub(super) nonce: u64,
    /// Which template its continuation is made of.
    pub(super) template: usize,
    /// Bytes for user continuation and data.
    pub(super) room: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Ticket,
    Fresh,
    Half,
    Again,
    Group { count: u8 },
}

/// Templates: of what makes up for the end of the piece before, and of what the request brings.
const TAIL: usize = 0;
const MAIN: usize = 1;

/// What is known of a request whose continuation is authentic.
struct Judged {
    /// Which end of the piece before is made up for.
    tail: Option<Plan>,
    plan: Plan,
    /// Losses to be repaired: of continuations in the present piece, and of those that follow.
    losses: [Losses; 2],
}

impl Server {
    /// A ticket for a new connection, with no more bytes than came.
    pub(super) fn open(
        &mut self,
        now: Instant,
        from: SocketAddr,
        token: u64,
        message: u16,
        len: usize,
    ) -> Result<Event, Refusal> {
        let keys = self.ring.newest();
        let address = keys.address(from);
        let ticket = Continuation {
            connection: keys.connection(token, address, now.as_nanos()),
            tag: token as u32,
            message: message.clamp(LEAST_MESSAGE, self.settings.message.max(LEAST_MESSAGE)),
            ..blank(&self.settings)
        };
        let connection = ticket.connection;
        self.offer(now, from, ticket, 0, len)?;
        self.stats.opened += 1;
        Ok(Event::Open { connection })
    }

    /// A trickle goes on, or a ticket is echoed.
    pub(super) fn step(
        &mut self,
        now: Instant,
        from: SocketAddr,
        returned: &Returned,
        len: usize,
    ) -> Result<Event, Refusal> {
        let known = Continuation::open(&self.ring, returned.continuation)?;
        let made = instant(known.timestamp);
        if !self.replay.is_fresh(now, made) {
            return Err(Refusal::Stale { age: now.since(made) });
        }
        if !self.is_home(from, &known, returned) {
            return self.moved(now, from, &known, 1, len);
        }
        let connection = known.connection;
        if self.replay.knows(connection, Once::Over(known.generation)) {
            return Err(Refusal::Superseded(known.generation));
        }
        let known = self.timed(now, from, known);
        if known.mode == Mode::Ticket {
            self.echo(now, &known)?;
            return Ok(Event::Request { connection });
        }
        // The proof comes first: who has only overheard a continuation cannot use it up.
        let judged = self.judge(&known, returned)?;
        if !self.replay.note(now, connection, Once::Answered(known.number)) {
            return Err(Refusal::Replayed);
        }
        self.issue(now, &known, &judged)?;
        Ok(Event::Request { connection })
    }

    /// The client heard nothing for too long, or was silent itself.
    pub(super) fn restart(
        &mut self,
        now: Instant,
        from: SocketAddr,
        attempt: u8,
        returned: &Returned,
        len: usize,
    ) -> Result<Event, Refusal> {
        let known = Continuation::open(&self.ring, returned.continuation)?;
        let age = now.since(instant(known.timestamp));
        if !self.is_home(from, &known, returned) {
            return self.moved(now, from, &known, attempt, len);
        }
        let stale = !self.replay.is_fresh(now, instant(known.timestamp));
        if attempt > 1 && age < LEAST_AGE * (1 << (attempt - 1)) {
            return Err(Refusal::TooSoon { attempt, age });
        }
        let piece = self.restarted(now, &known, stale, returned)?;
        let generation = known.generation.wrapping_add(attempt.into());
        self.begin_generation(now, known.connection, generation, attempt.into())?;
        if stale {
            self.stats.resumed += 1;
        } else {
            self.stats.timeouts += 1;
        }
        let connection = known.connection;
        let first = Continuation { mode: Mode::Begun, generation, piece, ..known };
        let mut first = self.timed(now, from, first);
        first.losses = Losses::default();
        first.nonces = self.ring.newest().number();
        self.begin(first);
        Ok(Event::Request { connection })
    }

    /// The piece that a restart begins: after a timeout ssthresh is half of the window before the
    /// first loss; after a silence the window begins anew, and may grow to three quarters quickly.
    fn restarted(
        &self,
        now: Instant,
        known: &Continuation,
        stale: bool,
        returned: &Returned,
    ) -> Result<Piece, Refusal> {
        let base = base_at(now, known.number + APART);
        let (start, ssthresh) = if known.mode == Mode::Ticket {
            (self.settings.loss_window, u64::from(known.piece.ssthresh))
        } else if stale {
            (self.settings.initial_window, known.piece.window(known.number) * 3 / 4)
        } else {
            let gaps = self.gaps(known, returned)?;
            let lost = gaps.runs().first().map_or(known.number + 1, |gap| gap.first);
            (self.settings.loss_window, known.piece.window(lost - 1) / 2)
        };
        let ssthresh = u16::try_from(ssthresh.max(2)).unwrap_or(u16::MAX);
        Ok(Piece { base, start, ssthresh, acks: known.piece.acks })
    }

    /// The client comes from another address: it gets a ticket there, and no more bytes than it
    /// sent, until it has echoed that.
    fn moved(
        &mut self,
        now: Instant,
        from: SocketAddr,
        known: &Continuation,
        attempt: u8,
        len: usize,
    ) -> Result<Event, Refusal> {
        let mut ticket = Continuation {
            connection: known.connection,
            tag: known.tag,
            generation: known.generation.wrapping_add(attempt.into()),
            message: known.message,
            ..blank(&self.settings)
        };
        ticket.piece.base = known.number + APART;
        self.offer(now, from, ticket, attempt, len)?;
        self.stats.moved += 1;
        Ok(Event::Request { connection: known.connection })
    }

    /// Lays out a ticket that answers the `attempt`-th request to begin, of `len` bytes.
    fn offer(
        &mut self,
        now: Instant,
        from: SocketAddr,
        ticket: Continuation,
        attempt: u8,
        len: usize,
    ) -> Result<(), Refusal> {
        let base = base_at(now, ticket.piece.base);
        let piece = Piece { base, ..ticket.piece };
        let mut ticket = self.timed(now, from, Continuation { piece, ..ticket });
        ticket.number = base + u64::from(attempt);
        ticket.rtt = 0;
        ticket.nonces = self.ring.newest().number();
        let least = overhead(Some(ticket.len()));
        let room = len.min(ticket.message.into()).checked_sub(least);
        let room = room.ok_or(Refusal::TooShort { len, ticket: least })?;
        self.templates[MAIN] = ticket;
        let (number, nonce) = (ticket.number, 0);
        self.work.push(Item { form: Form::Ticket, number, nonce, template: MAIN, room });
        Ok(())
    }

    /// A ticket came back from where it was sent: the first window begins.
    fn echo(&mut self, now: Instant, ticket: &Continuation) -> Result<(), Refusal> {
        let attempt = ticket.number - ticket.piece.base;
        self.begin_generation(now, ticket.connection, ticket.generation, attempt as u16)?;
        self.begin(Continuation { mode: Mode::Begun, ..*ticket });
        Ok(())
    }

    /// Notes that `generation` begins, and that the `ended` generations before it are over.
    fn begin_generation(
        &mut self,
        now: Instant,
        connection: u64,
        generation: u16,
        ended: u16,
    ) -> Result<(), Refusal> {
        if self.replay.knows(connection, Once::Over(generation)) {
            return Err(Refusal::Superseded(generation));
        }
        if !self.replay.note(now, connection, Once::Begun(generation)) {
            return Err(Refusal::Replayed);
        }
        for back in 1..=ended {
            self.replay.note(now, connection, Once::Over(generation.wrapping_sub(back)));
        }
        Ok(())
    }

    /// Lays out the first window of `first`'s piece.
    fn begin(&mut self, first: Continuation) {
        self.templates[MAIN] = first;
        self.fresh(first.piece, plan::begin(first.piece).fresh);
    }

    /// What an authentic, fresh request shows, and what that brings.
    fn judge(&mut self, known: &Continuation, returned: &Returned) -> Result<Judged, Refusal> {
        let gaps = self.gaps(known, returned)?;
        let mut losses = self.unrepaired(known, returned.repaired)?;
        let burst = known.burst.into();
        let mut tail = None;
        if let Some(end) = returned.tail.filter(|_| known.mode == Mode::Survivors) {
            tail = Some(plan::tail(known.piece, known.number, end, burst)?);
            let first = known.piece.base.saturating_sub(end.lost.into());
            if end.lost > 0 {
                losses.push(Run { first, count: end.lost });
            }
        }
        let plan = plan::step(known.piece, known.number, gaps.runs(), burst)?;
        let mut later = losses;
        gaps.runs().iter().for_each(|&gap| later.push(gap));
        self.stats.recoveries += u64::from(!gaps.runs().is_empty());
        Ok(Judged { tail, plan, losses: [losses, later] })
    }

    /// The losses that a request's proof tells of.
    fn gaps(&self, known: &Continuation, returned: &Returned) -> Result<Gaps, Refusal> {
        let keys = self.nonce_keys(known)?;
        let mut nonces = keys.nonces(known.connection);
        Ok(returned.proof.check(known.piece.base, known.number, &mut nonces)?)
    }

    /// The losses that still wait for their repair. In the first window after a recovery they may;
    /// then they count as lost again, which takes a timeout.
    fn unrepaired(&self, known: &Continuation, repaired: Option<u64>) -> Result<Losses, Refusal> {
        let window = known.piece.base + u64::from(known.piece.start);
        match (known.losses.runs(), repaired) {
            ([], _) => Ok(Losses::default()),
            (_, None) if known.number < window => Ok(known.losses),
            (_, None) => Err(Refusal::Unrepaired),
            (runs, Some(sum)) => {
                let mut nonces = self.nonce_keys(known)?.nonces_again(known.connection);
                let right = runs.iter().map(|run| nonces.sum(run.first, run.last()));
                let right = right.fold(0, |sum, nonce| sum ^ nonce);
                if sum == right { Ok(Losses::default()) } else { Err(Refusal::Unrepaired) }
            }
        }
    }

    fn nonce_keys(&self, known: &Continuation) -> Result<&Keys, Refusal> {
        let keys = self.ring.get(known.nonces);
        keys.ok_or(Refusal::Invalid(Invalid::UnknownSecret(known.nonces)))
    }

    /// Lays out what a step brings.
    fn issue(
        &mut self,
        now: Instant,
        known: &Continuation,
        judged: &Judged,
    ) -> Result<(), Refusal> {
        let [losses, later] = judged.losses;
        let plan = &judged.plan;
        let recovered = plan.piece.base != known.piece.base;
        let mode = if recovered { Mode::Survivors } else { known.mode };
        self.templates[TAIL] = Continuation { losses, ..*known };
        self.templates[MAIN] = Continuation { mode, piece: plan.piece, losses: later, ..*known };
        if let Some(tail) = &judged.tail {
            self.again(now, known, tail.again.numbers())?;
            self.group(now, TAIL, tail.grouped);
        }
        self.again(now, known, plan.again.numbers())?;
        self.group(now, MAIN, plan.grouped);
        if recovered {
            // They are noted one by one, so that no other request brings them too.
            let connection = known.connection;
            for number in plan.fresh.numbers() {
                if self.replay.note(now, connection, Once::Survivor(number)) {
                    self.fresh(plan.piece, Span::new(number, number + 1));
                }
            }
        } else {
            self.fresh(plan.piece, plan.fresh);
        }
        Ok(())
    }

    fn again(
        &mut self,
        now: Instant,
        known: &Continuation,
        numbers: &[u64],
    ) -> Result<(), Refusal> {
        let room = usize::from(known.message).saturating_sub(overhead(None));
        for &number in numbers {
            if self.replay.note(now, known.connection, Once::Again(number)) {
                let nonce = self.nonce_keys(known)?.nonces_again(known.connection).of(number);
                self.work.push(Item { form: Form::Again, number, nonce, template: MAIN, room });
            }
        }
        Ok(())
    }

    fn group(&mut self, now: Instant, template: usize, span: Span) {
        let connection = self.templates[template].connection;
        for number in span.numbers() {
            if !self.replay.note(now, connection, Once::Survivor(number)) {
                continue;
            }
            match self.work.last_mut() {
                Some(Item { form: Form::Group { count }, number: first, template: of, .. })
                    if *of == template
                        && *first + u64::from(*count) == number
                        && u64::from(*count) < MOST_GROUP =>
                {
                    *count += 1;
                }
                _ => {
                    let form = Form::Group { count: 1 };
                    self.work.push(Item { form, number, nonce: 0, template, room: 0 });
                }
            }
        }
    }

    fn fresh(&mut self, piece: Piece, span: Span) {
        let template = self.templates[MAIN];
        let Some(keys) = self.ring.get(template.nonces) else { return };
        let mut nonces = keys.nonces(template.connection);
        let message = usize::from(template.message);
        for number in span.numbers() {
            let point = piece.is_point(number);
            let form = if point { Form::Fresh } else { Form::Half };
            let taken = overhead(point.then(|| template.len()));
            let (nonce, room) = (nonces.of(number), message.saturating_sub(taken));
            self.work.push(Item { form, number, nonce, template: MAIN, room });
        }
    }

    /// Whether the request comes from where its continuation was sent.
    fn is_home(&self, from: SocketAddr, known: &Continuation, returned: &Returned) -> bool {
        let secret = returned.continuation.first().and_then(|&number| self.ring.get(number));
        secret.is_some_and(|keys| keys.address(from) == known.address)
    }

    /// `known` at the present time and under the newest secret, with the round trip that it shows.
    fn timed(&self, now: Instant, from: SocketAddr, known: Continuation) -> Continuation {
        let trip = now.since(instant(known.timestamp)).as_micros();
        let trip = u32::try_from(trip).unwrap_or(u32::MAX);
        let rtt = match known.rtt {
            0 => trip,
            old => old - old / 8 + trip / 8,
        };
        let address = self.ring.newest().address(from);
        Continuation { timestamp: micros(now), rtt: rtt.max(1), address, ..known }
    }
}

/// A continuation of no connection yet.
pub(super) fn blank(settings: &Settings) -> Continuation {
    let acks = settings.acks;
    let (start, ssthresh) = (settings.initial_window.max(1), settings.ssthresh.max(2));
    Continuation {
        mode: Mode::Ticket,
        connection: 0,
        generation: 0,
        tag: 0,
        piece: Piece { base: 1, start, ssthresh, acks },
        number: 1,
        timestamp: 0,
        rtt: 0,
        nonces: 0,
        address: 0,
        message: settings.message,
        burst: settings.burst_limit.max(1),
        losses: Losses::default(),
    }
}

/// The first number of a piece that begins now: 16 for each microsecond of the clock, so that a
/// connection's numbers, and with them its nonces, are never used twice; and not below `least`.
fn base_at(now: Instant, least: u64) -> u64 {
    (micros(now) * 16).max(least).clamp(1, (1 << 62) - 1)
}

fn micros(now: Instant) -> u64 {
    (now.as_nanos() / 1_000) & ((1 << 48) - 1)
}

fn instant(micros: u64) -> Instant {
    Instant::ZERO + Duration::from_micros(micros)
}
