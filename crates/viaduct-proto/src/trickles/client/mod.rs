//! Client of a stateless server. The client keeps all state of the connection.
//!
//! ```text
//!   want(range) ─▶ asks ──────────────┐                       ┌─▶ poll_transmit: requests
//!   handle ─▶ response ─▶ receiver ─ turns ─▶ request: continuation, proof, asks
//!                 └─▶ poll_arrived: data                  timers: RTO ─▶ restart
//! ```
//!
//! | file | state that it owns |
//! |---|---|
//! | `asks` | wants, and packets in flight |
//! | `first_window` | wants that were requested for the first window of a generation |
//! | `generations` | the current generation, the requested ones, and the anchor of a restart |
//! | `held` | continuations to return, and the repairs that these wait for |
//! | `receiver` | the packets of a generation, in order |
//! | `recovery` | round trip, reordering, and the timers |
//!
//! The client asks for byte ranges of the server's stream, each with the user continuation that
//! yields them. It computes the server's [plan](super::plan), and so knows in advance the numbers
//! of the packets that answer a request. Hence it knows which bytes are lost with a packet, and
//! asks for them again. If a request cannot repair a loss, a restart does.

mod asks;
mod feed;
mod first_window;
mod generations;
mod held;
mod overtaking;
mod parcels;
mod reassembly;
mod receiver;
mod recovery;
mod repeat;
mod requests;
mod responses;
mod round_trip;

use std::collections::VecDeque;

use bytes::Bytes;

use super::wire::Response;
use super::wire::response::PAYLOAD_HEAD;
use crate::time::Instant;
use asks::{Asks, Want};
pub use feed::Feed;
use first_window::FirstWindow;
use generations::Generations;
use held::Held;
pub use reassembly::Reassembly;
use receiver::Receiver;
use recovery::{Recovery, Timer};
pub(super) use requests::HEAD;

/// Payload flag: the data are the last of their stream's output.
pub const ENDS: u8 = 0x80;
/// Minimum length of a first request and of a restart in bytes, so that the address token in the
/// answer is no longer than the request.
const MIN_REQUEST: usize = 160;
/// Lower limit of [`Config::request`]: a path MTU of 1,280 bytes, the minimum of IPv6, less the
/// headers of a SYN (80) and the overhead of an encrypted opening (115).
pub const MIN_MESSAGE: usize = 1_085;

/// Settings of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Longest message that the client can receive, in bytes.
    pub message: u16,
    /// Longest message that the client sends, in bytes: at least [`MIN_MESSAGE`].
    pub request: usize,
    /// Bytes reserved in each packet for user continuations.
    pub reserve: usize,
    /// Length in bytes to which a first request is padded. The answer may not be longer than the
    /// request, so padding makes room for more data.
    pub pad: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config { message: 1_400, request: 1_400, reserve: 0, pad: MIN_REQUEST }
    }
}

/// Data that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Position in the stream.
    pub position: u64,
    /// The application's flags; [`ENDS`] if the data are the last of their stream's output.
    pub flags: u8,
    /// Parcel of the request that the data answer; see [`Feed::take`].
    pub parcel: Option<u64>,
    /// True if all earlier packets of the same answer have arrived.
    pub in_order: bool,
    /// User continuation; may be empty.
    pub user: Bytes,
    /// The data.
    pub data: Bytes,
}

/// Counters of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests sent.
    pub requests: u64,
    /// Packets received.
    pub received: u64,
    /// Packets given up as lost.
    pub lost: u64,
    /// Recoveries entered: epochs that began with survivors.
    pub recoveries: u64,
    /// Restarts requested.
    pub restarts: u64,
    /// Tail probes: data in flight that were requested again, because their packets may be lost.
    pub probes: u64,
    /// Repetitions of the last request during a silence, before a restart.
    pub repeats: u64,
    /// Messages that were not a response of this connection.
    pub refused: u64,
}

#[derive(Debug)]
enum Phase {
    /// The first request has not been answered.
    Opening,
    /// An address token is held. It is echoed when data are wanted.
    AddressToken,
    /// The first window of a generation has been requested.
    Beginning,
    Running(Box<Receiver>),
}

/// A client of a stateless server. See the [module](self).
#[derive(Debug)]
pub struct Client {
    config: Config,
    phase: Phase,
    token: u64,
    generations: Generations,
    asks: Asks,
    first_window: FirstWindow,
    held: Held,
    recovery: Recovery,
    /// Number of requests sent, modulo 2^32.
    count: u32,
    /// True if the feed has a parcel to send.
    pending: bool,
    outbox: VecDeque<Vec<u8>>,
    arrived: VecDeque<Arrived>,
    stats: Stats,
}

impl Client {
    /// Opens a connection. `token` is random, and identifies the connection.
    pub fn open(config: Config, token: u64, now: Instant) -> Self {
        Client {
            config,
            phase: Phase::Opening,
            token,
            generations: Generations::default(),
            asks: Asks::default(),
            first_window: FirstWindow::default(),
            held: Held::default(),
            recovery: Recovery::new(now),
            count: 0,
            pending: false,
            outbox: VecDeque::new(),
            arrived: VecDeque::new(),
            stats: Stats::default(),
        }
    }

    /// Asks for `length` bytes at `position`, which the user continuation `user` yields.
    pub fn want(&mut self, position: u64, length: u64, user: Bytes) {
        self.asks.want(Want { position, length, user });
    }

    /// Replaces the user continuation `before` by `now` for wanted bytes not requested yet.
    pub fn renew(&mut self, before: &Bytes, now: &Bytes) {
        self.asks.renew(before, now);
    }

    /// Cancels all wants in `range`.
    pub fn unwant(&mut self, range: std::ops::Range<u64>) {
        self.asks.unwant(&range);
        if matches!(self.phase, Phase::Running(_)) {
            self.set_timers();
        }
    }

    /// Sets the number of bytes reserved for user continuations in each packet that is requested
    /// later.
    pub fn reserve(&mut self, bytes: usize) {
        self.config.reserve = bytes;
    }

    /// Number of bytes reserved in each packet for user continuations.
    pub fn reserved(&self) -> usize {
        self.config.reserve
    }

    /// Returns whether the first request has been answered.
    pub fn is_open(&self) -> bool {
        !matches!(self.phase, Phase::Opening)
    }

    /// Number of restarts, or of transmissions of the first request, since the last answer.
    pub fn attempts(&self) -> u32 {
        self.recovery.attempts
    }

    /// Returns whether an answer is overdue. The next message is then a restart, or repeats the
    /// first request.
    pub fn is_due(&self) -> bool {
        self.recovery.restart_is_due
    }

    /// The counters so far.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Number of packets in flight: the part of the window that is in use.
    pub fn in_flight(&self) -> usize {
        self.asks.in_flight()
    }

    /// Congestion window in packets after those that have arrived in order; 0 while no generation
    /// has begun.
    pub fn window(&self) -> u64 {
        match &self.phase {
            Phase::Running(receiver) => receiver.window(),
            _ => 0,
        }
    }

    /// Returns whether all wanted bytes have arrived, no packet is in flight, and no parcel waits.
    pub fn is_idle(&self) -> bool {
        let nothing = !self.asks.is_wanting() && !self.pending && self.in_flight() == 0;
        nothing && matches!(self.phase, Phase::AddressToken | Phase::Running(_))
    }

    /// Processes a message that arrived.
    pub fn handle(&mut self, now: Instant, message: &[u8]) {
        let Ok(response) = Response::parse(message) else {
            self.stats.refused += 1;
            return;
        };
        if response.tag != self.token as u32 || !self.take(now, &response) {
            self.stats.refused += 1;
        }
    }

    /// The next message to send, if any. `feed` supplies the parcels that requests carry.
    pub fn poll_transmit(&mut self, now: Instant, feed: &mut dyn Feed) -> Option<Vec<u8>> {
        self.request(now, feed);
        self.outbox.pop_front()
    }

    /// The next data that arrived, in the order of arrival; `None` if there are none.
    pub fn poll_arrived(&mut self) -> Option<Arrived> {
        self.arrived.pop_front()
    }

    /// The next parcel (see [`Feed::take`]) to which no further answer can arrive; `None` if there
    /// is none. To be called when [`Client::poll_arrived`] has returned `None`.
    pub fn poll_settled(&mut self) -> Option<u64> {
        self.asks.parcels.poll_settled()
    }

    /// Deadline of the earliest timer, if any.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.recovery.poll_timeout()
    }

    /// Processes all timers that have expired.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(timer) = self.recovery.poll_expired(now) {
            match timer {
                Timer::Reorder => {
                    if let Phase::Running(receiver) = &mut self.phase {
                        receiver.give_up();
                    }
                    self.settle(now);
                }
                Timer::Probe => self.stats.probes += u64::from(self.asks.doubt_first()),
                Timer::Repeat => {
                    self.stats.repeats += 1;
                    self.outbox.push_back(self.recovery.take_repetition(now, &self.asks));
                }
                Timer::Restart => {
                    self.first_window.cancel(&mut self.asks);
                    self.forget_flight();
                }
            }
        }
    }
}

const _: () = assert!(PAYLOAD_HEAD < MIN_REQUEST);
