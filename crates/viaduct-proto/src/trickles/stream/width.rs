//! Whether messages are too long for the way, and routers keep that to themselves: then short ones come, and long
//! ones never do.

use super::PATIENCE;
use crate::trickles::client::{Client, LEAST_MESSAGE};

/// What is known of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Width {
    /// Whether messages may be longer than [`LEAST_MESSAGE`].
    long: bool,
    /// The first request was not answered as long as it was long, and nothing long has come since.
    pub(super) doubted: bool,
    /// Something short has come, and nothing long since.
    short: bool,
    /// Restarts up to when something long came.
    restarts: u64,
}

impl Width {
    /// Of a connection that begins, with messages of at most so many bytes.
    pub(super) fn new(message: u16) -> Width {
        let long = usize::from(message) > LEAST_MESSAGE;
        Width { long, doubted: false, short: false, restarts: 0 }
    }

    /// A message of so many bytes came, after so many restarts.
    pub(super) fn heard(&mut self, bytes: usize, restarts: u64) {
        self.short = bytes <= LEAST_MESSAGE;
        if !self.short {
            (self.doubted, self.restarts) = (false, restarts);
        }
    }

    /// A timer has run out: whether shorter messages are to be tried. Where nothing comes at all they may be lost as
    /// well as too long, as in a crowd.
    pub(super) fn is_doubtful(&self, client: &Client) -> bool {
        let silent = client.stats().restarts - self.restarts >= PATIENCE.into() && self.short;
        self.long && (silent || self.doubted && client.is_due())
    }
}
