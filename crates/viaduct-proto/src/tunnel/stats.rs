//! Plain counters of a tunnel, copied by value.

use serde::{Deserialize, Serialize};

use crate::time::{Duration, Instant};

/// Counters of a tunnel since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelStats {
    /// Links that are up.
    pub links: u64,
    /// Streams that are open now.
    pub open: u64,
    /// Open streams with bytes queued or outstanding.
    pub active: u64,
    /// Streams that this end has opened.
    pub opened: u64,
    /// Streams that the other end has opened.
    pub accepted: u64,
    /// Streams that were reset, by either end or with their link.
    pub reset: u64,
    /// Stream bytes sent.
    pub sent: u64,
    /// Stream bytes received.
    pub received: u64,
    /// Total of tokens that the peer has granted.
    pub tokens: u64,
    /// Tokens granted by the peer that no stream has spent.
    pub tokens_left: u64,
    /// Tokens spent on links that broke.
    pub tokens_stranded: u64,
    /// Receive window: tokens granted to the peer, one for each byte of buffer.
    #[serde(rename = "room")]
    pub window: u64,
    /// Bytes of the receive window in use.
    pub held: u64,
    /// Time that bytes waited to be sent.
    pub delay: Delay,
}

impl TunnelStats {
    /// Adds the counters of another tunnel.
    pub fn merge(&mut self, more: &TunnelStats) {
        let TunnelStats { links, open, active, opened, accepted, reset, sent, received, .. } =
            *more;
        self.links += links;
        self.open += open;
        self.active += active;
        self.opened += opened;
        self.accepted += accepted;
        self.reset += reset;
        self.sent += sent;
        self.received += received;
        self.tokens += more.tokens;
        self.tokens_left += more.tokens_left;
        self.tokens_stranded += more.tokens_stranded;
        self.window += more.window;
        self.held += more.held;
        self.delay.add(&more.delay);
    }
}

/// Counters of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkStats {
    /// Streams open on the link.
    pub open: u64,
    /// True if the peer has answered, and streams can be opened on the link.
    pub up: bool,
    /// Smoothed round-trip time.
    pub rtt: Option<Duration>,
    /// Shortest round-trip time of the last 10 to 20 s.
    pub shortest_rtt: Option<Duration>,
    /// Stream bytes sent.
    pub sent: u64,
    /// Stream bytes received.
    pub received: u64,
}

/// Counters of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamStats {
    /// Bytes that wait to be sent.
    pub queued: u64,
    /// Bytes sent and not yet acknowledged.
    pub outstanding: u64,
    /// Bytes received and not yet acknowledged.
    pub held: u64,
    /// Bytes sent.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
    /// Time that bytes waited to be sent.
    pub delay: Delay,
}

/// Sampled waiting time of bytes in a queue. One byte is followed at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delay {
    /// Number of bytes followed.
    pub samples: u64,
    /// Sum of their waiting times, in microseconds.
    pub sum_micros: u64,
    /// Longest waiting time, in microseconds.
    pub most_micros: u64,
    /// Position of the byte that is followed, and the time at which it was queued.
    #[serde(skip)]
    followed: Option<(u64, Instant)>,
}

impl Delay {
    /// Notes that bytes up to position `upto` were queued.
    pub(super) fn queued(&mut self, now: Instant, upto: u64) {
        self.followed = self.followed.or(Some((upto, now)));
    }

    /// Notes that bytes up to position `upto` were sent.
    pub(super) fn sent(&mut self, now: Instant, upto: u64) {
        if let Some((_, since)) = self.followed.take_if(|(byte, _)| *byte <= upto) {
            self.note(now - since);
        }
    }

    fn note(&mut self, waited: Duration) {
        let micros = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        self.samples += 1;
        self.sum_micros = self.sum_micros.saturating_add(micros);
        self.most_micros = self.most_micros.max(micros);
    }

    /// Adds the samples of another counter.
    pub(super) fn add(&mut self, other: &Delay) {
        self.samples += other.samples;
        self.sum_micros = self.sum_micros.saturating_add(other.sum_micros);
        self.most_micros = self.most_micros.max(other.most_micros);
    }

    /// Mean waiting time in microseconds; 0 without samples.
    pub fn mean_micros(&self) -> u64 {
        self.sum_micros / self.samples.max(1)
    }
}
