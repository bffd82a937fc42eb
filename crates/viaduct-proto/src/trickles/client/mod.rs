//! The client: it keeps what the server forgets.
//!
//! ```text
//!   want(range) ─▶ asks ──────────────┐                       ┌─▶ poll_transmit: requests
//!   handle ─▶ response ─▶ receiver ─ turns ─▶ request: continuation, proof, asks
//!                 └─▶ poll_arrived: data                  timers: RTO ─▶ restart
//! ```
//!
//! It asks for byte ranges of the server's stream, each with the user continuation that yields
//! them. How many packets a request brings, with which numbers, it knows beforehand, because it
//! computes the server's [plan](super::plan): so it knows which bytes are lost with a packet, and
//! wants them again. What cannot be mended by a lost packet's request, mends a restart.

mod asks;
mod reassembly;
mod receiver;
mod timer;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::continuation::{CONTINUATION, Continuation, LOSS, MOST_LOSSES, Mode};
use super::plan::Plan;
use super::proof::{self, Range};
use super::wire::request::{emit_groups, emit_open, emit_padding, emit_returned};
use super::wire::response::{PAYLOAD_HEAD, overhead};
use super::wire::{Form, MOST_ASKS, MOST_ATTEMPTS, Payload, Response};
use crate::time::{Duration, Instant};
use asks::{Asks, Expected, Want, groups};
pub use reassembly::Reassembly;
use receiver::{Receiver, Turn};
use timer::Trips;

/// The flag of a payload that says: the stream ends with these data.
pub const ENDS: u8 = 0x80;
/// Least bytes of a first request and of a restart, so that a ticket is no longer than they are.
const LEAST_REQUEST: usize = 160;
/// After so long a silence a client restarts of itself.
const SILENCE: Duration = Duration::from_secs(10);

/// What a client is set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Longest message that the client can receive, in bytes.
    pub message: u16,
    /// Bytes that it leaves in each packet for user continuations.
    pub reserve: usize,
    /// Bytes that a first request is padded to, so that more data come with its answer.
    pub pad: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config { message: 1_400, reserve: 0, pad: LEAST_REQUEST }
    }
}

/// Data that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Their place in the stream.
    pub position: u64,
    /// The application's flags; [`ENDS`] if the stream ends with them.
    pub flags: u8,
    /// A user continuation, maybe empty.
    pub user: Bytes,
    /// The data.
    pub data: Bytes,
}

/// What a client did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests sent.
    pub requests: u64,
    /// Packets received.
    pub received: u64,
    /// Packets given up.
    pub lost: u64,
    /// Recoveries entered: pieces that began with survivors.
    pub recoveries: u64,
    /// Restarts asked for.
    pub restarts: u64,
    /// Messages that were no response, or none of this connection.
    pub refused: u64,
}

/// Where a client stands.
#[derive(Debug)]
enum Phase {
    /// The first request is to be answered.
    Opening,
    /// A ticket is held, and to be echoed when something is wanted.
    Ticket,
    /// The first window of a generation is asked for.
    Beginning,
    /// Trickles flow.
    Running(Box<Receiver>),
}

/// A client of a stateless server. See the [module](self).
#[derive(Debug)]
pub struct Client {
    config: Config,
    phase: Phase,
    token: u64,
    generation: u16,
    /// What a restart returns: continuation and proof.
    anchor: Option<(Vec<u8>, Continuation, Vec<u8>)>,
    asks: Asks,
    /// What was asked for the first window, in order.
    promised: VecDeque<Want>,
    held: VecDeque<Turn>,
    /// Nonces of repairs, by number.
    repaired: BTreeMap<u64, u64>,
    trips: Trips,
    attempts: u32,
    count: u32,
    /// What goes to the application with the next request.
    data: Bytes,
    outbox: VecDeque<Vec<u8>>,
    arrived: VecDeque<Arrived>,
    /// When an answer, or a repair, is overdue.
    overdue: Option<Instant>,
    /// When packets that wait give up those before them.
    patience: Option<Instant>,
    heard: Instant,
    stats: Stats,
}

impl Client {
    /// A client that opens a connection: `data` goes to the server's application. `token` is
    /// random, and stands for the connection.
    pub fn open(config: Config, token: u64, data: Bytes, now: Instant) -> Self {
        let mut client = Client {
            config,
            phase: Phase::Opening,
            token,
            generation: 0,
            anchor: None,
            asks: Asks::default(),
            promised: VecDeque::new(),
            held: VecDeque::new(),
            repaired: BTreeMap::new(),
            trips: Trips::default(),
            attempts: 0,
            count: 0,
            data,
            outbox: VecDeque::new(),
            arrived: VecDeque::new(),
            overdue: None,
            patience: None,
            heard: now,
            stats: Stats::default(),
        };
        client.overdue = Some(now);
        client
    }

    /// Wants `length` bytes at `position`, which the user continuation `user` yields.
    pub fn want(&mut self, position: u64, length: u64, user: Bytes) {
        self.asks.want(Want { position, length, user });
    }

    /// The counters so far.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Packets that are to come: the window in use.
    pub fn in_flight(&self) -> usize {
        self.asks.fresh.len() + self.asks.again.len()
    }

    /// Whether everything wanted has arrived, and nothing is to come.
    pub fn is_idle(&self) -> bool {
        !self.asks.is_wanting() && self.in_flight() == 0 && self.promised.is_empty()
    }

    /// A message arrived.
    pub fn handle(&mut self, now: Instant, message: &[u8]) {
        let Ok(response) = Response::parse(message) else {
            self.stats.refused += 1;
            return;
        };
        if response.tag != self.token as u32 || !self.take(now, &response) {
            self.stats.refused += 1;
        }
    }

    /// The next message to send, until None.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Vec<u8>> {
        self.request(now);
        self.outbox.pop_front()
    }

    /// The next data that arrived, in the order of arrival, until None.
    pub fn poll_arrived(&mut self) -> Option<Arrived> {
        self.arrived.pop_front()
    }

    /// The deadline of the earliest timer, if any.
    pub fn poll_timeout(&self) -> Option<Instant> {
        [self.overdue, self.patience].into_iter().flatten().min()
    }

    /// That deadline has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.patience.is_some_and(|patience| patience <= now) {
            self.patience = None;
            if let Phase::Running(receiver) = &mut self.phase {
                receiver.give_up();
            }
            self.settle(now);
        }
        if self.overdue.is_some_and(|overdue| overdue <= now) {
            self.begin_again(now);
        }
    }

    /// A response of this connection; false if it is of another generation.
    fn take(&mut self, now: Instant, response: &Response) -> bool {
        let newer = response.generation.wrapping_sub(self.generation);
        let awaited = match self.phase {
            Phase::Opening => newer == 0,
            Phase::Ticket | Phase::Beginning => newer <= u16::from(MOST_ATTEMPTS),
            Phase::Running(_) => (1..=u16::from(MOST_ATTEMPTS)).contains(&newer),
        };
        match response.form {
            Form::Ticket(bytes) if awaited && (newer > 0 || self.is_opening()) => {
                self.take_ticket(now, bytes, response)
            }
            Form::Fresh(bytes) if awaited && !self.is_opening() => {
                self.begin_generation(bytes) && self.take_packet(now, response)
            }
            _ if newer == 0 => self.take_packet(now, response),
            Form::Ticket(_) | Form::Group(_) => false,
            // Of a generation that is over the data are good still.
            _ => {
                self.late(&response.payload);
                newer > u16::MAX / 2
            }
        }
    }

    fn is_opening(&self) -> bool {
        matches!(self.phase, Phase::Opening)
    }

    fn take_ticket(&mut self, now: Instant, bytes: &[u8], response: &Response) -> bool {
        let Ok((known, _)) = Continuation::peek(bytes) else { return false };
        if known.mode != Mode::Ticket {
            return false;
        }
        let mut proof = Vec::new();
        let number = known.number;
        proof::emit(
            known.piece.base,
            &[Range { first: known.piece.base, last: number, sum: 0 }],
            &mut proof,
        );
        self.generation = response.generation;
        self.anchor = Some((bytes.to_vec(), known, proof));
        self.phase = Phase::Ticket;
        self.forget_flight();
        self.hear(now);
        self.overdue = None;
        let want = self.promised.pop_front();
        self.deliver(want, &response.payload);
        self.unpromise();
        true
    }

    /// The first packet of a generation that was asked for.
    fn begin_generation(&mut self, bytes: &[u8]) -> bool {
        let Ok((known, _)) = Continuation::peek(bytes) else { return false };
        if known.mode != Mode::Begun {
            return false;
        }
        let sent = self.heard;
        let promised = std::mem::take(&mut self.promised);
        self.forget_flight();
        self.promised = promised;
        self.generation = known.generation;
        self.phase = Phase::Running(Box::new(Receiver::new(known.piece)));
        for number in (known.piece.base..).take(known.piece.start.into()) {
            let want = self.promised.pop_front();
            self.asks.fresh.insert(number, Expected { sent, want });
        }
        self.unpromise();
        true
    }

    /// A packet of the present generation.
    fn take_packet(&mut self, now: Instant, response: &Response) -> bool {
        let Phase::Running(receiver) = &mut self.phase else { return false };
        let number = response.number;
        let mut new = false;
        match response.form {
            Form::Ticket(_) => return false,
            Form::Again => {
                let Some(expected) = self.asks.again.remove(&number) else { return false };
                self.repaired.insert(number, response.nonce);
                self.hear(now);
                self.deliver(expected.want, &response.payload);
                self.settle(now);
                return true;
            }
            Form::Fresh(bytes) => {
                let Ok((known, _)) = Continuation::peek(bytes) else { return false };
                if known.number == number {
                    new = receiver.arrive(number, response.nonce, Some((bytes.to_vec(), known)));
                }
            }
            Form::Half => new = receiver.arrive(number, response.nonce, None),
            Form::Group(group) => {
                for (number, nonce, bytes) in group.packets() {
                    let packet = bytes.and_then(|bytes| {
                        let (known, _) = Continuation::peek(&bytes).ok()?;
                        Some((bytes, known))
                    });
                    new |= receiver.arrive(number, nonce, packet);
                    self.asks.fresh.remove(&number);
                }
            }
        }
        if !new {
            self.late(&response.payload);
            return true;
        }
        if let Some(expected) = self.asks.fresh.remove(&number) {
            if self.attempts == 0 {
                self.trips.measure(now.since(expected.sent));
            }
            self.deliver(expected.want, &response.payload);
        } else {
            self.late(&response.payload);
        }
        self.hear(now);
        self.settle(now);
        true
    }

    /// Something new came: the timers begin anew.
    fn hear(&mut self, now: Instant) {
        self.stats.received += 1;
        self.heard = now;
        self.attempts = 0;
    }

    /// Takes what the receiver has decided, and sets the timers.
    fn settle(&mut self, now: Instant) {
        let Phase::Running(receiver) = &mut self.phase else { return };
        self.stats.recoveries += u64::from(receiver.take_recovered());
        while let Some(number) = receiver.take_lost() {
            self.stats.lost += 1;
            if let Some(expected) = self.asks.fresh.remove(&number) {
                self.asks.want_again(expected.want);
            }
        }
        while let Some(turn) = receiver.take_turn() {
            self.anchor = Some((turn.bytes.clone(), turn.known, turn.proof.clone()));
            self.held.push_back(turn);
        }
        let waits = receiver.waits();
        self.patience = match self.patience {
            _ if !waits => None,
            None => Some(now + self.trips.patience()),
            already => already,
        };
        self.set_overdue();
    }

    fn set_overdue(&mut self) {
        let wait = self.trips.wait(self.attempts);
        let repair = self.asks.again.values().map(|expected| expected.sent + wait).min();
        // Something may be wanted with no trickle left to ask for it, or none without a repair.
        let answer = (!self.is_idle()).then(|| self.heard + wait);
        self.overdue = [repair, answer].into_iter().flatten().min();
    }

    /// Hands data on; what was wanted and did not come with them is wanted again.
    fn deliver(&mut self, want: Option<Want>, payload: &Payload) {
        let end = payload.position + payload.data.len() as u64;
        if payload.flags & ENDS != 0 {
            self.asks.end_at(end);
        } else if let Some(want) = want {
            let wanted = want.position + want.length;
            if payload.data.is_empty() || payload.position != want.position {
                self.asks.want_again(Some(want));
            } else if end < wanted {
                self.asks.want_again(Some(Want { position: end, length: wanted - end, ..want }));
            }
        }
        self.late(payload);
    }

    /// Hands data on that nobody waits for any more.
    fn late(&mut self, payload: &Payload) {
        if payload.data.is_empty() && payload.user.is_empty() && payload.flags == 0 {
            return;
        }
        self.arrived.push_back(Arrived {
            position: payload.position,
            flags: payload.flags,
            user: Bytes::copy_from_slice(payload.user),
            data: Bytes::copy_from_slice(payload.data),
        });
    }

    /// What was asked for the first window beyond it is wanted still.
    fn unpromise(&mut self) {
        while let Some(want) = self.promised.pop_back() {
            self.asks.want_again(Some(want));
        }
    }

    /// Nothing of the present generation will come.
    fn forget_flight(&mut self) {
        self.asks.forget_all();
        self.held.clear();
        self.repaired.clear();
        self.patience = None;
    }

    /// Nothing came for too long.
    fn begin_again(&mut self, now: Instant) {
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
    fn request(&mut self, now: Instant) {
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

const _: () = assert!(PAYLOAD_HEAD < LEAST_REQUEST);
