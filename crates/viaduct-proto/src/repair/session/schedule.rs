//! Times of a session's handshakes, which depend on the age of its keys and the silence of the
//! peer.
//!
//! ```text
//!   age of the keys, silence ──▶ due ──▶ retrying ── response ──▶ due by age or silence
//!                                           └ ▲ every second
//! ```

use crate::repair::handshake_pace::HandshakePace;
use crate::time::{Duration, Instant};

/// Retransmission interval of an unanswered initiation.
const RETRY: Duration = Duration::from_secs(1);
/// Time without an authentic message after which a new session is requested.
pub(in crate::repair) const SILENCE: Duration = Duration::from_secs(4);

/// Schedule of handshakes with one peer.
pub(in crate::repair) struct Schedule {
    rekey_after: Duration,
    /// Extra wait of this side, so that both sides do not start at the same time.
    responder_delay: Duration,
    /// Time without an authentic message after which a new session is requested.
    pub(in crate::repair) silence_limit: Duration,
    /// True while initiations are sent until one is answered.
    is_retrying: bool,
    next_try: Instant,
    /// True if the next handshake has reserved its slot ([`HandshakePace`]).
    has_reserved: bool,
    last_heard: Instant,
    /// True if an authentic message or response has arrived from the peer.
    is_known: bool,
    last_handshake: Option<Instant>,
    /// True if the peer has been silent for so long that it counts as gone.
    is_silent: bool,
}

impl Schedule {
    /// Creates a schedule with a handshake that is due immediately. `waits`: this side lets the
    /// other side start later handshakes.
    pub(super) fn new(rekey_after: Duration, waits: bool, now: Instant) -> Schedule {
        Schedule {
            rekey_after,
            responder_delay: if waits { RETRY / 2 } else { Duration::ZERO },
            silence_limit: SILENCE,
            is_retrying: false,
            next_try: now,
            has_reserved: false,
            last_heard: now,
            is_known: false,
            last_handshake: None,
            is_silent: false,
        }
    }

    /// Time of the last authentic message; `None` before the first.
    pub(in crate::repair) fn heard_at(&self) -> Option<Instant> {
        self.is_known.then_some(self.last_heard)
    }

    /// Time of the last completed handshake.
    pub(in crate::repair) fn handshake_at(&self) -> Option<Instant> {
        self.last_handshake
    }

    /// Returns whether the peer has been silent for so long that it counts as gone.
    pub(super) fn is_silent(&self) -> bool {
        self.is_silent
    }

    /// Returns whether an initiation waits for its response.
    pub(super) fn is_retrying(&self) -> bool {
        self.is_retrying
    }

    /// Age at which keys expire.
    pub(super) fn expiry(&self) -> Duration {
        self.rekey_after * 2 + SILENCE
    }

    /// Records an authentic message or response of the peer.
    pub(super) fn heard(&mut self, now: Instant) {
        (self.last_heard, self.is_known) = (now, true);
    }

    /// Records that a handshake is completed.
    pub(super) fn completed(&mut self, now: Instant) {
        self.last_handshake = Some(now);
    }

    /// Records that an initiation is answered.
    pub(super) fn answered(&mut self) {
        self.is_retrying = false;
    }

    /// Schedules the next initiation: by the age of the keys (on the responder's side a little
    /// later) or by silence; immediately if there are no keys. `newest`: creation time of the keys
    /// in use, and whether this side was the initiator of their handshake.
    pub(super) fn update(&mut self, now: Instant, newest: Option<(Instant, bool)>) {
        if self.is_retrying {
            return; // the next attempt is already scheduled
        }
        let by_age = newest.map(|(born, is_initiator)| {
            let wait = if is_initiator { self.rekey_after } else { self.rekey_after * 9 / 8 };
            born + wait + self.responder_delay
        });
        let by_silence = self.last_heard + self.silence_limit + self.responder_delay;
        self.next_try = by_age.map_or(now, |age| age.min(by_silence));
    }

    /// Time of the next initiation.
    pub(in crate::repair) fn next_try(&self) -> Instant {
        self.next_try
    }

    /// Returns whether an initiation is due now; the next one is then a retry.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> bool {
        self.is_silent = now.since(self.last_heard) > SILENCE + 2 * RETRY;
        if now < self.next_try {
            return false;
        }
        (self.is_retrying, self.next_try, self.has_reserved) = (true, now + RETRY, false);
        true
    }

    /// Reserves a slot for an initiation that is due, and postpones the initiation until then.
    /// `unanswered`: number of handshakes that the peer has not answered.
    pub(in crate::repair) fn reserve(
        &mut self,
        now: Instant,
        unanswered: u32,
        pace: &mut HandshakePace,
    ) {
        if self.next_try <= now && !self.has_reserved {
            let slot = pace.reserve(now, unanswered);
            self.has_reserved = slot > now;
            if self.has_reserved {
                self.next_try = slot;
            }
        }
    }

    /// Makes a handshake due now, unless one is in progress.
    pub(in crate::repair) fn start(&mut self, now: Instant) {
        if !self.is_retrying {
            self.next_try = now;
        }
    }

    /// Returns whether the peer has been silent for so long that a new session is requested.
    pub(in crate::repair) fn is_overdue(&self, now: Instant) -> bool {
        now.since(self.last_heard) >= self.silence_limit
    }

    /// Takes over the times of the previous process.
    pub(super) fn resume(&mut self, heard_at: Option<Instant>, handshake_at: Option<Instant>) {
        if let Some(at) = heard_at {
            (self.is_known, self.last_heard) = (true, self.last_heard.max(at));
        }
        self.last_handshake = handshake_at;
        (self.is_retrying, self.is_silent) = (false, false);
    }
}
