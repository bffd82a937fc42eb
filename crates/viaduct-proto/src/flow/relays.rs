//! Relays that carry a program's datagrams: one for each local address of its sockets, and one
//! for each name that a socket sends to, because replies carry an address instead of the name.
//!
//! ```text
//!   handle_out(ends, to, data) ─▶ none yet: Action::Open ─▶ handle_open | handle_failed
//!        │  datagrams wait meanwhile      └ the driver negotiates: super::relay
//!        ▼
//!   Action::Send ─▶ relay ─▶ far end ─▶ relay ─▶ handle_in -> ends, payload
//! ```
//!
//! A relay is negotiated over a connection and lasts as long as that connection
//! ([`Relays::handle_ended`]). The driver closes both on [`Action::Close`]: when the socket is
//! closed, when the relay has been idle, or when there are too many relays and this is the least
//! recently used one. The next datagram opens another relay.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use super::Address;
use super::datagrams::Ends;
use super::relay::{DatagramError, Relay};
use crate::time::{Duration, Instant};

/// Limits of a set of relays.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Maximum number of relays at once.
    pub relays: usize,
    /// Maximum bytes of datagrams that may wait for one relay, headers included; excess is dropped.
    /// The datagram that opens the relay always waits.
    pub early: usize,
    /// Idle timeout of a relay.
    pub idle: Duration,
    /// Time from a failed negotiation to the next attempt.
    pub pause: Duration,
    /// True if datagrams to IP addresses are sent directly during the pause, instead of being
    /// dropped. Datagrams to names are dropped in either case.
    pub leave: bool,
}

/// Counters of datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelayStats {
    /// Sent to relays.
    pub sent: u64,
    /// Received from relays.
    pub received: u64,
    /// Dropped because there is no relay, or no room to wait for one.
    pub without: u64,
    /// Dropped because a relay cannot reach the destination: broadcast, multicast, unspecified, or
    /// a name that its header cannot express.
    pub nowhere: u64,
    /// Fragments from relays, dropped.
    pub fragments: u64,
    /// Invalid datagrams from relays, dropped.
    pub garbage: u64,
    /// Dropped because the socket cannot receive from the datagram's source through this relay.
    pub strangers: u64,
}

/// Action for the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Negotiate a relay with this number.
    Open(u64),
    /// Send this datagram to the relay.
    Send(u64, Vec<u8>),
    /// Close the relay, or stop opening it: it is no longer needed.
    Close(u64),
    /// Send this datagram directly: there is no relay.
    Leave(Ends, Vec<u8>),
}

/// Set of relays.
pub struct Relays {
    /// Encodes and decodes headers.
    codec: Box<dyn Relay + Send>,
    bounds: Bounds,
    entries: HashMap<RelayKey, Entry>,
    /// Keys of the relays that are open or being opened, by number.
    numbers: HashMap<u64, RelayKey>,
    /// Relays by last use; uses are numbered.
    used: BTreeMap<u64, RelayKey>,
    uses: u64,
    opened: u64,
    actions: VecDeque<Action>,
    stats: RelayStats,
}

/// Key of a relay: a socket's local address and, if the relay serves a single name, the fake IP of
/// this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct RelayKey {
    own: SocketAddr,
    name: Option<SocketAddr>,
}

struct Entry {
    stage: Stage,
    used: u64,
    last: Instant,
}

enum Stage {
    Opening {
        number: u64,
        early: Vec<Queued>,
        bytes: usize,
    },
    Open(u64),
    /// There is no relay; the next attempt is not before this time.
    Shut(Instant),
}

/// Datagram that waits for its relay.
struct Queued {
    ends: Ends,
    wrapped: Vec<u8>,
    /// Length of its header in bytes.
    header: usize,
}

impl Relays {
    /// Empty set of relays whose headers `codec` encodes.
    pub fn new(codec: Box<dyn Relay + Send>, bounds: Bounds) -> Relays {
        Relays {
            codec,
            bounds,
            entries: HashMap::new(),
            numbers: HashMap::new(),
            used: BTreeMap::new(),
            uses: 0,
            opened: 0,
            actions: VecDeque::new(),
            stats: RelayStats::default(),
        }
    }

    /// Handles a datagram to `to`, which the program addresses as `ends.peer`.
    pub fn handle_out(&mut self, now: Instant, ends: Ends, to: &Address, data: &[u8]) {
        let named = matches!(to, Address::Name(..));
        let wrapped = self.codec.wrap(to, data).filter(|_| named || is_one(ends.peer));
        let Some(wrapped) = wrapped else {
            self.stats.nowhere += 1;
            return;
        };
        let key = RelayKey { own: ends.own, name: named.then_some(ends.peer) };
        if !self.entries.contains_key(&key) {
            if self.entries.len() >= self.bounds.relays.max(1)
                && let Some((_, &oldest)) = self.used.first_key_value()
            {
                self.forget(oldest);
            }
            self.entries.insert(key, Entry { stage: Stage::Shut(now), used: 0, last: now });
        }
        self.touch(now, key);
        let Some(entry) = self.entries.get_mut(&key) else { return };
        match &mut entry.stage {
            Stage::Open(number) => {
                self.stats.sent += 1;
                self.actions.push_back(Action::Send(*number, wrapped));
            }
            Stage::Opening { early, bytes, .. } if *bytes + wrapped.len() <= self.bounds.early => {
                *bytes += wrapped.len();
                early.push(Queued { ends, header: wrapped.len() - data.len(), wrapped });
            }
            Stage::Shut(until) if *until <= now => {
                self.opened += 1;
                let (number, bytes) = (self.opened, wrapped.len());
                let early = Queued { ends, header: bytes - data.len(), wrapped };
                entry.stage = Stage::Opening { number, early: vec![early], bytes };
                self.numbers.insert(number, key);
                self.actions.push_back(Action::Open(number));
            }
            Stage::Shut(_) if self.bounds.leave && !named => {
                self.actions.push_back(Action::Leave(ends, data.to_vec()));
            }
            Stage::Opening { .. } | Stage::Shut(_) => self.stats.without += 1,
        }
    }

    /// Handles a negotiated relay; returns whether the relay is still needed.
    pub fn handle_open(&mut self, number: u64) -> bool {
        let entry = self.numbers.get(&number).and_then(|key| self.entries.get_mut(key));
        let Some(Entry { stage: stage @ Stage::Opening { .. }, .. }) = entry else { return false };
        if let Stage::Opening { early, .. } = std::mem::replace(stage, Stage::Open(number)) {
            self.stats.sent += early.len() as u64;
            let send = |of: Queued| Action::Send(number, of.wrapped);
            self.actions.extend(early.into_iter().map(send));
        }
        true
    }

    /// Handles a failed negotiation. During [`Bounds::pause`], waiting and later datagrams are sent
    /// directly or dropped ([`Bounds::leave`]).
    pub fn handle_failed(&mut self, now: Instant, number: u64) {
        let Some(key) = self.numbers.remove(&number) else { return };
        let Some(entry) = self.entries.get_mut(&key) else { return };
        let shut = Stage::Shut(now + self.bounds.pause);
        let Stage::Opening { early, .. } = std::mem::replace(&mut entry.stage, shut) else {
            return;
        };
        if !self.bounds.leave || key.name.is_some() {
            self.stats.without += early.len() as u64;
            return;
        }
        let leave = |of: Queued| Action::Leave(of.ends, of.wrapped[of.header..].to_vec());
        self.actions.extend(early.into_iter().map(leave));
    }

    /// Handles the end of a relay's connection, which ends the relay too.
    pub fn handle_ended(&mut self, now: Instant, number: u64) {
        let entry = self.numbers.remove(&number).and_then(|key| self.entries.get_mut(&key));
        if let Some(entry) = entry {
            entry.stage = Stage::Shut(now);
        }
    }

    /// Handles a datagram from a relay: returns its ends as the program sees them, and its payload.
    /// `None` if the datagram is unusable, which a counter records.
    pub fn handle_in<'a>(
        &mut self,
        now: Instant,
        number: u64,
        datagram: &'a [u8],
    ) -> Option<(Ends, &'a [u8])> {
        let key = *self.numbers.get(&number)?;
        let (from, data) = match self.codec.unwrap(datagram) {
            Ok(unwrapped) => unwrapped,
            Err(why) => {
                let counter = match why {
                    DatagramError::Fragment => &mut self.stats.fragments,
                    DatagramError::Malformed => &mut self.stats.garbage,
                };
                *counter += 1;
                return None;
            }
        };
        let Some(peer) = key.peer(&from) else {
            self.stats.strangers += 1;
            return None;
        };
        self.stats.received += 1;
        self.touch(now, key);
        Some((Ends { own: key.own, peer }, data))
    }

    /// Next action.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Time at which the next relay reaches its idle timeout.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let (_, oldest) = self.used.first_key_value()?;
        self.entries.get(oldest).map(|entry| entry.last + self.bounds.idle)
    }

    /// Closes relays that have been idle for too long.
    pub fn handle_timeout(&mut self, now: Instant) {
        while self.poll_timeout().is_some_and(|at| at <= now)
            && let Some((_, &oldest)) = self.used.first_key_value()
        {
            self.forget(oldest);
        }
    }

    /// Closes the relays of sockets for which `stay` is false.
    pub fn retain(&mut self, stay: impl Fn(SocketAddr) -> bool) {
        let gone = self.entries.keys().filter(|key| !stay(key.own)).copied();
        for key in gone.collect::<Vec<_>>() {
            self.forget(key);
        }
    }

    /// Number of relays that are open, being opened, or paused after a failure.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no relays.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Counters so far.
    pub fn stats(&self) -> RelayStats {
        self.stats
    }

    fn touch(&mut self, now: Instant, key: RelayKey) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        self.uses += 1;
        self.used.remove(&entry.used);
        self.used.insert(self.uses, key);
        (entry.used, entry.last) = (self.uses, now);
    }

    fn forget(&mut self, key: RelayKey) {
        let Some(entry) = self.entries.remove(&key) else { return };
        self.used.remove(&entry.used);
        let number = match entry.stage {
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
    /// Total of dropped datagrams.
    pub fn dropped(&self) -> u64 {
        self.without + self.nowhere + self.fragments + self.garbage + self.strangers
    }
}

impl RelayKey {
    /// Address of the source `from` as the program sees it; `None` if this relay cannot carry
    /// datagrams from that source.
    fn peer(&self, from: &Address) -> Option<SocketAddr> {
        match (self.name, from) {
            // The relay resolves the name, so the source address cannot be checked; the port can.
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

/// Returns whether `at` is a unicast address with a port.
fn is_one(at: SocketAddr) -> bool {
    let many = match at.ip() {
        IpAddr::V4(ip) => ip.is_broadcast(),
        IpAddr::V6(_) => false,
    };
    !many && !at.ip().is_multicast() && !at.ip().is_unspecified() && at.port() != 0
}

impl std::fmt::Debug for Relays {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relays").field("entries", &self.entries.len()).finish_non_exhaustive()
    }
}
