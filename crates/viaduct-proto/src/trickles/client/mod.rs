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
mod feed;
mod overtaking;
mod parcels;
mod reassembly;
mod receiver;
mod repeat;
mod requests;
mod responses;
mod timer;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::continuation::Continuation;
use super::wire::Response;
use super::wire::response::PAYLOAD_HEAD;
use crate::time::Instant;
use asks::{Asks, Want};
pub use feed::Feed;
pub use reassembly::Reassembly;
use receiver::{Receiver, Turn};
use repeat::Repeat;
pub(super) use requests::HEAD;
use timer::Trips;

/// The flag of a payload that says: with these data ends what they are part of.
pub const ENDS: u8 = 0x80;
/// Least bytes of a first request and of a restart, so that a ticket is no longer than they are.
const LEAST_REQUEST: usize = 160;
/// Shortest longest message of a client: what a path of 1,280 bytes, the least of IPv6, leaves beside the headers of a
/// SYN (80) and what encryption adds to an opening (115).
pub const LEAST_MESSAGE: usize = 1_085;

/// What a client is set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Longest message that the client can receive, in bytes.
    pub message: u16,
    /// Longest message that it sends, in bytes: at least [`LEAST_MESSAGE`], which is 1,085.
    pub request: usize,
    /// Bytes that it leaves in each packet for user continuations.
    pub reserve: usize,
    /// Bytes that a first request is padded to, so that more data come with its answer.
    pub pad: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config { message: 1_400, request: 1_400, reserve: 0, pad: LEAST_REQUEST }
    }
}

/// Data that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Their place in the stream.
    pub position: u64,
    /// The application's flags; [`ENDS`] if what they are part of ends with them.
    pub flags: u8,
    /// What the request took along that they answer; see [`Feed::take`].
    pub parcel: Option<u64>,
    /// Whether all packets of that answer before this one have come, too.
    pub in_order: bool,
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
    /// Times that the end of what was wanted did not come, and was asked for again before a restart.
    pub probes: u64,
    /// Times that the last request was said once more before a restart.
    pub repeats: u64,
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
    /// What that request took along.
    promised_parcel: Option<u64>,
    held: VecDeque<Turn>,
    /// Nonces of repairs, by number.
    repaired: BTreeMap<u64, u64>,
    trips: Trips,
    attempts: u32,
    count: u32,
    /// Whether there is something to take along.
    pending: bool,
    /// Whether it is time to begin again.
    due: bool,
    outbox: VecDeque<Vec<u8>>,
    arrived: VecDeque<Arrived>,
    /// When an answer, or a repair, is overdue.
    overdue: Option<Instant>,
    /// The packet that others wait for, and until when: then it is given up.
    patience: Option<(u64, Instant)>,
    /// When it is time to ask once more for what may be lost, with a trickle that is held.
    probe: Option<Instant>,
    /// Whether that was done since something came.
    probed: bool,
    repeat: Repeat,
    /// When the last request is to be said once more.
    repeated: Option<Instant>,
    /// Trickles wait for repairs, and nothing else is to come.
    stuck: bool,
    heard: Instant,
    /// When the connection was opened.
    opened: Instant,
    /// When which generation was asked for, of those newer than the present one.
    begun: Vec<(u16, Instant)>,
    /// The highest number that has come, but for repairs.
    latest: u64,
    /// When what came was asked for, the latest of it.
    asked: Instant,
    stats: Stats,
}

impl Client {
    /// A client that opens a connection. `token` is random, and stands for the connection.
    pub fn open(config: Config, token: u64, now: Instant) -> Self {
        let mut client = Client {
            config,
            phase: Phase::Opening,
            token,
            generation: 0,
            anchor: None,
            asks: Asks::default(),
            promised: VecDeque::new(),
            promised_parcel: None,
            held: VecDeque::new(),
            repaired: BTreeMap::new(),
            trips: Trips::default(),
            attempts: 0,
            count: 0,
            pending: false,
            due: false,
            outbox: VecDeque::new(),
            arrived: VecDeque::new(),
            overdue: None,
            patience: None,
            probe: None,
            probed: false,
            repeat: Repeat::default(),
            repeated: None,
            stuck: false,
            heard: now,
            opened: now,
            begun: Vec::new(),
            latest: 0,
            asked: now,
            stats: Stats::default(),
        };
        client.overdue = Some(now);
        client
    }

    /// Wants `length` bytes at `position`, which the user continuation `user` yields.
    pub fn want(&mut self, position: u64, length: u64, user: Bytes) {
        self.asks.want(Want { position, length, user });
    }

    /// Wants by the user continuation `now` what was wanted by `before` and is not asked for yet.
    pub fn renew(&mut self, before: &Bytes, now: &Bytes) {
        self.asks.renew(before, now);
    }

    /// Wants nothing of `range` any more.
    pub fn unwant(&mut self, range: std::ops::Range<u64>) {
        self.asks.unwant(&range);
        if matches!(self.phase, Phase::Running(_)) {
            self.set_overdue();
        }
    }

    /// Leaves so many bytes of each packet for user continuations from now on.
    pub fn reserve(&mut self, bytes: usize) {
        self.config.reserve = bytes;
    }

    /// Bytes of each packet that are left for user continuations.
    pub fn reserved(&self) -> usize {
        self.config.reserve
    }

    /// Whether a first request was answered.
    pub fn is_open(&self) -> bool {
        !matches!(self.phase, Phase::Opening)
    }

    /// How often it has begun anew since it was last answered.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Whether an answer is overdue, and the next message begins anew.
    pub fn is_due(&self) -> bool {
        self.due
    }

    /// The counters so far.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Packets that are to come: the window in use.
    pub fn in_flight(&self) -> usize {
        self.asks.in_flight()
    }

    /// The congestion window that the packets so far have led to, in packets; 0 while none is open.
    pub fn window(&self) -> u64 {
        match &self.phase {
            Phase::Running(receiver) => receiver.window(),
            _ => 0,
        }
    }

    /// Whether everything wanted has arrived, and nothing is to come.
    pub fn is_idle(&self) -> bool {
        let nothing = !self.asks.is_wanting() && !self.pending && self.in_flight() == 0;
        nothing && matches!(self.phase, Phase::Ticket | Phase::Running(_))
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

    /// The next message to send, until None; `feed` has what it may take along.
    pub fn poll_transmit(&mut self, now: Instant, feed: &mut dyn Feed) -> Option<Vec<u8>> {
        self.request(now, feed);
        self.outbox.pop_front()
    }

    /// The next data that arrived, in the order of arrival, until None.
    pub fn poll_arrived(&mut self) -> Option<Arrived> {
        self.arrived.pop_front()
    }

    /// The next parcel (see [`Feed::take`]) to which no answer can come any more, until None; to be
    /// asked when [`Client::poll_arrived`] has nothing.
    pub fn poll_settled(&mut self) -> Option<u64> {
        self.asks.poll_settled()
    }

    /// The deadline of the earliest timer, if any.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let patience = self.patience.map(|(_, until)| until);
        [self.overdue, patience, self.probe, self.repeated].into_iter().flatten().min()
    }

    /// That deadline has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.patience.is_some_and(|(_, until)| until <= now) {
            self.patience = None;
            if let Phase::Running(receiver) = &mut self.phase {
                receiver.give_up();
            }
            self.settle(now);
        }
        if self.probe.is_some_and(|probe| probe <= now) {
            (self.probe, self.probed) = (None, true);
            self.stats.probes += u64::from(self.asks.doubt_first());
        }
        if self.repeated.is_some_and(|repeated| repeated <= now) {
            self.stats.repeats += 1;
            let message = self.repeat.take(now);
            self.outbox.push_back(message);
            self.repeated = self.repeat_due();
        }
        if self.overdue.is_some_and(|overdue| overdue <= now) {
            self.overdue = None;
            self.unpromise();
            self.forget_flight();
            self.due = true;
        }
    }
}

const _: () = assert!(PAYLOAD_HEAD < LEAST_REQUEST);
