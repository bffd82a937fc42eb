//! What the links of a tunnel share.

use std::collections::VecDeque;
use std::net::SocketAddr;

use super::room::Room;
use super::stats::Delay;
use super::tokens::Tokens;
use super::wire::MOST_DATA;
use crate::flow::{Address, Failure};
use crate::time::Duration;

/// How a tunnel is set up.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Bytes of buffer that the peer is given at first, for all its sessions.
    pub initial: u64,
    /// Bytes of buffer that it is given at most, as the path turns out to need them. One session
    /// alone gets half; a path is filled by one session if this is four times its bandwidth-delay
    /// product.
    pub limit: u64,
    /// Bytes that each session may have outstanding whatever others have, so that sessions whose
    /// readers have stopped never leave the rest without any. They come on top of `limit`.
    pub floor: u32,
    /// Most bytes of a session in one frame (the slides' MSS), 1 to 16,384: how long another
    /// session's bytes may have to wait.
    pub mss: usize,
    /// Bytes that may wait to be sent in one session.
    pub queue: usize,
    /// Sessions that the peer may have open on one link.
    pub sessions: u32,
    /// How often the round trip is measured.
    pub ping: Duration,
    /// After how long without a word a link is given up.
    pub silence: Duration,
}

impl Default for Settings {
    /// 1 MiB of buffer that grows to 64 MiB, 4 KiB for each of 4096 sessions besides; frames of
    /// 8 KiB, 256 KiB queued a session; a ping every 2 s, given up after 20.
    fn default() -> Self {
        Settings {
            initial: 1 << 20,
            limit: 64 << 20,
            floor: 4 << 10,
            mss: 8 << 10,
            queue: 256 << 10,
            sessions: 4096,
            ping: Duration::from_secs(2),
            silence: Duration::from_secs(20),
        }
    }
}

/// A session: its link's number, and its own on that link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId {
    /// The link that it is on, for as long as it lives.
    pub link: u32,
    /// Its number there; odd if opened by whoever dialled the link.
    pub number: u32,
}

/// What a tunnel has to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer opens a session: [`accept`](super::Tunnel::accept) or
    /// [`reset`](super::Tunnel::reset) it. Its bytes can be read at once.
    Opened {
        /// The session.
        id: SessionId,
        /// Where it is to go.
        to: Address,
        /// Who it is for.
        source: Option<SocketAddr>,
    },
    /// The peer has accepted a session.
    Accepted(SessionId),
    /// Bytes can be read; told again only once a read has found none.
    Readable(SessionId),
    /// Bytes may be written again, after [`may_write`](super::Tunnel::may_write) said no.
    Writable(SessionId),
    /// All that the other end wrote has been read, and it writes no more.
    Finished(SessionId),
    /// The session is over: reset by the other end, or its link broke.
    Reset(SessionId, Failure),
    /// The peer has answered on a link.
    LinkUp(u32),
    /// A link broke: what carried it is to be closed. Its sessions are reset.
    LinkDown(u32, LinkError),
}

/// Why a link broke.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// What carried it did.
    #[error("the connection is gone")]
    Gone,
    /// The peer is, and came back as another.
    #[error("the peer was started again")]
    Restarted,
    /// Nothing was heard for too long.
    #[error("nothing heard for {0:?}")]
    Silent(Duration),
    /// It reads nothing of what it asks for.
    #[error("the peer asks and does not listen")]
    Deaf,
    /// The bytes are no frames.
    #[error(transparent)]
    Malformed(#[from] super::wire::Malformed),
    /// A frame where it cannot be.
    #[error("{0}")]
    Protocol(&'static str),
}

/// What the links of a tunnel share.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) settings: Settings,
    /// Tells this tunnel from the one before this process was started.
    pub(super) instance: u64,
    /// The same of the peer.
    pub(super) peer: Option<u64>,
    /// What the peer was before that.
    pub(super) former: Option<u64>,
    /// Whether the peer was just found to be another.
    pub(super) restarted: bool,
    /// Links of which it has just said that it holds nothing.
    pub(super) gone: Vec<u32>,
    pub(super) tokens: Tokens,
    pub(super) room: Room,
    pub(super) events: VecDeque<Event>,
    /// Sessions that are over, on links with several lanes.
    pub(super) forgotten: VecDeque<SessionId>,
    pub(super) totals: Totals,
}

/// Counters of all sessions that ever were.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub(super) opened: u64,
    pub(super) accepted: u64,
    pub(super) reset: u64,
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) delay: Delay,
}

impl Common {
    pub(super) fn new(mut settings: Settings, instance: u64) -> Common {
        settings.mss = settings.mss.clamp(1, MOST_DATA);
        Common {
            tokens: Tokens::default(),
            room: Room::new(settings.initial, settings.limit, settings.floor),
            settings,
            instance,
            peer: None,
            former: None,
            restarted: false,
            gone: Vec::new(),
            events: VecDeque::new(),
            forgotten: VecDeque::new(),
            totals: Totals::default(),
        }
    }
}
