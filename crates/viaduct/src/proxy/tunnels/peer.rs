//! A tunnel to one peer, which its sessions' ends share.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mio::Token;
use slab::Slab;
use tracing::info;
use viaduct_proto::flow::{Address, Failure};
use viaduct_proto::keys::PublicKey;
use viaduct_proto::tunnel::{Event, LinkError, SessionId, Tunnel};

use super::session::Session;
use super::stream::Took;
use crate::proxy::stats::{MOST_SESSIONS, TunnelCounters};
use crate::sparing::Sparing;

/// What far ends deny is told of by the peer's key.
static DENIALS: Sparing<PublicKey> = Sparing::new(3);

/// A session that a peer has opened.
#[derive(Debug)]
pub struct Arrival {
    /// Its end here.
    pub session: Session,
    /// Where it is to go.
    pub to: Address,
    /// Who it is for.
    pub source: Option<SocketAddr>,
    /// The peer.
    pub peer: PublicKey,
}

/// The tunnel, as its ends and links share it: all in one thread, so that nobody ever waits.
#[derive(Clone, Debug)]
pub(super) struct SharedPeer(Arc<Mutex<Peer>>);

impl SharedPeer {
    pub(super) fn new(peer: Peer) -> SharedPeer {
        SharedPeer(Arc::new(Mutex::new(peer)))
    }

    /// Whether both are the same tunnel.
    pub(super) fn is_same_tunnel(&self, other: &SharedPeer) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Peer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The tunnel.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) key: PublicKey,
    /// What its tunnel is called; empty without a name.
    name: String,
    /// The instance of a peer that dials; one that is dialled may come back as another.
    instance: Option<u64>,
    pub(super) tunnel: Tunnel,
    /// What carries each link, by the link's number.
    pub(super) keys: BTreeMap<u32, usize>,
    pub(super) seats: Slab<Seat>,
    by_id: HashMap<SessionId, usize>,
    /// Sessions that wait for a link.
    waiting: VecDeque<usize>,
    /// Ends that are ready, and for what.
    pub(super) ready: VecDeque<(Token, Took)>,
    /// Sessions that the peer has opened.
    pub(super) arrivals: VecDeque<(usize, Address, Option<SocketAddr>)>,
    /// Whether the peer has answered on a link since this was taken.
    pub(super) has_risen: bool,
    /// Sessions that the peer has denied, and where the last one was to go.
    denied: u64,
    denied_last: Option<Address>,
}

/// A session, as its end sees it.
#[derive(Debug, Default)]
pub(super) struct Seat {
    pub(super) id: Option<SessionId>,
    /// Where it is to go, while it waits for a link.
    goes: Option<(Address, SocketAddr)>,
    /// Where it was to go, if it was opened here.
    to: Option<Address>,
    /// By which the loop knows the end.
    pub(super) token: Option<Token>,
    /// The peer has accepted it.
    pub(super) accepted: bool,
    /// Nothing follows what can be read.
    pub(super) finished: bool,
    pub(super) broken: Option<Failure>,
}

impl Peer {
    pub(super) fn new(tunnel: Tunnel, key: PublicKey, name: &str, instance: Option<u64>) -> Peer {
        Peer {
            key,
            name: name.to_owned(),
            instance,
            tunnel,
            keys: BTreeMap::new(),
            seats: Slab::new(),
            by_id: HashMap::new(),
            waiting: VecDeque::new(),
            ready: VecDeque::new(),
            arrivals: VecDeque::new(),
            has_risen: false,
            denied: 0,
            denied_last: None,
        }
    }

    /// Whether it is the tunnel of this peer's instance.
    pub(super) fn is(&self, key: PublicKey, instance: u64) -> bool {
        self.key == key && self.instance == Some(instance)
    }

    /// What it has counted.
    pub(super) fn counters(&self) -> TunnelCounters {
        let sessions = self.by_id.keys().filter_map(|id| self.tunnel.session_stats(*id));
        let mut sessions: Vec<_> = sessions.collect();
        sessions.sort_by_key(|session| Reverse(session.queued + session.outstanding));
        sessions.truncate(MOST_SESSIONS);
        TunnelCounters {
            peer: self.key.to_string(),
            name: self.name.clone(),
            down: None,
            denied: self.denied,
            denied_last: self.denied_last.as_ref().map(ToString::to_string),
            all: self.tunnel.stats(),
            links: self.tunnel.links().filter_map(|link| self.tunnel.link_stats(link)).collect(),
            sessions,
        }
    }

    /// Whether nothing is left of it.
    pub(super) fn is_idle(&self) -> bool {
        self.keys.is_empty() && self.seats.is_empty()
    }

    /// Opens a session, now or when there is a link.
    pub(super) fn open(&mut self, to: Address, source: SocketAddr) -> usize {
        let goes = Some((to, source));
        let seat = Seat { goes, ..Seat::default() };
        let number = self.seats.insert(seat);
        self.waiting.push_back(number);
        self.open_waiting();
        number
    }

    /// An end is gone.
    pub(super) fn leave(&mut self, number: usize) {
        if let Some(id) = self.seats.remove(number).id {
            self.by_id.remove(&id);
        }
        self.waiting.retain(|&waiting| waiting != number);
    }

    fn open_waiting(&mut self) {
        while let Some(&number) = self.waiting.front() {
            let seat = &mut self.seats[number];
            let Some((to, source)) = seat.goes.clone() else { return };
            let Some(id) = self.tunnel.open(to.clone(), Some(source)) else { return };
            (seat.id, seat.goes, seat.to) = (Some(id), None, Some(to));
            self.by_id.insert(id, number);
            self.waiting.pop_front();
            self.tell(number, Took { readable: true, writable: true });
        }
    }

    /// Takes what the tunnel has to tell. Returns the links that broke, and those that are over.
    pub(super) fn settle(&mut self) -> (Vec<(usize, LinkError)>, Vec<usize>) {
        let mut down = Vec::new();
        while let Some(event) = self.tunnel.poll_event() {
            match event {
                Event::Opened { id, to, source } => {
                    let seat = Seat { id: Some(id), ..Seat::default() };
                    let number = self.seats.insert(seat);
                    self.by_id.insert(id, number);
                    self.arrivals.push_back((number, to, source));
                }
                Event::Accepted(id) => self.change(id, true, true, |seat| seat.accepted = true),
                Event::Readable(id) => self.change(id, true, false, |_| {}),
                Event::Writable(id) => self.change(id, false, true, |_| {}),
                Event::Finished(id) => self.change(id, true, false, |seat| seat.finished = true),
                Event::Reset(id, why) => {
                    if why == Failure::Denied {
                        self.denied(id);
                    }
                    self.change(id, true, true, |seat| seat.broken = Some(why));
                }
                Event::LinkUp(link) => {
                    let name = Some(&self.name[..]).filter(|name| !name.is_empty());
                    info!(link, name, peer = %self.key, "a link of the tunnel is up");
                    self.has_risen = true;
                    self.open_waiting();
                }
                Event::LinkDown(link, why) => {
                    down.extend(self.keys.remove(&link).map(|key| (key, why)));
                }
            }
        }
        let over = self.keys.iter().filter(|(link, _)| self.tunnel.is_over(**link));
        (down, over.map(|(_, key)| *key).collect())
    }

    /// Notes that the far end does not let a session leave.
    fn denied(&mut self, id: SessionId) {
        let seat = self.by_id.get(&id).and_then(|&number| self.seats.get(number));
        let Some(to) = seat.and_then(|seat| seat.to.clone()) else { return };
        let name = if self.name.is_empty() { "" } else { " " };
        DENIALS.warn(
            self.key,
            format_args!(
                "the far end of the tunnel{name}{} does not let flows leave to {to}: its allow-to \
                    does not \
                 have that address",
                self.name
            ),
        );
        self.denied += 1;
        self.denied_last = Some(to);
    }

    fn change(
        &mut self,
        id: SessionId,
        readable: bool,
        writable: bool,
        change: impl FnOnce(&mut Seat),
    ) {
        let Some(&number) = self.by_id.get(&id) else { return };
        change(&mut self.seats[number]);
        self.tell(number, Took { readable, writable });
    }

    /// Has the loop drive the flow of an end.
    pub(super) fn tell(&mut self, number: usize, what: Took) {
        if let Some(token) = self.seats[number].token {
            self.ready.push_back((token, what));
        }
    }
}
