//! The relays that a program's datagrams go by: one for each of its sockets' addresses, and one for each
//! name that such a socket sends to, for what comes back says an address and no name.
//!
//! ```text
//!   handle_out(ends, to, data) ─▶ none yet: Action::Open ─▶ handle_open | handle_failed
//!        │  waits meanwhile, so much       └ the driver speaks for it: super::relay
//!        ▼
//!   Action::Send ─▶ relay ─▶ far end ─▶ relay ─▶ handle_in -> from whom, to whom, what
//! ```
//!
//! What a relay has is agreed on over a connection, and lasts as long as that ([`Relays::handle_ended`]);
//! so the driver closes both on [`Action::Close`]: when the socket is gone, was silent for long, or too
//! many others were used since. The next datagram opens another.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use super::Address;
use super::datagrams::Ends;
use super::relay::{Relay, Useless};
use crate::time::{Duration, Instant};

/// What keeps them within bounds.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Relays at once.
    pub relays: usize,
    /// Bytes of one socket that wait for its relay, headers included; what finds no room is dropped.
    pub early: usize,
    /// How long none may pass before a relay is given up.
    pub idle: Duration,
    /// How long datagrams do without when there was no relay to be had, before it is tried again.
    pub pause: Duration,
    /// Whether they may go by themselves meanwhile; else they are dropped.
    pub leave: bool,
}

/// What was dropped, and what went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelayStats {
    /// Sent to relays.
    pub sent: u64,
    /// Brought by relays.
    pub received: u64,
    /// Dropped since there was no relay, or no room to wait for one.
    pub without: u64,
    /// Dropped since a relay cannot be told where they go: to all, to a group, or to nobody.
    pub nowhere: u64,
    /// Pieces of longer ones that a relay has brought.
    pub fragments: u64,
    /// Others of a relay that could not be understood.
    pub garbage: u64,
    /// Those from whom the socket cannot have anything by that relay.
    pub strangers: u64,
}

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Agree on a relay, and call it this.
    Open(u64),
    /// Send this to it.
    Send(u64, Vec<u8>),
    /// It is not needed any more: close it, or do not open it.
    Close(u64),
    /// There is no relay: let this go by itself.
    Leave(Ends, Vec<u8>),
}

/// All of them.
pub struct Relays {
    /// Knows how headers look.
    words: Box<dyn Relay + Send>,
    bounds: Bounds,
    lines: HashMap<Whose, Line>,
    /// Whose a relay is that is open or being opened.
    numbers: HashMap<u64, Whose>,
    /// Lines by when they were used last; the number is each use's own.
    used: BTreeMap<u64, Whose>,
    uses: u64,
    opened: u64,
    actions: VecDeque<Action>,
    stats: RelayStats,
}

/// A socket's own address, and of a name what stands for it here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Whose {
    own: SocketAddr,
    name: Option<SocketAddr>,
}

struct Line {
    stage: Stage,
    used: u64,
    last: Instant,
}

enum Stage {
    Opening {
        number: u64,
        early: Vec<Early>,
        bytes: usize,
    },
    Open(u64),
    /// There was none to be had: it is not tried before then.
    Shut(Instant),
}

/// One that waits for its relay.
struct Early {
    ends: Ends,
    wrapped: Vec<u8>,
    /// Bytes of it that are its header.
    header: usize,
}

impl Relays {
    /// Relays whose headers `words` knows.
    pub fn new(words: Box<dyn Relay + Send>, bounds: Bounds) -> Relays {
        Relays {
            words,
            bounds,
            lines: HashMap::new(),
            numbers: HashMap::new(),
            used: BTreeMap::new(),
            uses: 0,
            opened: 0,
            actions: VecDeque::new(),
            stats: RelayStats::default(),
        }
    }

    /// A datagram is to go to `to`, which for the program is `ends.peer`.
    pub fn handle_out(&mut self, now: Instant, ends: Ends, to: &Address, data: &[u8]) {
        let named = matches!(to, Address::Name(..));
        let wrapped = self.words.wrap(to, data).filter(|_| named || is_one(ends.peer));
        let Some(wrapped) = wrapped else {
            self.stats.nowhere += 1;
            return;
        };
        let whose = Whose { own: ends.own, name: named.then_some(ends.peer) };
        if !self.lines.contains_key(&whose) {
            if self.lines.len() >= self.bounds.relays.max(1)
                && let Some((_, &oldest)) = self.used.first_key_value()
            {
                self.forget(oldest);
            }
            self.lines.insert(whose, Line { stage: Stage::Shut(now), used: 0, last: now });
        }
        self.touch(now, whose);
        let Some(line) = self.lines.get_mut(&whose) else { return };
        match &mut line.stage {
            Stage::Open(number) => {
                self.stats.sent += 1;
                self.actions.push_back(Action::Send(*number, wrapped));
            }
            Stage::Opening { early, bytes, .. } if *bytes + wrapped.len() <= self.bounds.early => {
                *bytes += wrapped.len();
                early.push(Early { ends, header: wrapped.len() - data.len(), wrapped });
            }
            Stage::Shut(until) if *until <= now => {
                self.opened += 1;
                let (number, bytes) = (self.opened, wrapped.len());
                let early = Early { ends, header: bytes - data.len(), wrapped };
                line.stage = Stage::Opening { number, early: vec![early], bytes };
                self.numbers.insert(number, whose);
                self.actions.push_back(Action::Open(number));
            }
            Stage::Shut(_) if self.bounds.leave && !named => {
                self.actions.push_back(Action::Leave(ends, data.to_vec()));
            }
            Stage::Opening { .. } | Stage::Shut(_) => self.stats.without += 1,
        }
    }

    /// A relay has been agreed on; whether it is still wanted.
    pub fn handle_open(&mut self, number: u64) -> bool {
        let line = self.numbers.get(&number).and_then(|whose| self.lines.get_mut(whose));
        let Some(Line { stage: stage @ Stage::Opening { .. }, .. }) = line else { return false };
        if let Stage::Opening { early, .. } = std::mem::replace(stage, Stage::Open(number)) {
            self.stats.sent += early.len() as u64;
            let send = |of: Early| Action::Send(number, of.wrapped);
            self.actions.extend(early.into_iter().map(send));
        }
        true
    }

    /// It could not be agreed on: what waits does without, and what comes for a while.
    pub fn handle_failed(&mut self, now: Instant, number: u64) {
        let Some(whose) = self.numbers.remove(&number) else { return };
        let Some(line) = self.lines.get_mut(&whose) else { return };
        let shut = Stage::Shut(now + self.bounds.pause);
        let Stage::Opening { early, .. } = std::mem::replace(&mut line.stage, shut) else { return };
        if !self.bounds.leave || whose.name.is_some() {
            self.stats.without += early.len() as u64;
            return;
        }
        let leave = |of: Early| Action::Leave(of.ends, of.wrapped[of.header..].to_vec());
        self.actions.extend(early.into_iter().map(leave));
    }

    /// The connection of an open relay has ended, and the relay with it.
    pub fn handle_ended(&mut self, now: Instant, number: u64) {
        let line = self.numbers.remove(&number).and_then(|whose| self.lines.get_mut(&whose));
        if let Some(line) = line {
            line.stage = Stage::Shut(now);
        }
    }

    /// A relay has brought a datagram: between whom the program takes it to be, and what it carries; `None`
    /// if it is of no use, which is counted.
    pub fn handle_in<'a>(
        &mut self,
        now: Instant,
        number: u64,
        datagram: &'a [u8],
    ) -> Option<(Ends, &'a [u8])> {
        let whose = *self.numbers.get(&number)?;
        let (from, data) = match self.words.unwrap(datagram) {
            Ok(unwrapped) => unwrapped,
            Err(why) => {
                let counter = match why {
                    Useless::Fragment => &mut self.stats.fragments,
                    Useless::Garbage => &mut self.stats.garbage,
                };
                *counter += 1;
                return None;
            }
        };
        let Some(peer) = whose.peer(&from) else {
            self.stats.strangers += 1;
            return None;
        };
        self.stats.received += 1;
        self.touch(now, whose);
        Some((Ends { own: whose.own, peer }, data))
    }

    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When the one that is silent longest is given up.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let (_, oldest) = self.used.first_key_value()?;
        self.lines.get(oldest).map(|line| line.last + self.bounds.idle)
    }

    /// Gives up those that were silent for too long.
    pub fn handle_timeout(&mut self, now: Instant) {
        while self.poll_timeout().is_some_and(|at| at <= now)
            && let Some((_, &oldest)) = self.used.first_key_value()
        {
            self.forget(oldest);
        }
    }

    /// Gives up those of sockets that do not `stay`.
    pub fn retain(&mut self, stay: impl Fn(SocketAddr) -> bool) {
        let gone = self.lines.keys().filter(|whose| !stay(whose.own)).copied();
        for whose in gone.collect::<Vec<_>>() {
            self.forget(whose);
        }
    }

    /// Relays that are open, are being opened, or cannot be had for the moment.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// What has gone so far, and what has not.
    pub fn stats(&self) -> RelayStats {
        self.stats
    }

    fn touch(&mut self, now: Instant, whose: Whose) {
        let Some(line) = self.lines.get_mut(&whose) else { return };
        self.uses += 1;
        self.used.remove(&line.used);
        self.used.insert(self.uses, whose);
        (line.used, line.last) = (self.uses, now);
    }

    fn forget(&mut self, whose: Whose) {
        let Some(line) = self.lines.remove(&whose) else { return };
        self.used.remove(&line.used);
        let number = match line.stage {
            Stage::Open(number) => number,
            Stage::Opening { number, early, .. } => {
                self.stats.without += early.len() as u64;
                number
            }
            Stage::Shut(_) => return,
        };
        self.numbers.remove(&number);
        self.actions.push_back(Action::Close(number));
    }
}

impl RelayStats {
    /// All that was dropped.
    pub fn dropped(&self) -> u64 {
        self.without + self.nowhere + self.fragments + self.garbage + self.strangers
    }
}

impl Whose {
    /// Who `from` is for the program; `None` if it is nobody from whom this relay could bring something.
    fn peer(&self, from: &Address) -> Option<SocketAddr> {
        match (self.name, from) {
            // It says where the name is; what else it brings is as little ours to check as where it looks.
            (Some(name), Address::Ip(from)) => (from.port() == name.port()).then_some(name),
            (Some(name), Address::Name(_, port)) => (*port == name.port()).then_some(name),
            (None, Address::Ip(from)) => {
                let from = SocketAddr::new(from.ip().to_canonical(), from.port());
                (is_one(from) && from.is_ipv4() == self.own.is_ipv4()).then_some(from)
            }
            (None, Address::Name(..)) => None,
        }
    }
}

/// Whether it is the address of one host.
fn is_one(at: SocketAddr) -> bool {
    let many = match at.ip() {
        IpAddr::V4(ip) => ip.is_broadcast(),
        IpAddr::V6(_) => false,
    };
    !many && !at.ip().is_multicast() && !at.ip().is_unspecified() && at.port() != 0
}

impl std::fmt::Debug for Relays {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relays").field("lines", &self.lines.len()).finish_non_exhaustive()
    }
}
