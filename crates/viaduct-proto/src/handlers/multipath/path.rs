//! State and liveness of one connection of a multipath flow.

use bytes::BytesMut;

use super::delivery_rate::DeliveryRate;
use super::wire::Nonce;
use crate::flow::Output;
use crate::time::{Duration, Instant};

/// Time after which an unanswered ping makes a connection suspect; doubles with each false alarm,
/// up to [`MAX_SILENCE_TIMEOUT`].
const SILENCE_TIMEOUT: Duration = Duration::from_secs(1);
const MAX_SILENCE_TIMEOUT: Duration = Duration::from_secs(8);
/// Time without received data after which a ping is sent, while data is in flight.
const BUSY_PING_INTERVAL: Duration = Duration::from_millis(500);
/// Time without received data after which a ping is sent, while no data is in flight; doubles with
/// each ping, up to [`MAX_PING_INTERVAL`].
const MIN_PING_INTERVAL: Duration = Duration::from_secs(1);
const MAX_PING_INTERVAL: Duration = Duration::from_secs(30);
/// Timeout of each stage of connecting, joining and proving.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(4);
/// Timeout of the welcome, and of the first message on an accepted connection.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// First connection of the session, connecting. No timeout of its own.
    Connecting,
    /// First connection, before the welcome; data may be sent already.
    Opening,
    /// Additional connection, connecting.
    Dialling,
    /// Additional connection, waiting for its challenge.
    Joining(Nonce),
    /// Accepted connection without a message yet.
    Accepted,
    /// Accepted connection that was sent a challenge.
    Proving([Nonce; 2]),
    Live,
}

pub(super) struct Path {
    pub(super) output: Output,
    pub(super) slot: u8,
    pub(super) stage: Stage,
    pub(super) inbox: BytesMut,
    /// True if the connection takes bytes.
    pub(super) is_writable: bool,
    /// Number of received pings that have not been answered yet.
    pub(super) pongs: usize,
    /// Bytes sent and not acknowledged.
    pub(super) in_flight: usize,
    /// Delivery rate, measured by pings if there are several connections.
    pub(super) delivery_rate: DeliveryRate,
    /// True if the connection has not answered in time.
    pub(super) is_suspect: bool,
    began: Instant,
    pub(super) last_received: Instant,
    pinged: Option<Instant>,
    ping_interval: Duration,
    ping_timeout: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    Ping,
    /// A ping was not answered; the connection is suspect from now on.
    Suspect,
    /// The handshake has timed out.
    Drop,
}

impl Path {
    pub(super) fn new(output: Output, slot: u8, stage: Stage, now: Instant) -> Path {
        Path {
            output,
            slot,
            stage,
            inbox: BytesMut::new(),
            is_writable: true,
            pongs: 0,
            in_flight: 0,
            delivery_rate: DeliveryRate::default(),
            is_suspect: false,
            began: now,
            last_received: now,
            pinged: None,
            ping_interval: MIN_PING_INTERVAL,
            ping_timeout: SILENCE_TIMEOUT,
        }
    }

    /// Returns whether data can be sent on the connection.
    pub(super) fn carries(&self) -> bool {
        matches!(self.stage, Stage::Opening | Stage::Live)
    }

    pub(super) fn is_usable(&self) -> bool {
        self.carries() && !self.is_suspect
    }

    /// Returns whether the connection was accepted and is not authenticated.
    pub(super) fn is_unauthenticated(&self) -> bool {
        matches!(self.stage, Stage::Accepted | Stage::Proving(_))
    }

    /// Records received data; returns whether the connection was suspect.
    pub(super) fn note_received(&mut self, now: Instant) -> bool {
        if self.is_suspect {
            self.ping_timeout = (self.ping_timeout * 2).min(MAX_SILENCE_TIMEOUT);
        }
        (self.last_received, self.pinged) = (now, None);
        std::mem::take(&mut self.is_suspect)
    }

    /// Resets the idle backoff, because data of the flow was transferred.
    pub(super) fn reset_ping_interval(&mut self) {
        self.ping_interval = MIN_PING_INTERVAL;
    }

    pub(super) fn enter(&mut self, stage: Stage, now: Instant) {
        (self.stage, self.began) = (stage, now);
        self.note_received(now);
    }

    /// Time of the next check.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.stage {
            Stage::Connecting => None,
            Stage::Opening | Stage::Accepted => Some(self.began + WELCOME_TIMEOUT),
            Stage::Dialling | Stage::Joining(_) | Stage::Proving(_) => {
                Some(self.began + ATTEMPT_TIMEOUT)
            }
            Stage::Live if self.is_suspect => None,
            Stage::Live => match self.pinged {
                Some(pinged) => Some(pinged + self.ping_timeout),
                None if self.in_flight > 0 => Some(self.last_received + BUSY_PING_INTERVAL),
                None => Some(self.last_received + self.ping_interval),
            },
        }
    }

    pub(super) fn check(&mut self, now: Instant) -> Due {
        if self.deadline().is_none_or(|at| now < at) {
            return Due::Nothing;
        }
        if self.stage != Stage::Live {
            return Due::Drop;
        }
        if self.pinged.is_some() {
            self.mark_suspect();
            return Due::Suspect;
        }
        self.pinged = Some(now);
        self.delivery_rate.on_ping();
        if self.in_flight == 0 {
            self.ping_interval = (self.ping_interval * 2).min(MAX_PING_INTERVAL);
        }
        Due::Ping
    }

    /// Marks the connection as suspect; its data no longer counts as in flight.
    pub(super) fn mark_suspect(&mut self) {
        self.is_suspect = true;
        self.in_flight = 0;
    }
}
