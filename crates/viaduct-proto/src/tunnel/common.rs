//! Types and state that the links of a tunnel share.

use std::collections::VecDeque;
use std::net::SocketAddr;

use super::stats::Delay;
use super::tokens::Tokens;
use super::window::ReceiveWindow;
use super::wire::MAX_DATA;
use crate::flow::{Address, Failure};
use crate::time::{Duration, Instant};

/// Settings of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bytes of buffer that the peer gets at first, for all its streams.
    pub initial: u64,
    /// Maximum bytes of buffer that the peer gets if measurements show that the path needs so many.
    /// A single stream gets half of them, and fills a path if this limit is at least four times the
    /// path's bandwidth-delay product.
    pub limit: u64,
    /// Least window: bytes that each stream may have outstanding in any case. These bytes are in
    /// addition to `limit`, so that streams whose readers have stopped cannot use up the buffer of
    /// the others.
    pub least_window: u32,
    /// Maximum bytes of a stream in one frame (the slides' MSS), 1 to 16,384. This limits the time
    /// for which another stream's bytes wait.
    pub mss: usize,
    /// Length of a stream's send queue, in bytes, at which [`may_write`](super::Tunnel::may_write)
    /// returns false.
    pub queue: usize,
    /// Streams that the peer may have open on one link.
    pub streams: u32,
    /// Interval between measurements of the round-trip time.
    pub ping: Duration,
    /// Time without any bytes from the peer after which a link is given up.
    pub silence: Duration,
}

impl Default for Settings {
    /// 1 MiB of buffer that grows to 64 MiB, plus 4 KiB for each of 4096 streams; frames of 8
    /// KiB; 256 KiB queued per stream; a ping every 2 s; links are given up after 20 s of
    /// silence.
    fn default() -> Self {
        Settings {
            initial: 1 << 20,
            limit: 64 << 20,
            least_window: 4 << 10,
            mss: 8 << 10,
            queue: 256 << 10,
            streams: 4096,
            ping: Duration::from_secs(2),
            silence: Duration::from_secs(20),
        }
    }
}

/// Identifier of a stream: the number of its link, and its own number on that link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId {
    /// Number of the stream's link, which stays the same for its lifetime.
    pub link: u32,
    /// Number of the stream on that link; odd if the end that dialled the link opened it.
    pub number: u32,
}

/// Events that a tunnel reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer opens a stream: [`accept`](super::Tunnel::accept) or
    /// [`reset`](super::Tunnel::reset) it. Its bytes can be read immediately.
    Opened {
        /// The stream.
        id: StreamId,
        /// Destination of the stream.
        to: Address,
        /// Client for which the stream is opened.
        source: Option<SocketAddr>,
    },
    /// The peer has accepted a stream.
    Accepted(StreamId),
    /// Bytes can be read. Reported again only after a read has found none.
    Readable(StreamId),
    /// Bytes may be written again, after [`may_write`](super::Tunnel::may_write) returned false.
    Writable(StreamId),
    /// All bytes that the other end wrote have been read, and no more will follow.
    Finished(StreamId),
    /// The stream is over: reset by the other end, or its link broke.
    Reset(StreamId, Failure),
    /// The peer has answered on a link.
    LinkUp(u32),
    /// A link broke: close its connection. Its streams are reset.
    LinkDown(u32, LinkError),
}

/// Reason why a link broke.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The underlying connection broke.
    #[error("the connection was closed")]
    Gone,
    /// The peer was restarted: it has a new instance number.
    #[error("the peer has been restarted")]
    Restarted,
    /// Nothing was received for too long.
    #[error("nothing received for {0:?}")]
    Silent(Duration),
    /// The peer requests answers and does not read them.
    #[error("the peer requests answers and does not read them")]
    Deaf,
    /// The bytes are not valid frames.
    #[error(transparent)]
    Malformed(#[from] super::wire::Malformed),
    /// A frame that is not allowed in this state.
    #[error("{0}")]
    Protocol(&'static str),
}

/// State that the links of a tunnel share.
#[derive(Debug)]
pub(super) struct Common {
    /// Time of the current call.
    pub(super) now: Instant,
    pub(super) settings: Settings,
    /// Random number that distinguishes this tunnel from those of earlier runs of the process.
    pub(super) instance: u64,
    /// Instance number of the peer.
    pub(super) peer: Option<u64>,
    /// Instance number of the peer before its last restart.
    pub(super) former: Option<u64>,
    /// True if the peer has left a link before this end did: it may be handing over to another
    /// process.
    pub(super) peer_leaves: bool,
    /// True if a restart of the peer has just been detected.
    pub(super) restarted: bool,
    /// Links for which the peer has just reported that it holds no bytes.
    pub(super) gone: Vec<u32>,
    pub(super) tokens: Tokens,
    pub(super) window: ReceiveWindow,
    pub(super) events: VecDeque<Event>,
    /// Streams that are over, on links with several lanes.
    pub(super) forgotten: VecDeque<StreamId>,
    pub(super) totals: Totals,
}

/// Counters of all streams, closed ones included.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub(super) opened: u64,
    pub(super) accepted: u64,
    pub(super) reset: u64,
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) delay: Delay,
}

impl Totals {
    /// Adds the totals of a former generation.
    pub(super) fn add(&mut self, former: &Totals) {
        self.opened += former.opened;
        self.accepted += former.accepted;
        self.reset += former.reset;
        self.sent += former.sent;
        self.received += former.received;
        self.delay.add(&former.delay);
    }
}

impl Common {
    pub(super) fn new(mut settings: Settings, instance: u64) -> Common {
        settings.mss = settings.mss.clamp(1, MAX_DATA);
        Common {
            now: Instant::ZERO,
            tokens: Tokens::default(),
            window: ReceiveWindow::new(settings.initial, settings.limit, settings.least_window),
            settings,
            instance,
            peer: None,
            former: None,
            peer_leaves: false,
            restarted: false,
            gone: Vec::new(),
            events: VecDeque::new(),
            forgotten: VecDeque::new(),
            totals: Totals::default(),
        }
    }
}
