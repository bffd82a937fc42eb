//! One link: its sessions, what comes by it and what leaves.
//!
//! | file | |
//! |---|---|
//! | here | what comes |
//! | `turn` | what leaves |
//! | `ends` | what the ends of flows ask for |

mod ends;
mod turn;

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::flow::Failure;
use crate::time::Instant;
use crate::tunnel::common::{Common, Event, LinkError, SessionId, Settings};
use crate::tunnel::rtt::Rtt;
use crate::tunnel::session::{Receiving, Sending, Session, Tell};
use crate::tunnel::stats::LinkStats;
use crate::tunnel::wire::{Frame, Hello, Opening, Parser};

/// Frames besides data that may wait: a peer that makes us answer must read the answers.
const MOST_CONTROL: usize = 64 << 10;

/// How a link carries its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// All in one stream: TCP.
    Stream,
    /// Each session's in a stream of its own, and the link's in another: QUIC.
    Streams,
}

/// Where frames go on a link: 0, or with [`Carrier::Streams`] the number of a session for what it
/// sends; acknowledgements go by 0.
pub type Lane = u32;

/// A link.
#[derive(Debug)]
pub(super) struct Mux {
    pub(super) number: u32,
    carrier: Carrier,
    /// Whether the shell takes bytes to send.
    pub(super) room: bool,
    /// The peer's first frame.
    pub(super) hello: Option<Hello>,
    pub(super) sessions: BTreeMap<u32, Session>,
    /// How many of them have an even number, and an odd one.
    open: [u32; 2],
    /// The number of the next session that this end opens.
    next: u32,
    /// The highest that the peer has opened.
    highest: u32,
    lanes: HashMap<Lane, Parser>,
    pub(super) control: VecDeque<(u32, Frame<'static>)>,
    /// Broken links that the peer was told of by this one.
    pub(super) told_gone: Vec<u32>,
    /// Sessions with data queued, in turn.
    ready: VecDeque<u32>,
    /// All of them were refused, when the tokens had changed so often.
    refused: Option<u64>,
    acks: Vec<u32>,
    ack_at: Option<Instant>,
    pub(super) rtt: Rtt,
    ping_at: Instant,
    /// Whether a PING is to leave, and what the last one said until it is answered.
    ping_due: bool,
    pinged: Option<u64>,
    heard: Instant,
    /// Whether this end, and the other, open no more sessions here.
    pub(super) leaving: [bool; 2],
    pub(super) sent: u64,
    pub(super) received: u64,
}

impl Mux {
    pub(super) fn new(
        number: u32,
        carrier: Carrier,
        dialled: bool,
        now: Instant,
        cx: &Common,
    ) -> Mux {
        let tokens = cx.room.total();
        let hello = Hello {
            instance: cx.instance,
            link: number,
            tokens,
            floor: cx.settings.floor,
            sessions: cx.settings.sessions,
        };
        Mux {
            number,
            carrier,
            room: true,
            hello: None,
            sessions: BTreeMap::new(),
            open: [0; 2],
            next: if dialled { 1 } else { 2 },
            highest: 0,
            lanes: HashMap::new(),
            control: [(0, Frame::Hello(hello))].into(),
            told_gone: Vec::new(),
            ready: VecDeque::new(),
            refused: None,
            acks: Vec::new(),
            ack_at: None,
            rtt: Rtt::default(),
            ping_at: now + cx.settings.ping,
            ping_due: true,
            pinged: None,
            heard: now,
            leaving: [false; 2],
            sent: 0,
            received: 0,
        }
    }

    fn id(&self, number: u32) -> SessionId {
        SessionId { link: self.number, number }
    }

    /// Bytes came by `lane`.
    pub(super) fn handle_bytes(
        &mut self,
        now: Instant,
        cx: &mut Common,
        lane: Lane,
        mut bytes: &[u8],
    ) -> Result<(), LinkError> {
        self.heard = now;
        let mut parser = self.lanes.remove(&lane).unwrap_or_default();
        while let Some((session, frame)) = parser.next(&mut bytes)? {
            if self.lane_of(session, &frame) != lane {
                return Err(LinkError::Protocol("a frame of another session's stream"));
            }
            match session {
                0 => self.handle_link(now, cx, frame)?,
                _ => self.handle_session(now, cx, session, frame)?,
            }
        }
        if lane == 0 || !parser.is_between() || self.sessions.contains_key(&lane) {
            self.lanes.insert(lane, parser);
        }
        if self.control.len() > MOST_CONTROL { Err(LinkError::Deaf) } else { Ok(()) }
    }

    /// The lane that a frame leaves by. What a receiver tells a sender must not wait behind the
    /// bytes that it sends itself.
    fn lane_of(&self, session: u32, frame: &Frame<'_>) -> Lane {
        match (self.carrier, frame) {
            (Carrier::Stream, _) | (_, Frame::Ack(_) | Frame::FinAck) => 0,
            (Carrier::Streams, _) => session,
        }
    }

    /// Nothing follows on a lane.
    pub(super) fn lane_ended(&mut self, cx: &mut Common, lane: Lane) {
        // The peer may have forgotten the session before our RST came.
        if self.sessions.get(&lane).is_some_and(|session| session.resetting) {
            self.forget(cx, lane);
        }
    }

    fn handle_link(
        &mut self,
        now: Instant,
        cx: &mut Common,
        frame: Frame<'_>,
    ) -> Result<(), LinkError> {
        match (frame, self.hello) {
            (Frame::Hello(hello), None) if hello.link == self.number => {
                self.hello = Some(hello);
                if cx.peer.replace(hello.instance).is_some_and(|was| was != hello.instance) {
                    cx.tokens.restart();
                    cx.restarted = true;
                }
                cx.tokens.hello(hello.tokens, hello.floor);
                cx.events.push_back(Event::LinkUp(self.number));
            }
            (Frame::Hello(_), _) => return Err(LinkError::Protocol("a HELLO out of place")),
            (_, None) => return Err(LinkError::Protocol("a link that begins without a HELLO")),
            (Frame::Grant(tokens), _) => cx.tokens.granted(tokens),
            (Frame::Ping(any), _) => self.control.push_back((0, Frame::Pong(any))),
            (Frame::Pong(at), _) => {
                if self.pinged.take() != Some(at) {
                    return Err(LinkError::Protocol("a PONG without its PING"));
                }
                self.rtt.note(now, now - Instant::from_nanos(at));
            }
            (Frame::Leave, _) => {
                self.leaving[1] = true;
                self.leave();
            }
            (Frame::Gone(link), _) if link == self.number => {
                return Err(LinkError::Protocol("a link that says it is gone"));
            }
            (Frame::Gone(link), _) => cx.gone.push(link),
            _ => {}
        }
        Ok(())
    }

    /// Opens no more sessions here.
    pub(super) fn leave(&mut self) {
        if !std::mem::replace(&mut self.leaving[0], true) {
            self.control.push_back((0, Frame::Leave));
        }
    }

    /// Tells the peer that nothing is held of a link that broke.
    pub(super) fn tell_gone(&mut self, link: u32) {
        self.told_gone.push(link);
        self.control.push_back((0, Frame::Gone(link)));
    }

    /// Whether both ends have left, and nothing is left to do.
    pub(super) fn is_over(&self) -> bool {
        self.leaving == [true; 2] && self.sessions.is_empty() && self.control.is_empty()
    }

    /// How many more sessions this end may open; none before the peer has said how many it takes.
    pub(super) fn vacant(&self) -> u32 {
        let most = self.hello.map_or(0, |hello| hello.sessions);
        let most = if self.leaving[0] || self.next > u32::MAX - 2 { 0 } else { most };
        most.saturating_sub(self.open[self.next as usize % 2])
    }

    /// How loaded the link is: sessions with something to send, then sessions.
    pub(super) fn load(&self) -> (usize, usize) {
        (self.ready.len(), self.sessions.len())
    }

    pub(super) fn stats(&self) -> LinkStats {
        LinkStats {
            open: self.sessions.len() as u64,
            up: self.hello.is_some(),
            rtt: self.rtt.smoothed(),
            shortest_rtt: self.rtt.shortest(),
            sent: self.sent,
            received: self.received,
        }
    }

    fn handle_session(
        &mut self,
        now: Instant,
        cx: &mut Common,
        number: u32,
        frame: Frame<'_>,
    ) -> Result<(), LinkError> {
        if self.hello.is_none() && self.carrier == Carrier::Stream {
            return Err(LinkError::Protocol("a link that begins without a HELLO"));
        }
        if let Frame::Syn(Some(opening)) = frame {
            return self.offered(cx, number, *opening);
        }
        if !self.sessions.contains_key(&number) {
            return self.handle_forgotten(number, &frame);
        }
        match frame {
            Frame::Syn(_) => self.accepted(cx, number)?,
            Frame::Data(bytes) => self.handle_data(now, cx, number, bytes)?,
            Frame::Fin => self.handle_fin(cx, number)?,
            Frame::FinAck => self.handle_finack(cx, number)?,
            Frame::Rst(why) => self.handle_rst(cx, number, why),
            Frame::Ack(freed) => {
                let account = self.sessions[&number].account;
                let freed = cx.tokens.free(account, freed);
                freed.map_err(|_| LinkError::Protocol("an ACK of more than was sent"))?;
            }
            _ => {}
        }
        Ok(())
    }

    /// A frame for a session that is not there. The peer may not know yet that it is over.
    fn handle_forgotten(&mut self, number: u32, frame: &Frame<'_>) -> Result<(), LinkError> {
        let ours = number % 2 == self.next % 2;
        let was = if ours { number < self.next } else { number <= self.highest };
        match frame {
            _ if !was => Err(LinkError::Protocol("a session that was not opened")),
            Frame::Rst(_) => {
                self.control.push_back((number, Frame::Fin));
                Ok(())
            }
            Frame::Data(_) => Err(LinkError::Protocol("bytes for a session that is over")),
            _ => Ok(()),
        }
    }

    fn offered(&mut self, cx: &mut Common, number: u32, open: Opening) -> Result<(), LinkError> {
        let theirs = number % 2 != self.next % 2;
        // Streams may overtake each other.
        let new = match self.carrier {
            Carrier::Stream => number > self.highest,
            Carrier::Streams => !self.sessions.contains_key(&number),
        };
        if !theirs || !new {
            return Err(LinkError::Protocol("a SYN for a session that was there"));
        }
        self.highest = self.highest.max(number);
        // A session that begins may overtake the end of others: the peer counts those no more.
        if self.open[number as usize % 2] >= cx.settings.sessions.saturating_mul(2) {
            return Err(LinkError::Protocol("more sessions than were allowed"));
        }
        self.insert(number, Session::offered(cx.tokens.open()));
        cx.totals.accepted += 1;
        let Opening { to, source } = open;
        cx.events.push_back(Event::Opened { id: self.id(number), to, source });
        Ok(())
    }

    fn accepted(&mut self, cx: &mut Common, number: u32) -> Result<(), LinkError> {
        let id = self.id(number);
        let session = self.session(number);
        match session.receiving {
            _ if session.resetting => {}
            Receiving::Idle => {
                session.receiving = Receiving::Open;
                cx.events.push_back(Event::Accepted(id));
            }
            _ => return Err(LinkError::Protocol("a second SYN")),
        }
        Ok(())
    }

    fn handle_data(
        &mut self,
        now: Instant,
        cx: &mut Common,
        number: u32,
        bytes: &[u8],
    ) -> Result<(), LinkError> {
        let id = self.id(number);
        let rtt = self.rtt.shortest();
        self.received += bytes.len() as u64;
        let session = self.session(number);
        if session.resetting {
            return Ok(()); // and hold nothing of it
        }
        if session.receiving != Receiving::Open {
            return Err(LinkError::Protocol("bytes before SYN or after FIN"));
        }
        let overrun = LinkError::Protocol("more bytes than there were tokens for");
        cx.room.receive(session.unacknowledged(), bytes.len()).map_err(|_| overrun)?;
        cx.totals.received += bytes.len() as u64;
        if session.receive(bytes).is_some() {
            cx.events.push_back(Event::Readable(id));
        }
        if rtt.is_some_and(|rtt| cx.room.measure(now, rtt)) {
            self.control.push_back((0, Frame::Grant(cx.room.total())));
        }
        Ok(())
    }

    fn handle_fin(&mut self, cx: &mut Common, number: u32) -> Result<(), LinkError> {
        let session = self.session(number);
        if session.resetting {
            // The answer to our RST: the peer has dropped all.
            self.forget(cx, number);
            return Ok(());
        }
        if session.receiving != Receiving::Open {
            return Err(LinkError::Protocol("a FIN before SYN, or a second one"));
        }
        session.receiving = Receiving::Ended;
        self.settle(cx, number);
        Ok(())
    }

    fn handle_finack(&mut self, cx: &mut Common, number: u32) -> Result<(), LinkError> {
        let session = self.session(number);
        if session.resetting {
            return Ok(());
        }
        if session.sending != Sending::Ended || cx.tokens.outstanding(session.account) > 0 {
            return Err(LinkError::Protocol("a FINACK for bytes that are not consumed"));
        }
        session.sending = Sending::Closed;
        self.settle(cx, number);
        Ok(())
    }

    fn handle_rst(&mut self, cx: &mut Common, number: u32, why: Failure) {
        let id = self.id(number);
        if self.session(number).resetting {
            // Both at once: each is the other's answer.
            return self.forget(cx, number);
        }
        self.control.push_back((number, Frame::Fin));
        self.forget(cx, number);
        cx.totals.reset += 1;
        cx.events.push_back(Event::Reset(id, why));
    }

    /// Says what is due now that the session has moved on, and forgets it when it is over.
    pub(super) fn settle(&mut self, cx: &mut Common, number: u32) {
        let id = self.id(number);
        let Some(session) = self.sessions.get_mut(&number) else { return };
        if session.finished() == Some(Tell::Finished) {
            cx.events.push_back(Event::Finished(id));
        }
        if session.receiving == Receiving::Ended {
            self.acknowledge(cx, number);
        }
        let session = self.session(number);
        if session.is_consumed() {
            session.receiving = Receiving::Closed;
            self.control.push_back((number, Frame::FinAck));
        }
        if self.sessions[&number].is_over() {
            self.forget(cx, number);
        }
    }

    /// Forgets a session; what it held and had outstanding is free.
    pub(super) fn forget(&mut self, cx: &mut Common, number: u32) {
        if let Some(session) = self.sessions.remove(&number) {
            let held = session.unacknowledged();
            cx.room.free(held, held);
            cx.tokens.close(session.account);
            cx.totals.delay.add(&session.delay);
            self.lanes.remove(&number);
            if self.carrier == Carrier::Streams {
                cx.forgotten.push_back(self.id(number));
            }
            self.open[number as usize % 2] -= 1;
        }
    }

    fn insert(&mut self, number: u32, session: Session) {
        self.sessions.insert(number, session);
        self.open[number as usize % 2] += 1;
    }

    fn session(&mut self, number: u32) -> &mut Session {
        self.sessions.get_mut(&number).expect("looked up before")
    }

    /// The link broke: all its sessions are reset. `strand`: the peer may still hold their bytes.
    pub(super) fn break_off(&mut self, cx: &mut Common, strand: bool) {
        for (number, session) in std::mem::take(&mut self.sessions) {
            let held = session.unacknowledged();
            cx.room.free(held, held);
            match strand {
                true => cx.tokens.strand(session.account, self.number),
                false => cx.tokens.close(session.account),
            }
            cx.totals.delay.add(&session.delay);
            if !session.resetting {
                cx.totals.reset += 1;
                cx.events.push_back(Event::Reset(self.id(number), Failure::Reset));
            }
        }
    }

    pub(super) fn poll_timeout(&self, cx: &Common) -> Instant {
        let silent = self.heard + cx.settings.silence;
        let ack = self.ack_at.unwrap_or(silent);
        silent.min(self.ping_at).min(ack)
    }

    pub(super) fn handle_timeout(
        &mut self,
        now: Instant,
        cx: &mut Common,
    ) -> Result<(), LinkError> {
        let Settings { ping, silence, .. } = cx.settings;
        if now - self.heard >= silence {
            return Err(LinkError::Silent(silence));
        }
        if now >= self.ping_at {
            self.ping_at = now + ping;
            // One that is not answered yet, behind a loss that is being repaired, is enough.
            self.ping_due = self.pinged.is_none();
        }
        if self.ack_at.is_some_and(|at| at <= now) {
            self.acknowledge_all(cx);
        }
        Ok(())
    }
}
