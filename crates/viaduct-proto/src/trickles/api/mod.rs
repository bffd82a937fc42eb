//! Server API for applications (Trickles, section 3): a queue of events, and minisockets.
//!
//! ```text
//!   message ─▶ Endpoint::handle ─▶ Server: answer the message? with how many packets?
//!                    │ no: refused, counted
//!                    ▼
//!                  queue ─▶ poll_event ─▶ Minisocket: inputs, asks, room
//!                    ▲ │                      │ the application fills a Reply
//!     install_events │ │ extract_events       ▼
//!       (sealed bytes, maybe from another  Endpoint::send ─▶ messages     or: drop, detach
//!        machine)                                  ▲ files that the caller reads
//! ```
//!
//! A [`Minisocket`] is the right to answer one request. It owns all of the request's state, which
//! is freed when the minisocket is used. So memory grows only with the requests that are not
//! processed yet. The queue has a limit. A request beyond the limit is refused before it is
//! recorded as answered, so its client can retry.
//!
//! | Figure 8 | here |
//! |---|---|
//! | `msk_send`, `msk_sendv` | [`Reply::answer`], [`Reply::bring`], [`Endpoint::send`] |
//! | `msk_sendfilev` | as for `msk_send`, with [`Piece::File`] |
//! | `msk_setucont` | [`Reply::set_user`]; standard ones: [`Reply::input`], [`Reply::output`] |
//! | `msk_sendbulk` | [`Endpoint::send`] for each event |
//! | `msk_drop` | [`Endpoint::drop_event`] |
//! | `msk_detach` | [`Minisocket::forget_request`] |
//! | `msk_extract_events` | [`Endpoint::extract_events`] |
//! | `msk_install_events` | [`Endpoint::install_events`] |

mod ahead;
mod event;
mod extract;
mod layout;
mod reply;

use std::borrow::Cow;
use std::collections::VecDeque;

use super::crypt::{Channel, ServerCrypt};
use super::keys::KeyRing;
use super::packet::Return;
use super::server::{Refusal, Server};
use super::standard::wire::reseal;
use crate::time::Instant;
use ahead::Ahead;

pub use event::{Input, InvalidContinuation, Kind, Minisocket, OutputRequest};
pub use extract::Installed;
pub use reply::{Files, Piece, Reply, Stretch};

/// Counters of an endpoint, in addition to those of its [`Server`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Events answered by the application.
    pub sent: u64,
    /// Packets of those answers.
    pub packets: u64,
    /// Bytes of data in them.
    pub bytes: u64,
    /// Events dropped by the application.
    pub dropped: u64,
    /// Events that could not be answered, because their secrets had left the ring.
    pub outlived: u64,
    /// Requests refused because the queue was full.
    pub overflowed: u64,
    /// Events extracted.
    pub extracted: u64,
    /// Events installed.
    pub installed: u64,
    /// Streams reset because their continuation was not sealed with any of the secrets.
    pub unknown: u64,
    /// Events refused at installation: altered, sealed with an unknown secret, too old, already
    /// installed, or beyond the queue's limit.
    pub strange: u64,
}

/// Server with an event queue. See the [module](self).
#[derive(Debug)]
pub struct Endpoint {
    server: Server,
    crypt: Option<ServerCrypt>,
    queue: VecDeque<Minisocket<'static>>,
    limit: usize,
    stats: Stats,
    ahead: Ahead,
    /// Buffer for a message.
    message: Vec<u8>,
    /// Buffer for the message's data.
    data: Vec<u8>,
    /// Buffer for the encrypted message.
    sealed: Vec<u8>,
}

impl Endpoint {
    /// Creates an endpoint with an empty queue of at most `limit` events.
    pub fn new(server: Server, limit: usize) -> Self {
        let stats = Stats::default();
        let queue = VecDeque::new();
        let (ahead, message, data, sealed) = Default::default();
        Endpoint { server, crypt: None, queue, limit, stats, ahead, message, data, sealed }
    }

    /// Accepts encrypted requests as well, or only encrypted requests if `crypt` requires
    /// encryption.
    #[must_use]
    pub fn with_crypt(self, crypt: ServerCrypt) -> Self {
        Endpoint { crypt: Some(crypt), ..self }
    }

    /// Encryption state, if encryption is enabled.
    pub fn crypt(&self) -> Option<&ServerCrypt> {
        self.crypt.as_ref()
    }

    /// The server, which decides how requests are answered.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// The server, for the rotation of its secrets.
    pub fn server_mut(&mut self) -> &mut Server {
        &mut self.server
    }

    /// The secrets with which the application's continuations are opened.
    pub fn ring(&self) -> &KeyRing {
        self.server.ring()
    }

    /// The counters so far.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Number of events in the queue.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Processes a request whose answers are sent along `to`, in messages of at most `most` bytes
    /// (see [`Minisocket::fit`]), and queues its event. The request is copied, because the event
    /// outlives the packet; [`Endpoint::accept`] avoids the copy. If the queue is full, the request
    /// is only counted, and `Ok` is returned. Errors: [`Refusal`], which is counted.
    pub fn handle(
        &mut self,
        now: Instant,
        to: Return,
        message: &[u8],
        most: usize,
    ) -> Result<(), Refusal> {
        if self.queue.len() >= self.limit {
            self.stats.overflowed += 1;
            return Ok(());
        }
        let mut event = self.accept(now, to, message)?.into_owned();
        event.fit(most);
        self.queue.push_back(event);
        Ok(())
    }

    /// Like [`Endpoint::handle`], but returns the event instead of queueing it. The caller answers
    /// the event immediately. Errors: [`Refusal`], which is counted.
    pub fn accept<'m>(
        &mut self,
        now: Instant,
        to: Return,
        message: &'m [u8],
    ) -> Result<Minisocket<'m>, Refusal> {
        let (mut message, mut channel) = (Cow::Borrowed(message), Channel::Clear);
        if let Some(crypt) = &mut self.crypt {
            let (opened, how) =
                crypt.open(now, self.server.ring(), &message).ok_or(Refusal::Sealed)?;
            channel = how;
            message = opened.map_or(message, Cow::Owned);
        }
        let grant = self.server.handle(now, to.client(), &message)?;
        if let Some(resolved) = self.ahead.resolve(grant.connection(), &message) {
            message = Cow::Owned(resolved);
        }
        Ok(Minisocket::new(grant, to, message, channel))
    }

    /// The next event; `None` if the queue is empty.
    pub fn poll_event(&mut self) -> Option<Minisocket<'static>> {
        self.queue.pop_front()
    }

    /// Answers an event with the secret that was the newest when its request arrived. If that
    /// secret, or the secret of the event's encryption, has left the ring, the event is counted,
    /// but not answered. Each packet is passed to `out`, with the [`Return`] path along which it
    /// must be sent. Packets that the reply has not filled are sent without data, because the
    /// client needs their continuations.
    pub fn send(
        &mut self,
        event: Minisocket<'_>,
        reply: &Reply,
        files: &mut dyn Files,
        mut out: impl FnMut(&mut Return, &[u8]),
    ) {
        let wants = event.summary();
        let ring = self.server.ring();
        let renewed = wants.other.and_then(|(index, other)| Some((index, reseal(ring, &other)?)));
        let Minisocket { grant, mut to, channel, .. } = event;
        if !grant.is_answerable(ring) || !channel.is_answerable(ring) {
            self.stats.outlived += 1;
            return;
        }
        let slots = match wants.beyond {
            None => layout::lay_out(ring, &grant, wants.asks, reply, renewed),
            Some(from) => layout::lay_out(ring, &grant, wants.asks, &reply.beyond(from), renewed),
        };
        for (place, state) in reply.places() {
            self.ahead.note(ring, grant.connection(), place, state);
        }
        self.stats.sent += 1;
        self.stats.unknown += reply.unknown();
        for (index, slot) in slots.iter().enumerate() {
            let payload = slot.payload(files, &mut self.data);
            self.message.clear();
            if grant.emit(ring, index, &payload, &mut self.message)
                && channel.seal(ring, &self.message, &mut self.sealed)
            {
                self.stats.packets += 1;
                self.stats.bytes += payload.data.len() as u64;
                out(&mut to, &self.sealed);
            }
        }
    }

    /// Drops an event without an answer, for instance under overload. The client treats the request
    /// as lost.
    pub fn drop_event(&mut self, event: Minisocket<'_>) {
        self.stats.dropped += 1;
        drop(event);
    }
}
