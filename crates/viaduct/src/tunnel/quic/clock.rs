//! Conversion between the QUIC library's instants and this crate's; both come from the same clock.

use std::time::Instant as Theirs;

use viaduct_proto::time::Instant;

/// Reference moment, as an instant of both types.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock(Instant, Theirs);

impl Clock {
    pub(super) fn new(now: Instant) -> Clock {
        Clock(now, Theirs::now())
    }

    pub(super) fn theirs(self, at: Instant) -> Theirs {
        self.1 + at.since(self.0)
    }

    pub(super) fn ours(self, at: Theirs) -> Instant {
        self.0 + at.saturating_duration_since(self.1)
    }
}
