//! Plain counters of a tunnel, copied out by value.

use serde::{Deserialize, Serialize};

use crate::time::{Duration, Instant};

/// A tunnel, since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelStats {
    /// Links that are up.
    pub links: u64,
    /// Sessions open now.
    pub open: u64,
    /// Of them, those with bytes queued or outstanding.
    pub active: u64,
    /// Sessions that this end has opened.
    pub opened: u64,
    /// Sessions that the other end has opened.
    pub accepted: u64,
    /// Sessions that were reset, by either end or with their link.
    pub reset: u64,
    /// Bytes of sessions that were sent.
    pub sent: u64,
    /// Bytes of sessions that came.
    pub received: u64,
    /// All tokens that the peer has given.
    pub tokens: u64,
    /// Of them, those that nobody has.
    pub tokens_left: u64,
    /// Tokens spent on links that broke.
    pub tokens_stranded: u64,
    /// Tokens that the peer was given: bytes of buffer for what it sends.
    pub room: u64,
    /// Of them, bytes that are held.
    pub held: u64,
    /// What bytes have waited to be sent.
    pub delay: Delay,
}

/// A link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkStats {
    /// Sessions open on it.
    pub open: u64,
    /// Whether the peer has answered.
    pub up: bool,
    /// Round trip, smoothed.
    pub rtt: Option<Duration>,
    /// The shortest of the last seconds.
    pub shortest_rtt: Option<Duration>,
    /// Bytes of sessions that were sent.
    pub sent: u64,
    /// Bytes of sessions that came.
    pub received: u64,
}

/// A session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionStats {
    /// Bytes that wait to be sent.
    pub queued: u64,
    /// Bytes that were sent and not yet acknowledged.
    pub outstanding: u64,
    /// Bytes that came and are not yet acknowledged.
    pub held: u64,
    /// Bytes that were sent.
    pub sent: u64,
    /// Bytes that came.
    pub received: u64,
    /// What its bytes have waited to be sent.
    pub delay: Delay,
}

/// How long bytes wait in a queue, from samples: a byte is followed at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delay {
    /// How many were followed.
    pub samples: u64,
    /// Sum of what they waited, in microseconds.
    pub sum_micros: u64,
    /// The longest, in microseconds.
    pub most_micros: u64,
    /// Which byte is followed, and since when.
    #[serde(skip)]
    followed: Option<(u64, Instant)>,
}

impl Delay {
    /// The last of `upto` bytes has come.
    pub(super) fn queued(&mut self, now: Instant, upto: u64) {
        self.followed = self.followed.or(Some((upto, now)));
    }

    /// `upto` bytes have left.
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

    /// Adds another's samples.
    pub(super) fn add(&mut self, other: &Delay) {
        self.samples += other.samples;
        self.sum_micros = self.sum_micros.saturating_add(other.sum_micros);
        self.most_micros = self.most_micros.max(other.most_micros);
    }

    /// The mean, in microseconds; 0 if none was followed.
    pub fn mean_micros(&self) -> u64 {
        self.sum_micros / self.samples.max(1)
    }
}
