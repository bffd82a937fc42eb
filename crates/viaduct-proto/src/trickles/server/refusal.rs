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
    /// Invalid continuation: altered, or sealed with an unknown secret.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// Continuation too old, or from the future.
    #[error("the continuation is {age:?} old, beyond the replay window: a restart is needed")]
    Stale {
        /// Age of the continuation; zero if it is from the future.
        age: Duration,
    },
    /// Continuation whose epoch cannot continue, in a request too short for an address token.
    #[error("the epoch of the continuation cannot continue: a restart is needed")]
    Expired,
    /// Continuation that was already answered, or generation that has already begun.
    #[error("the continuation was already answered: each continuation is valid for one request")]
    Replayed,
    /// Continuation of a generation that a restart has ended.
    #[error("generation {0} has ended: the connection was restarted")]
    Superseded(u16),
    /// Losses that contradict an answered request.
    #[error("the reported losses contradict an answered request: epoch or packet {base}")]
    Forked {
        /// Base of the epoch, or the packet that is falsely reported as lost.
        base: u64,
    },
    /// Wrong proof.
    #[error(transparent)]
    Unproven(#[from] Unproven),
    /// Missing or wrong proof that the repairs of lost packets have arrived.
    #[error("the request does not prove that the repairs have arrived: a restart is needed")]
    Unrepaired,
    /// Contradiction between the request and its continuation.
    #[error(transparent)]
    Inconsistent(#[from] Inconsistent),
    /// Request shorter than its answer.
    #[error("{len} bytes are too few for an address token of {address_token}: pad the request")]
    TooShort {
        /// Length of the request in bytes.
        len: usize,
        /// Minimum length of the answer in bytes.
        address_token: usize,
    },
    /// Request that is unencrypted although encryption is required, encrypted under an unknown key,
    /// or altered. The encryption layer counts it.
    #[error("the request is unencrypted, encrypted under an unknown key, or altered")]
    Sealed,
    /// Restart before a correct client's timers can have expired.
    #[error("restart attempt {attempt} came only {age:?} after the continuation was made")]
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
    /// Permits in the answers.
    pub permits: u64,
    /// Connections that were offered an address token.
    pub opened: u64,
    /// Address tokens for clients that have moved.
    pub moved: u64,
    /// Address tokens for clients whose epoch could not continue, because the secret of its nonces
    /// was no longer in the ring, or because the epoch was too long.
    pub renewed: u64,
    /// Requests that reported a loss, and were answered.
    pub recoveries: u64,
    /// Lost requests whose packets were sent in answer to a later request.
    pub made_up: u64,
    /// Packets falsely reported as lost. An earlier answer had used up their places in the window,
    /// so they were not sent again.
    pub invented: u64,
    /// Restarts after a timeout.
    pub timeouts: u64,
    /// Restarts after a silence.
    pub resumed: u64,
    /// Refused: malformed.
    pub malformed: u64,
    /// Refused: altered, or sealed with an unknown secret.
    pub invalid: u64,
    /// Refused: too old, from the future, or of an epoch that cannot continue.
    pub stale: u64,
    /// Refused: answered already, or of a generation that has ended.
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
            Refusal::Stale { .. } | Refusal::Expired => &mut self.stale,
            Refusal::Replayed | Refusal::Superseded(_) => &mut self.replayed,
            Refusal::Unproven(_) | Refusal::Unrepaired => &mut self.unproven,
            Refusal::Inconsistent(_) | Refusal::Forked { .. } => &mut self.inconsistent,
            Refusal::TooShort { .. } | Refusal::TooSoon { .. } => &mut self.greedy,
            Refusal::Sealed => return,
        };
        *counter += 1;
    }

    /// Number of requests refused, without those that the encryption layer has refused.
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
