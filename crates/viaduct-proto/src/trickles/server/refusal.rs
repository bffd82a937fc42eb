//! Refusals of requests, and their counters.

use crate::time::Duration;
use crate::trickles::continuation::Invalid;
use crate::trickles::plan::Inconsistent;
use crate::trickles::proof::Unproven;
use crate::trickles::wire::request::InvalidRequest;

/// Reason why a request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Parse error.
    #[error(transparent)]
    Malformed(#[from] InvalidRequest),
    /// Invalid continuation: altered, or of an unknown secret.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// Continuation too old, or from the future.
    #[error("the continuation is {age:?} old, beyond the replay window: restart with it")]
    Stale {
        /// Age of the continuation; zero if it is from the future.
        age: Duration,
    },
    /// Continuation answered before.
    #[error("the continuation was answered already: each is good for one request")]
    Replayed,
    /// Continuation of a generation that a restart has ended.
    #[error("the connection was restarted after generation {0}: use what it got then")]
    Superseded(u16),
    /// Losses that contradict those of a request that was answered.
    #[error(
        "what arrived of the epoch at packet {base} was told otherwise before, and answered: a \
            loss stays one"
    )]
    Forked {
        /// Base of the epoch, or the packet that is falsely reported as lost.
        base: u64,
    },
    /// Wrong proof.
    #[error(transparent)]
    Unproven(#[from] Unproven),
    /// Missing or wrong proof that lost packets have arrived at last.
    #[error("losses are not shown to be repaired a window after their recovery: restart")]
    Unrepaired,
    /// Contradiction to the continuation.
    #[error(transparent)]
    Inconsistent(#[from] Inconsistent),
    /// Request shorter than its answer.
    #[error("{len} bytes are too few for an address token of {address_token}: pad the request")]
    TooShort {
        /// Length of the request in bytes.
        len: usize,
        /// Length of the shortest answer in bytes.
        address_token: usize,
    },
    /// Request in clear where encryption is required, under an unknown key, or altered. It is
    /// counted by the encryption layer.
    #[error("the request is in clear where it must not be, under no key of ours, or altered")]
    Sealed,
    /// Restart earlier than a client's timers can have expired.
    #[error("attempt {attempt} to restart comes {age:?} after the continuation: too soon")]
    TooSoon {
        /// Number of the attempt.
        attempt: u8,
        /// Age of the continuation.
        age: Duration,
    },
}

/// Counters of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests answered.
    pub answered: u64,
    /// Packets permitted.
    pub permits: u64,
    /// Connections offered an address token.
    pub opened: u64,
    /// Address tokens for clients that have moved.
    pub moved: u64,
    /// Requests that reported a loss.
    pub recoveries: u64,
    /// Lost requests that a later one made up for.
    pub made_up: u64,
    /// Packets that were falsely reported as lost: their slots had been answered, so they were
    /// not sent again.
    pub invented: u64,
    /// Restarts after a timeout.
    pub timeouts: u64,
    /// Restarts after a silence.
    pub resumed: u64,
    /// Refused: malformed.
    pub malformed: u64,
    /// Refused: altered, or of an unknown secret.
    pub invalid: u64,
    /// Refused: too old, or from the future.
    pub stale: u64,
    /// Refused: answered already, or of a generation that is over.
    pub replayed: u64,
    /// Refused: a wrong proof, or a repair not proven.
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

    /// Number of requests refused, for any reason.
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
