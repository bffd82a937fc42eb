//! Requests that begin trickles: an open request, the echo of an address token, a restart, a
//! request from a new address.

use std::net::SocketAddr;

use super::grant::Event;
use super::judge::Home;
use super::work::{Item, MAIN};
use super::{APART, Arrival, MIN_AGE, MIN_MESSAGE, Refusal, Server, Settings, instant};
use crate::time::{Duration, Instant};
use crate::trickles::SILENCE;
use crate::trickles::continuation::{Continuation, Losses, Mode};
use crate::trickles::epoch::Epoch;
use crate::trickles::plan::{self, MAX_BURST};
use crate::trickles::replay::Once;
use crate::trickles::wire::MAX_ATTEMPTS;
use crate::trickles::wire::request::Returned;
use crate::trickles::wire::response::{Kind, overhead};

/// Maximum time by which the numbers of an epoch may be ahead of the clock: far less than the
/// horizon.
const MAX_LEAD: Duration = Duration::from_secs(5);

impl Server {
    /// Answers a first request with an address token, in a message no longer than the request.
    pub(super) fn open(&mut self, at: Arrival, token: u64, message: u16) -> Result<Event, Refusal> {
        let keys = self.ring.newest();
        let address = keys.address(at.from);
        let address_token = Continuation {
            connection: keys.connection(token, address, at.now.as_nanos()),
            tag: token as u32,
            message: message.clamp(MIN_MESSAGE, self.settings.message.max(MIN_MESSAGE)),
            ..blank(&self.settings)
        };
        let connection = address_token.connection;
        self.offer(at, address_token, 0)?;
        self.stats.opened += 1;
        Ok(Event::Open { connection })
    }

    /// Processes a restart after a timeout, or after a silence of the client.
    pub(super) fn restart(
        &mut self,
        at: Arrival,
        attempt: u8,
        returned: &Returned,
    ) -> Result<Event, Refusal> {
        let (known, now) = (Continuation::open(&self.ring, returned.continuation)?, at.now);
        let age = now.since(instant(now, known.timestamp));
        self.check_lead(now, &known, attempt)?;
        let address = match self.home(at.from, &known, returned) {
            Home::Here(address) => address,
            home => return self.elsewhere(at, &known, attempt, home),
        };
        let silent = attempt == 1 && age > SILENCE;
        if attempt == MAX_ATTEMPTS || !self.replay.admit(now, instant(now, known.timestamp)) {
            return self.resumed(at, &known, attempt, silent);
        }
        if attempt > 1 && age < MIN_AGE * (1 << (attempt - 1)) {
            return Err(Refusal::TooSoon { attempt, age });
        }
        self.use_series_of(&known, at.from)?;
        let epoch = self.restarted(now, &known, silent, returned)?;
        let generation = known.generation.wrapping_add(attempt.into());
        self.begin_generation(now, known.connection, generation, attempt.into())?;
        if silent {
            self.stats.resumed += 1;
        } else {
            self.stats.timeouts += 1;
        }
        let connection = known.connection;
        let first = Continuation { mode: Mode::Begun, generation, epoch, ..known };
        let mut first = self.timed(now, address, first);
        first.losses = Losses::default();
        first.nonces = self.ring.newest().number();
        self.begin(at.from, first)?;
        Ok(Event::Request { connection })
    }

    /// Refuses a restart whose packet numbers would begin far ahead of the clock, as happens after
    /// many restarts in a row. If such a restart were replayed after the horizon, its numbers would
    /// begin at the same value again. The check applies only to continuations within the horizon,
    /// and not to continuations made before the clock was set back.
    fn check_lead(&self, now: Instant, known: &Continuation, attempt: u8) -> Result<(), Refusal> {
        let made = instant(now, known.timestamp);
        let begins = known.number.saturating_add(APART);
        match self.replay.is_fresh(now, made) && begins > base_at(now + MAX_LEAD, 0) {
            true => Err(Refusal::TooSoon { attempt, age: now.since(made) }),
            false => Ok(()),
        }
    }

    /// Epoch that a restart begins. After a timeout ssthresh is half of the window before the
    /// first loss. After a silence without a known loss the client gets the initial window,
    /// with ssthresh at three quarters of the old window (RFC 2861).
    fn restarted(
        &self,
        now: Instant,
        known: &Continuation,
        silent: bool,
        returned: &Returned,
    ) -> Result<Epoch, Refusal> {
        let base = base_at(now, known.number + APART);
        let (start, ssthresh) = if known.mode == Mode::AddressToken {
            self.timed_out(known, known.number)
        } else {
            match self.gaps(known, returned)?.runs().first() {
                None if silent => self.anew(known),
                gap => self.timed_out(known, gap.map_or(known.number, |gap| gap.first - 1)),
            }
        };
        let ssthresh = u16::try_from(ssthresh.max(2)).unwrap_or(u16::MAX);
        Ok(Epoch { base, start, ssthresh, acks: known.epoch.acks })
    }

    /// Processes a restart with a continuation beyond the horizon, or the last attempt of a
    /// restart. The request may be a replay, and its address may belong to another host by now. So
    /// the client gets only an address token, in a message no longer than the request, until it has
    /// echoed the token.
    fn resumed(
        &mut self,
        at: Arrival,
        known: &Continuation,
        attempt: u8,
        silent: bool,
    ) -> Result<Event, Refusal> {
        let first = if silent { self.anew(known) } else { self.timed_out(known, known.number) };
        let event = self.readmit(at, known, attempt, first)?;
        self.stats.resumed += u64::from(silent);
        Ok(event)
    }

    /// First window and ssthresh after a silence (RFC 2861).
    fn anew(&self, known: &Continuation) -> (u16, u64) {
        let ssthresh = match known.mode {
            Mode::AddressToken => known.epoch.ssthresh.into(),
            _ => known.epoch.window(known.number) * 3 / 4,
        };
        (self.settings.initial_window, ssthresh)
    }

    /// First window and ssthresh after a change of address: half of the window, as after a loss,
    /// because a client that moves need not report its earlier losses.
    fn at_another(&self, known: &Continuation) -> (u16, u64) {
        let (start, ssthresh) = (self.settings.initial_window, known.epoch.ssthresh.into());
        match known.mode {
            Mode::AddressToken => (start.min(known.epoch.start), ssthresh),
            _ => {
                let half = (known.epoch.window(known.number) / 2).max(2);
                (u16::try_from(half).unwrap_or(u16::MAX).min(start), half)
            }
        }
    }

    /// First window and ssthresh after a timeout, if all packets up to `reached` have arrived.
    fn timed_out(&self, known: &Continuation, reached: u64) -> (u16, u64) {
        let ssthresh = match known.mode {
            Mode::AddressToken => known.epoch.ssthresh.into(),
            _ => known.epoch.window(reached) / 2,
        };
        (self.settings.loss_window, ssthresh)
    }

    /// Processes a request from another address, or with an expired continuation: the client gets
    /// only an address token, in a message no longer than the request, until it has echoed the
    /// token.
    pub(super) fn elsewhere(
        &mut self,
        at: Arrival,
        known: &Continuation,
        attempt: u8,
        home: Home,
    ) -> Result<Event, Refusal> {
        self.check_lead(at.now, known, attempt)?;
        let offered = self.readmit(at, known, attempt, self.at_another(known));
        match home {
            // The client cannot know that the continuation has expired, so a request that is
            // too short is not a sign of an attack. The client restarts, and pads the restart.
            Home::Expired => {
                self.stats.renewed += u64::from(offered.is_ok());
                offered.map_err(|_| Refusal::Expired)
            }
            Home::Here(_) | Home::Elsewhere => {
                self.stats.moved += u64::from(offered.is_ok());
                offered
            }
        }
    }

    /// Offers an address token for a known connection. Nothing is recorded before the token's echo,
    /// so a client may repeat the request, even if the answers to all other attempts were lost.
    fn readmit(
        &mut self,
        at: Arrival,
        known: &Continuation,
        attempt: u8,
        (start, ssthresh): (u16, u64),
    ) -> Result<Event, Refusal> {
        let mut address_token = Continuation {
            connection: known.connection,
            tag: known.tag,
            generation: known.generation.wrapping_add(attempt.into()),
            message: known.message,
            ..blank(&self.settings)
        };
        let ssthresh = u16::try_from(ssthresh.max(2)).unwrap_or(u16::MAX);
        let begins = known.number.saturating_add(APART);
        // Numbers that are far ahead come from a clock that was ahead, because
        // [`Server::check_lead`] refuses all others. The new numbers begin at the current time
        // instead. If they overlap with earlier numbers, the nonces of the new generation differ.
        let base = if begins > base_at(at.now + MAX_LEAD, 0) { 0 } else { begins };
        let start = start.max(1);
        address_token.epoch = Epoch { base, start, ssthresh, ..address_token.epoch };
        self.offer(at, address_token, attempt)?;
        Ok(Event::Request { connection: known.connection })
    }

    /// Lays out the address token in answer to a request. `attempt` is the number of the restart
    /// attempt: 0 for a new connection, 1 for a step.
    fn offer(
        &mut self,
        Arrival { now, from, len }: Arrival,
        address_token: Continuation,
        attempt: u8,
    ) -> Result<(), Refusal> {
        let base = base_at(now, address_token.epoch.base);
        let epoch = Epoch { base, ..address_token.epoch };
        let address = self.ring.newest().address(from);
        let mut address_token = self.timed(now, address, Continuation { epoch, ..address_token });
        address_token.number = base + u64::from(attempt);
        address_token.rtt = 0;
        address_token.nonces = self.ring.newest().number();
        let least = overhead(Some(address_token.len()));
        let room = len.min(address_token.message.into()).checked_sub(least);
        let room = room.ok_or(Refusal::TooShort { len, address_token: least })?;
        self.templates[MAIN] = address_token;
        let (kind, number, nonce) = (Kind::AddressToken, address_token.number, 0);
        self.work.push(Item { kind, count: 1, number, nonce, template: MAIN, room });
        Ok(())
    }

    /// Processes the echo of an address token from the token's address: begins the first window.
    pub(super) fn echo(
        &mut self,
        at: Arrival,
        address_token: &Continuation,
    ) -> Result<(), Refusal> {
        let attempt = address_token.number - address_token.epoch.base;
        let Continuation { connection, generation, .. } = *address_token;
        self.begin_generation(at.now, connection, generation, attempt as u16)?;
        self.begin(at.from, Continuation { mode: Mode::Begun, ..*address_token })
    }

    /// Records that `generation` begins, and that the `ended` generations before it have ended.
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

    /// Lays out the first window of `first`'s epoch, for the client at `from`.
    fn begin(&mut self, from: SocketAddr, first: Continuation) -> Result<(), Refusal> {
        self.use_series_of(&first, from)?;
        self.templates[MAIN] = first;
        self.fresh(first.epoch, plan::begin(first.epoch).fresh, false);
        Ok(())
    }
}

/// Template of a continuation, without a connection.
pub(super) fn blank(settings: &Settings) -> Continuation {
    let acks = settings.acks;
    let (start, ssthresh) = (settings.initial_window.max(1), settings.ssthresh.max(2));
    Continuation {
        mode: Mode::AddressToken,
        connection: 0,
        generation: 0,
        tag: 0,
        epoch: Epoch { base: 1, start, ssthresh, acks },
        number: 1,
        timestamp: 0,
        rtt: 0,
        nonces: 0,
        address: 0,
        message: settings.message,
        burst: settings.burst_limit.clamp(1, MAX_BURST as u8),
        delta: settings.delta,
        losses: Losses::default(),
    }
}

/// First number of an epoch that begins now, at least `least`. Numbers advance by 16 for each
/// microsecond of the clock, so that an epoch does not use the numbers of an earlier epoch. Two
/// address tokens of one connection that are made at about the same time can have the same numbers,
/// but belong to two generations or two addresses, whose nonces differ.
fn base_at(now: Instant, least: u64) -> u64 {
    (now.as_nanos() / 1_000 * 16).max(least).clamp(1, (1 << 62) - 1)
}
