//! Detection of a path MTU black hole: short messages arrive, long ones never do, and no ICMP error
//! is received.

use super::MAX_RESTARTS;
use crate::trickles::client::{Client, MIN_MESSAGE};

/// Minimum number of restarts that were answered only with short messages. A single such restart
/// may also occur under congestion, when most packets are lost.
const SHORT: u32 = 3;

#[derive(Clone, Copy, Debug)]
pub(super) struct Width {
    /// True if messages may be longer than [`MIN_MESSAGE`].
    long: bool,
    /// True if the first full request got no answer, and no long message has arrived since.
    pub(super) doubted: bool,
    /// Number of restarts that were answered with short messages since the last long message.
    short: u32,
    /// Number of restarts before the last message, and before the last long message.
    restarts: (u64, u64),
}

impl Width {
    /// Initial state of a connection with messages of at most `message` bytes.
    pub(super) fn new(message: u16) -> Width {
        let long = usize::from(message) > MIN_MESSAGE;
        Width { long, doubted: false, short: 0, restarts: (0, 0) }
    }

    /// Records a message of `bytes` bytes; `restarts` is the number of restarts so far.
    pub(super) fn heard(&mut self, bytes: usize, restarts: u64) {
        self.short += u32::from(self.short == 0 || restarts != self.restarts.0);
        self.restarts.0 = restarts;
        if bytes > MIN_MESSAGE {
            (self.doubted, self.short, self.restarts.1) = (false, 0, restarts);
        }
    }

    /// Returns whether shorter messages should be tried after a timeout. If nothing arrives at all,
    /// as may happen under congestion, messages may be lost for another reason.
    pub(super) fn is_doubtful(&self, client: &Client) -> bool {
        let since = client.stats().restarts - self.restarts.1;
        let short = since >= MAX_RESTARTS.into() && self.short >= SHORT;
        self.long && (short || self.doubted && client.is_due())
    }
}
