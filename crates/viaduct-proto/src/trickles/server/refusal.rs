//! Why a request is not answered, and how often that was so.

use crate::time::Duration;
use crate::trickles::continuation::Invalid;
use crate::trickles::plan::Inconsistent;
use crate::trickles::proof::Unproven;
use crate::trickles::wire::request::NoRequest;

/// Why a request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It cannot be read.
    #[error(transparent)]
    Malformed(#[from] NoRequest),
    /// Its continuation is none of ours.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// Its continuation is too old, or from the future.
    #[error("the continuation is {age:?} old, beyond the replay window: restart with it")]
    Stale {
        /// Its age; zero if it is from the future.
        age: Duration,
    },
    /// Its continuation was answered already.
    #[error("the continuation was answered already: each is good for one request")]
    Replayed,
    /// Its connection has restarted since.
    #[error("the connection was restarted after generation {0}: use what it got then")]
    Superseded(u16),
    /// It tells another story of its losses than was answered.
    #[error(
        "what arrived of the piece at packet {base} was told otherwise before, and answered: a \
            loss stays one"
    )]
    Forked {
        /// Where the piece begins, or the loss that was none.
        base: u64,
    },
    /// It does not show what it says.
    #[error(transparent)]
    Unproven(#[from] Unproven),
    /// It does not show that lost packets have arrived at last.
    #[error("losses are not shown to be repaired a window after their recovery: restart")]
    Unrepaired,
    /// It contradicts what was said before.
    #[error(transparent)]
    Inconsistent(#[from] Inconsistent),
    /// Its answer would be longer than itself.
    #[error("{len} bytes cannot be answered with a ticket of {ticket}: pad the request")]
    TooShort {
        /// Bytes that came.
        len: usize,
        /// Bytes of the shortest answer.
        ticket: usize,
    },
    /// It is not encrypted as it should be, or altered; what encrypts has counted it.
    #[error("the request is in clear where it must not be, under no key of ours, or altered")]
    Sealed,
    /// It comes sooner than a client's timers can have run out.
    #[error("attempt {attempt} to restart comes {age:?} after the continuation: too soon")]
    TooSoon {
        /// Which attempt.
        attempt: u8,
        /// How old the continuation is.
        age: Duration,
    },
}

/// What a server did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests answered.
    pub answered: u64,
    /// Packets permitted.
    pub permits: u64,
    /// Connections offered a ticket.
    pub opened: u64,
    /// Tickets for clients that have moved.
    pub moved: u64,
    /// Requests that reported a loss.
    pub recoveries: u64,
    /// Requests that did not come, and were made up for by one behind them.
    pub made_up: u64,
    /// Packets that were said to be lost, and whose slots had been answered: they were not sent again.
    pub invented: u64,
    /// Restarts after a timeout.
    pub timeouts: u64,
    /// Restarts after a silence.
    pub resumed: u64,
    /// Requests whose connection was in the cache.
    pub cache_hits: u64,
    /// Requests whose connection was not; 0 if there is no cache.
    pub cache_misses: u64,
    /// Refused: unreadable.
    pub malformed: u64,
    /// Refused: altered, or of an unknown secret.
    pub invalid: u64,
    /// Refused: too old, or from the future.
    pub stale: u64,
    /// Refused: answered already, or of a generation that is over.
    pub replayed: u64,
    /// Refused: a wrong proof, or a repair not shown.
    pub unproven: u64,
    /// Refused: contradictions.
    pub inconsistent: u64,
    /// Refused: too short for an answer, or too soon.
    pub greedy: u64,
}

impl Stats {
    pub(super) fn count(&mut self, refusal: &Refusal) {
        let counter = match refusal {
            Refusal::Malformed(_) => &mut self.malformed,
            Refusal::Invalid(_) => &mut self.invalid,
            Refusal::Stale { .. } => &mut self.stale,
            Refusal::Replayed | Refusal::Superseded(_) => &mut self.replayed,
            Refusal::Unproven(_) | Refusal::Unrepaired => &mut self.unproven,
            Refusal::Inconsistent(_) | Refusal::Forked { .. } => &mut self.inconsistent,
            Refusal::TooShort { .. } | Refusal::TooSoon { .. } => &mut self.greedy,
            Refusal::Sealed => return,
        };
        *counter += 1;
    }

    /// Requests refused, for whatever reason.
    pub fn refused(&self) -> u64 {
        self.malformed
            + self.invalid
            + self.stale
            + self.replayed
            + self.unproven
            + self.inconsistent
            + self.greedy
    }
}
