//! A tunnel to one peer, shared by the ends of its streams.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mio::Token;
use slab::Slab;
use tracing::info;
use viaduct_proto::flow::{Address, Failure};
use viaduct_proto::keys::PublicKey;
use viaduct_proto::time::Instant;
use viaduct_proto::tunnel::{Event, LinkError, StreamId, Tunnel};

use super::settings::title;
use super::stream::{Readiness, TunnelStream};
use crate::rate_limited::RateLimitedLog;
use crate::tunnel::stats::{MAX_STREAMS, TunnelCounters};

/// Rate-limited warnings about streams that far ends have denied, by the peer's key.
static DENIALS: RateLimitedLog<PublicKey> = RateLimitedLog::new(3);

/// A stream that a peer has opened.
#[derive(Debug)]
pub struct InboundStream {
    /// Local end of the stream.
    pub stream: TunnelStream,
    /// Destination.
    pub to: Address,
    /// Address of the client whose flow the stream carries.
    pub source: Option<SocketAddr>,
    /// Public key of the peer.
    pub peer: PublicKey,
}

/// A tunnel, shared by its streams and links. All are used by one thread, so the lock never blocks.
#[derive(Clone, Debug)]
pub(super) struct SharedPeer(pub(super) Arc<Mutex<Peer>>);

impl SharedPeer {
    pub(super) fn lock(&self) -> MutexGuard<'_, Peer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves all links, so that neither end opens streams on them.
    pub(super) fn leave_links(&self) {
        let tunnel = &mut self.lock().tunnel;
        let links: Vec<u32> = tunnel.links().collect();
        links.into_iter().for_each(|link| tunnel.leave(link));
    }
}

/// A tunnel.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) key: PublicKey,
    /// Name of the tunnel; empty if unnamed.
    name: String,
    /// Instance number of a peer that dials, which identifies one run of its process. `None` if
    /// this end dials the peer, because the tunnel then outlives restarts of the peer.
    instance: Option<u64>,
    pub(super) tunnel: Tunnel,
    /// Key of each link in [`Tunnels`](super::Tunnels), by the link's number in the tunnel.
    pub(super) keys: BTreeMap<u32, usize>,
    pub(super) slots: Slab<StreamSlot>,
    by_id: HashMap<StreamId, usize>,
    /// Streams that wait for a link.
    waiting: VecDeque<usize>,
    /// Stream ends that are ready, and their readiness.
    pub(super) ready: VecDeque<(Token, Readiness)>,
    /// Streams that the peer has opened and the event loop has not taken yet.
    pub(super) arrivals: VecDeque<(usize, Address, Option<SocketAddr>)>,
    /// True if a link has come up since this flag was last cleared.
    pub(super) has_come_up: bool,
    /// Time until which flows wait for a link, even if they might connect directly.
    pub(super) expected_until: Option<Instant>,
    /// Number of streams that the peer has denied.
    denied: u64,
    /// Destination of the last stream that the peer has denied.
    denied_last: Option<Address>,
}

/// State of a stream at this end.
#[derive(Debug, Default)]
pub(super) struct StreamSlot {
    pub(super) id: Option<StreamId>,
    /// Destination and source, until the stream is opened on a link.
    goes: Option<(Address, SocketAddr)>,
    /// Destination, if the stream was opened here.
    to: Option<Address>,
    /// Token of this end in the event loop.
    pub(super) token: Option<Token>,
    /// True if the peer has accepted the stream.
    pub(super) accepted: bool,
    /// True if the stream ends after the data that is readable now.
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
            slots: Slab::new(),
            by_id: HashMap::new(),
            waiting: VecDeque::new(),
            ready: VecDeque::new(),
            arrivals: VecDeque::new(),
            has_come_up: false,
            expected_until: None,
            denied: 0,
            denied_last: None,
        }
    }

    /// Returns whether this is the tunnel of the peer with this key and instance number.
    pub(super) fn is(&self, key: PublicKey, instance: u64) -> bool {
        self.key == key && self.instance == Some(instance)
    }

    /// Counters of the tunnel.
    pub(super) fn counters(&self) -> TunnelCounters {
        let streams = self.by_id.keys().filter_map(|id| self.tunnel.stream_stats(*id));
        let mut streams: Vec<_> = streams.collect();
        streams.sort_unstable_by_key(|stream| Reverse(stream.queued + stream.outstanding));
        streams.truncate(MAX_STREAMS);
        TunnelCounters {
            peer: self.key.to_string(),
            name: self.name.clone(),
            down: None,
            is_expected: false,
            denied: self.denied,
            denied_last: self.denied_last.as_ref().map(ToString::to_string),
            all: self.tunnel.stats(),
            links: self.tunnel.links().filter_map(|link| self.tunnel.link_stats(link)).collect(),
            streams,
        }
    }

    /// Makes flows wait for links, which are dialled anew after a handover, until `until`.
    pub(super) fn expect_links(&mut self, until: Instant) {
        self.expected_until = Some(until);
    }

    /// Fails the streams that wait for a link.
    pub(super) fn fail_waiting(&mut self) {
        for number in std::mem::take(&mut self.waiting) {
            self.slots[number].broken = Some(Failure::Unreachable);
            self.queue_ready(number, Readiness { readable: true, writable: true });
        }
    }

    /// Returns whether flows should wait for a link.
    pub(super) fn is_expected(&self, now: Instant) -> bool {
        self.expected_until.is_some_and(|until| now < until)
    }

    /// Returns whether no link and no stream is left.
    pub(super) fn is_idle(&self) -> bool {
        self.keys.is_empty() && self.slots.is_empty()
    }

    /// Opens a stream, now or once there is a link. Returns the key of its slot.
    pub(super) fn open(&mut self, to: Address, source: SocketAddr) -> usize {
        let goes = Some((to, source));
        let slot = StreamSlot { goes, ..StreamSlot::default() };
        let number = self.slots.insert(slot);
        self.waiting.push_back(number);
        self.open_waiting();
        number
    }

    /// Removes this end of a stream.
    pub(super) fn leave(&mut self, number: usize) {
        if let Some(id) = self.slots.remove(number).id {
            self.by_id.remove(&id);
        }
        self.waiting.retain(|&waiting| waiting != number);
    }

    fn open_waiting(&mut self) {
        while let Some(&number) = self.waiting.front() {
            let slot = &mut self.slots[number];
            let Some((to, source)) = slot.goes.clone() else { return };
            let Some(id) = self.tunnel.open(to.clone(), Some(source)) else { return };
            (slot.id, slot.goes, slot.to) = (Some(id), None, Some(to));
            self.by_id.insert(id, number);
            self.waiting.pop_front();
            self.queue_ready(number, Readiness { readable: true, writable: true });
        }
    }

    /// Handles the tunnel's events. Returns the links that have broken, and those that are no
    /// longer used.
    pub(super) fn settle(&mut self) -> (Vec<(usize, LinkError)>, Vec<usize>) {
        let mut down = Vec::new();
        while let Some(event) = self.tunnel.poll_event() {
            match event {
                Event::Opened { id, to, source } => {
                    let slot = StreamSlot { id: Some(id), ..StreamSlot::default() };
                    let number = self.slots.insert(slot);
                    self.by_id.insert(id, number);
                    self.arrivals.push_back((number, to, source));
                }
                Event::Accepted(id) => self.change(id, true, true, |slot| slot.accepted = true),
                Event::Readable(id) => self.change(id, true, false, |_| {}),
                Event::Writable(id) => self.change(id, false, true, |_| {}),
                Event::Finished(id) => self.change(id, true, false, |slot| slot.finished = true),
                Event::Reset(id, why) => {
                    if why == Failure::Denied {
                        self.denied(id);
                    }
                    self.change(id, true, true, |slot| slot.broken = Some(why));
                }
                Event::LinkUp(link) => {
                    let name = Some(&self.name[..]).filter(|name| !name.is_empty());
                    info!(link, name, peer = %self.key, "a link of the tunnel is up");
                    self.has_come_up = true;
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

    fn denied(&mut self, id: StreamId) {
        let slot = self.by_id.get(&id).and_then(|&number| self.slots.get(number));
        let Some(to) = slot.and_then(|slot| slot.to.clone()) else { return };
        let tunnel = title(&self.name);
        DENIALS.warn(
            self.key,
            format_args!(
                "the far end of the {tunnel} has denied a flow to {to}: the address is not in its \
                 allow-to"
            ),
        );
        self.denied += 1;
        self.denied_last = Some(to);
    }

    fn change(
        &mut self,
        id: StreamId,
        readable: bool,
        writable: bool,
        change: impl FnOnce(&mut StreamSlot),
    ) {
        let Some(&number) = self.by_id.get(&id) else { return };
        change(&mut self.slots[number]);
        self.queue_ready(number, Readiness { readable, writable });
    }

    /// Queues the readiness of a stream end, so that the event loop drives its flow.
    pub(super) fn queue_ready(&mut self, number: usize, what: Readiness) {
        if let Some(token) = self.slots[number].token {
            self.ready.push_back((token, what));
        }
    }
}
