//! State and liveness of one connection of a bundle.

use bytes::BytesMut;

use super::flight::Flight;
use super::wire::Nonce;
use crate::flow::Output;
use crate::time::{Duration, Instant};

/// Time after which an unanswered ping makes a connection suspect; doubles up to the maximum
/// with each false alarm.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(1);
const MAX_SILENCE_TIMEOUT: Duration = Duration::from_secs(8);
/// Idle times after which a ping is sent: short while data is in flight, otherwise increasing
/// from `LATER` to `LATEST`.
const SOON: Duration = Duration::from_millis(500);
const LATER: Duration = Duration::from_secs(1);
const LATEST: Duration = Duration::from_secs(30);
/// Timeout of each stage of connecting, joining and proving.
const ATTEMPT: Duration = Duration::from_secs(4);
/// Timeout of the welcome, and of the first message on an accepted connection.
const STRANGER: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// First connection of the session, connecting. No timeout of its own.
    Calling,
    /// First connection, before the welcome; data may be sent already.
    Opening,
    /// Additional connection, connecting.
    Dialling,
    /// Additional connection, waiting for its challenge.
    Joining(Nonce),
    /// Accepted connection without a message yet.
    Fresh,
    /// Accepted connection that was sent a challenge.
    Proving([Nonce; 2]),
    Live,
}

pub(super) struct Path {
    pub(super) output: Output,
    pub(super) slot: u8,
    pub(super) stage: Stage,
    pub(super) inbox: BytesMut,
    /// The connection takes bytes.
    pub(super) room: bool,
    /// Bytes sent and not acknowledged.
    pub(super) flying: usize,
    /// Bytes in flight by the connection's own pings, where there are several connections.
    pub(super) flight: Flight,
    /// The connection has not answered in time.
    pub(super) suspect: bool,
    began: Instant,
    heard: Instant,
    asked: Option<Instant>,
    quiet: Duration,
    patience: Duration,
}

/// Action that is due for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    /// Send a ping.
    Ping,
    /// A ping was not answered; the connection is suspect from now on.
    Doubt,
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
            room: true,
            flying: 0,
            flight: Flight::default(),
            suspect: false,
            began: now,
            heard: now,
            asked: None,
            quiet: LATER,
            patience: SILENCE_TIMEOUT,
        }
    }

    /// Returns whether data can be sent on the connection.
    pub(super) fn carries(&self) -> bool {
        matches!(self.stage, Stage::Opening | Stage::Live)
    }

    pub(super) fn is_well(&self) -> bool {
        self.carries() && !self.suspect
    }

    /// Returns whether the connection was accepted and is not authenticated.
    pub(super) fn is_stranger(&self) -> bool {
        matches!(self.stage, Stage::Fresh | Stage::Proving(_))
    }

    /// Returns whether the connection is being added by this end.
    pub(super) fn is_attempt(&self) -> bool {
        matches!(self.stage, Stage::Dialling | Stage::Joining(_))
    }

    /// Time at which data was last received.
    pub(super) fn heard(&self) -> Instant {
        self.heard
    }

    /// Records received data; returns whether the connection was suspect.
    pub(super) fn hear(&mut self, now: Instant) -> bool {
        if self.suspect {
            self.patience = (self.patience * 2).min(MAX_SILENCE_TIMEOUT);
        }
        (self.heard, self.asked) = (now, None);
        std::mem::take(&mut self.suspect)
    }

    /// Resets the idle backoff, because data of the flow was transferred.
    pub(super) fn busy(&mut self) {
        self.quiet = LATER;
    }

    /// Enters a stage of the handshake.
    pub(super) fn turn(&mut self, stage: Stage, now: Instant) {
        (self.stage, self.began) = (stage, now);
        self.hear(now);
    }

    fn asks_at(&self) -> Instant {
        self.heard + if self.flying > 0 { SOON } else { self.quiet }
    }

    /// Time of the next check.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.stage {
            Stage::Calling => None,
            Stage::Opening | Stage::Fresh => Some(self.began + STRANGER),
            Stage::Dialling | Stage::Joining(_) | Stage::Proving(_) => Some(self.began + ATTEMPT),
            Stage::Live if self.suspect => None,
            Stage::Live => match self.asked {
                Some(asked) => Some(asked + self.patience),
                None => Some(self.asks_at()),
            },
        }
    }

    /// Checks the connection, and returns the action that is due.
    pub(super) fn look(&mut self, now: Instant) -> Due {
        if self.deadline().is_none_or(|at| now < at) {
            return Due::Nothing;
        }
        if self.stage != Stage::Live {
            return Due::Drop;
        }
        if self.asked.is_some() {
            self.doubt();
            return Due::Doubt;
        }
        self.asked = Some(now);
        self.flight.asks();
        if self.flying == 0 {
            self.quiet = (self.quiet * 2).min(LATEST);
        }
        Due::Ping
    }

    /// Marks the connection as suspect; nothing counts as in flight.
    pub(super) fn doubt(&mut self) {
        self.suspect = true;
        self.flying = 0;
    }
}
