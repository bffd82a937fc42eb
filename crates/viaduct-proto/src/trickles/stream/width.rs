//! Whether messages are too long for the way, and routers keep that to themselves: then short ones come, and long
//! ones never do.

use super::PATIENCE;
use crate::trickles::client::{Client, LEAST_MESSAGE};

/// So many restarts must bring something short, and nothing long: one may in a crowd, too, where most packets are lost.
const SHORT: u32 = 3;

/// What is known of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Width {
    /// Whether messages may be longer than [`LEAST_MESSAGE`].
    long: bool,
    /// The first request was not answered as long as it was long, and nothing long has come since.
    pub(super) doubted: bool,
    /// So many restarts have brought something short, and nothing long has come since.
    short: u32,
    /// Restarts up to when something came, and up to when something long did.
    restarts: (u64, u64),
}

impl Width {
    /// Of a connection that begins, with messages of at most so many bytes.
    pub(super) fn new(message: u16) -> Width {
        let long = usize::from(message) > LEAST_MESSAGE;
        Width { long, doubted: false, short: 0, restarts: (0, 0) }
    }

    /// A message of so many bytes came, after so many restarts.
    pub(super) fn heard(&mut self, bytes: usize, restarts: u64) {
        self.short += u32::from(self.short == 0 || restarts != self.restarts.0);
        self.restarts.0 = restarts;
        if bytes > LEAST_MESSAGE {
            (self.doubted, self.short, self.restarts.1) = (false, 0, restarts);
        }
    }

    /// A timer has run out: whether shorter messages are to be tried. Where nothing comes at all they may be lost as
    /// well as too long, as in a crowd.
    pub(super) fn is_doubtful(&self, client: &Client) -> bool {
        let since = client.stats().restarts - self.restarts.1;
        let short = since >= PATIENCE.into() && self.short >= SHORT;
        self.long && (short || self.doubted && client.is_due())
    }
}
