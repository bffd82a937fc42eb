//! One connection of a bundle: what it is in the middle of, and whether it is alive.

use bytes::BytesMut;

use super::flight::Flight;
use super::wire::Nonce;
use crate::flow::Output;
use crate::time::{Duration, Instant};

/// A connection that should say something and does not is suspected after this, and later after
/// each false alarm.
const PATIENCE: Duration = Duration::from_secs(1);
const MOST_PATIENCE: Duration = Duration::from_secs(8);
/// It is asked for a sign of life when it has been quiet for so long: soon while something is on
/// its way, and ever later while nothing is.
const SOON: Duration = Duration::from_millis(500);
const LATER: Duration = Duration::from_secs(1);
const LATEST: Duration = Duration::from_secs(30);
/// An attempt takes no longer.
const ATTEMPT: Duration = Duration::from_secs(4);
/// Nor does a stranger, until it has said what it wants.
const STRANGER: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The session's first connection is being made, which may take its time.
    Calling,
    /// It is there, and not welcome yet: bytes flow already.
    Opening,
    /// Another is being made.
    Dialling,
    /// Another, until its challenge comes.
    Joining(Nonce),
    /// It was accepted, and has not said what it wants.
    Fresh,
    /// It was challenged.
    Proving([Nonce; 2]),
    Live,
}

pub(super) struct Path {
    pub(super) output: Output,
    pub(super) slot: u8,
    pub(super) stage: Stage,
    pub(super) inbox: BytesMut,
    /// Whether it takes bytes.
    pub(super) room: bool,
    /// Bytes sent on it and not known to have arrived.
    pub(super) flying: usize,
    /// The same of it alone, where there are others beside it.
    pub(super) flight: Flight,
    /// It should have said something.
    pub(super) suspect: bool,
    began: Instant,
    heard: Instant,
    asked: Option<Instant>,
    quiet: Duration,
    patience: Duration,
}

/// What is to be done about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    /// Ask for a sign of life.
    Ping,
    /// It has said nothing, and is doubted from now on.
    Doubt,
    /// It took too long.
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
            patience: PATIENCE,
        }
    }

    /// Whether bytes can be sent on it.
    pub(super) fn carries(&self) -> bool {
        matches!(self.stage, Stage::Opening | Stage::Live)
    }

    pub(super) fn is_well(&self) -> bool {
        self.carries() && !self.suspect
    }

    /// Whether it was accepted and has proven nothing.
    pub(super) fn is_stranger(&self) -> bool {
        matches!(self.stage, Stage::Fresh | Stage::Proving(_))
    }

    /// Whether it is on its way to be another connection of this end's.
    pub(super) fn is_attempt(&self) -> bool {
        matches!(self.stage, Stage::Dialling | Stage::Joining(_))
    }

    /// When it said something.
    pub(super) fn heard(&self) -> Instant {
        self.heard
    }

    /// It said something; whether it was suspected.
    pub(super) fn hear(&mut self, now: Instant) -> bool {
        if self.suspect {
            self.patience = (self.patience * 2).min(MOST_PATIENCE);
        }
        (self.heard, self.asked) = (now, None);
        std::mem::take(&mut self.suspect)
    }

    /// Bytes of the flow passed: it is not idle.
    pub(super) fn busy(&mut self) {
        self.quiet = LATER;
    }

    /// It has come so far.
    pub(super) fn turn(&mut self, stage: Stage, now: Instant) {
        (self.stage, self.began) = (stage, now);
        self.hear(now);
    }

    fn asks_at(&self) -> Instant {
        self.heard + if self.flying > 0 { SOON } else { self.quiet }
    }

    /// When to look at it again.
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

    /// Looks at it.
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

    /// It may be no good: nothing counts as being on its way.
    pub(super) fn doubt(&mut self) {
        self.suspect = true;
        self.flying = 0;
    }
}
