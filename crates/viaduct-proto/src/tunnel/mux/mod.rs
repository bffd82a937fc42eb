//! One link: its sessions, what comes by it and what leaves.
//!
//! | file | |
//! |---|---|
//! | here | the link, and its sessions' ends |
//! | `frames` | what comes |
//! | `turn` | what leaves |
//! | `ends` | what the ends of flows ask for |

mod ends;
mod frames;
mod turn;

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::flow::Failure;
use crate::time::Instant;
use crate::tunnel::common::{Common, Event, LinkError, SessionId, Settings};
use crate::tunnel::rtt::Rtt;
use crate::tunnel::session::{Receiving, Session, Tell};
use crate::tunnel::stats::LinkStats;
use crate::tunnel::wire::{Frame, Hello, Parser};

/// Frames besides data that may wait: a peer that makes us answer must read the answers.
const MOST_CONTROL: usize = 64 << 10;

/// Links that carried less than so many bytes more of late are as loaded as each other.
const MUCH: u64 = 256 << 10;

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
    /// Their sum at the time for the ping before the last one, and at that for the last.
    carried: [u64; 2],
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
            carried: [0; 2],
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

    /// How loaded the link is: sessions with more to send than one turn takes (a request that is
    /// on its way out is no load), what it carried of late in either direction, sessions.
    pub(super) fn load(&self, turn: usize) -> (usize, u64, usize) {
        let queued = |number| self.sessions.get(number).map_or(0, |session| session.out.len());
        let busy = self.ready.iter().filter(|&number| queued(number) > turn).count();
        let carried = self.sent + self.received - self.carried[0];
        (busy, carried / MUCH, self.sessions.len())
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
            self.carried = [self.carried[1], self.sent + self.received];
            // One that is not answered yet, behind a loss that is being repaired, is enough.
            self.ping_due = self.pinged.is_none();
        }
        if self.ack_at.is_some_and(|at| at <= now) {
            self.acknowledge_all(cx);
        }
        Ok(())
    }
}
