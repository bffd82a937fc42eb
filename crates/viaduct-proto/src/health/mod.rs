//! Health: the state of a gateway's or an overlay node's peer, determined from the packets that
//! arrive; and checks of replicas and of next hops ([`Checker`]). Text form of a state: `up`, `up,
//! nothing recovered: REASON`, `degraded: REASON`, `down: REASON`.
//!
//! ```text
//!   probes ◀──▶ Checker: `fall` failures in a row: down; `rise` successes in a row: up
//! ```
//!
//! Each target is probed independently. If a probe is not answered in time, the next one follows
//! immediately, so a target that does not answer is down after `interval + fall × timeout` at most.

mod checker;

pub use checker::{Checker, Counters, Probe, Timing};

use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

/// State of a peer or of a checked target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "state", content = "reason")]
pub enum State {
    /// No fault is known.
    #[default]
    Up,
    /// Packets arrive, but repairs recover none of the lost packets.
    Useless(String),
    /// Works only in part.
    Degraded(String),
    /// Does not answer. For a peer, the reason includes the age of its last handshake or answer.
    Down(String),
}

impl State {
    /// Returns whether the state is [`State::Up`].
    pub fn is_up(&self) -> bool {
        matches!(self, State::Up)
    }

    /// Name without the reason.
    pub fn name(&self) -> &'static str {
        match self {
            State::Up => "up",
            State::Useless(_) => "up, nothing recovered",
            State::Degraded(_) => "degraded",
            State::Down(_) => "down",
        }
    }

    /// Reason; `None` for [`State::Up`].
    pub fn reason(&self) -> Option<&str> {
        match self {
            State::Up => None,
            State::Useless(reason) | State::Degraded(reason) | State::Down(reason) => Some(reason),
        }
    }
}

impl Display for State {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        self.reason().map_or(Ok(()), |reason| write!(f, ": {reason}"))
    }
}
