//! Detection of a path MTU black hole: short messages arrive, long ones never do, and no ICMP
//! error tells.

use super::MAX_RESTARTS;
use crate::trickles::client::{Client, MIN_MESSAGE};

/// Number of restarts that must bring short messages and no long one. One alone may occur in a
/// crowd, too, where most packets are lost.
const SHORT: u32 = 3;

/// State of the detection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Width {
    /// True if messages may be longer than [`MIN_MESSAGE`].
    long: bool,
    /// True if the first request was not answered at full length, and nothing long has arrived
    /// since.
    pub(super) doubted: bool,
    /// Number of restarts that have brought something short since something long last arrived.
    short: u32,
    /// Restart counts when something last arrived, and when something long did.
    restarts: (u64, u64),
}

impl Width {
    /// Initial state of a connection with messages of at most `message` bytes.
    pub(super) fn new(message: u16) -> Width {
        let long = usize::from(message) > MIN_MESSAGE;
        Width { long, doubted: false, short: 0, restarts: (0, 0) }
    }

    /// Records a message of `bytes` bytes, after so many restarts.
    pub(super) fn heard(&mut self, bytes: usize, restarts: u64) {
        self.short += u32::from(self.short == 0 || restarts != self.restarts.0);
        self.restarts.0 = restarts;
        if bytes > MIN_MESSAGE {
            (self.doubted, self.short, self.restarts.1) = (false, 0, restarts);
        }
    }

    /// Returns whether shorter messages are to be tried after a timeout. If nothing arrives at
    /// all, as in a crowd, the messages may be lost for another reason.
    pub(super) fn is_doubtful(&self, client: &Client) -> bool {
        let since = client.stats().restarts - self.restarts.1;
        let short = since >= MAX_RESTARTS.into() && self.short >= SHORT;
        self.long && (short || self.doubted && client.is_due())
    }
}
