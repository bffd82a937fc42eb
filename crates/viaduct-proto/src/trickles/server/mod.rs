//! The server: a function of request, address, secrets, time and the replay window.
//!
//! ```text
//!   message ─▶ parse ─▶ MAC ──▶ age ─▶ proof ─▶ plan ─▶ seen? ─▶ Grant: up to n permits
//!                 └────────┴──────┴───────┴───────┴───────┴──▶ Refusal, counted   │
//!                                           application: user continuation ─▶ bytes ─▶ messages
//! ```
//!
//! Between two requests the server keeps no state about a client, except entries of the replay
//! window, whose size is fixed. A permit is the right to send one packet, or one group of
//! continuations. A packet that the application does not fill is sent without data, because the
//! client needs the packet's continuation.

mod begin;
mod ends;
mod grant;
mod judge;
mod missed;
mod refusal;
mod work;

use std::net::SocketAddr;

use super::continuation::Continuation;
use super::epoch::Acks;
use super::keys::KeyRing;
use super::replay::{Once, Replay};
use super::wire::{Kind, Request};
use crate::time::{Duration, Instant};

use begin::blank;
pub use grant::{Event, Grant, Permit};
pub use missed::MAX_MADE_UP;
pub use refusal::{Refusal, Stats};
use work::{Item, MAIN, TAIL};

/// Settings of a server. Replicas share them, as they share the secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Window after the client has echoed an address token, in packets: 1 or more.
    pub initial_window: u16,
    /// Window after a timeout (the paper's InitialCwnd; TCP's loss window), in packets: 1 or more.
    pub loss_window: u16,
    /// Initial slow start threshold, in packets.
    pub ssthresh: u16,
    /// Maximum number of lost packets that are retransmitted in answer to one request (burstLimit):
    /// 1 to [`MAX_BURST`](super::plan::MAX_BURST).
    pub burst_limit: u8,
    /// Acknowledgement policy.
    pub acks: Acks,
    /// Maximum length of a response message, in bytes; a client may ask for a lower one.
    pub message: u16,
    /// Maximum number of lost requests that a later request makes up for: 0 to [`MAX_MADE_UP`]. The
    /// replay window shows which requests were answered. So this must be 0 if replicas with
    /// separate replay windows answer one connection in turn: to each replica, requests that
    /// another replica has answered would seem lost.
    pub make_up: u8,
    /// True if packets omit the fields that their client knows from the epoch (5.3).
    pub delta: bool,
}

impl Default for Settings {
    /// Values of current kernels: initial window of ten packets, loss window of one, and growth for
    /// each acknowledged packet.
    fn default() -> Self {
        Settings {
            initial_window: 10,
            loss_window: 1,
            ssthresh: u16::MAX,
            burst_limit: 8,
            acks: Acks { delayed: true, by_request: false },
            message: 1_448,
            make_up: 8,
            delta: true,
        }
    }
}

/// Minimum of the message length that a client can ask for, in bytes.
pub const MIN_MESSAGE: u16 = 512;
/// Base of the continuation's minimum age at a restart. A second attempt is answered if the
/// continuation is at least twice this old; the minimum age doubles with each further attempt.
const MIN_AGE: Duration = Duration::from_millis(50);
/// Gap in the packet numbers before a restart: more than can be in flight.
const APART: u64 = 1 << 20;

/// A stateless server. See the [module](self).
#[derive(Debug)]
pub struct Server {
    settings: Settings,
    ring: KeyRing,
    replay: Replay,
    stats: Stats,
    work: Vec<Item>,
    templates: [Continuation; 2],
    /// Series of nonces of the request's packets. [`Server::begin`] replaces it with the series of
    /// the answer's packets.
    series: u64,
}

/// Arrival of a request: time, address of its sender, length in bytes.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    now: Instant,
    from: SocketAddr,
    len: usize,
}

impl Server {
    /// Creates a server.
    pub fn new(settings: Settings, ring: KeyRing, replay: Replay) -> Self {
        let (stats, work, templates) = (Stats::default(), Vec::new(), [blank(&settings); 2]);
        Server { settings, ring, replay, stats, work, templates, series: 0 }
    }

    /// The secrets, for rotation.
    pub fn ring_mut(&mut self) -> &mut KeyRing {
        &mut self.ring
    }

    /// The counters so far.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// The secrets.
    pub fn ring(&self) -> &KeyRing {
        &self.ring
    }

    /// The replay window, for its counters.
    pub fn replay(&self) -> &Replay {
        &self.replay
    }

    /// The replay window, for replacement by that of another replica in the same process.
    pub fn replay_mut(&mut self) -> &mut Replay {
        &mut self.replay
    }

    /// Processes a request that arrived from `from`. `now` is the server's clock, which its
    /// replicas share to within [`SKEW`](super::replay::SKEW). Errors: [`Refusal`], which is
    /// counted; the client is not answered.
    pub fn handle(
        &mut self,
        now: Instant,
        from: SocketAddr,
        message: &[u8],
    ) -> Result<Grant, Refusal> {
        self.work.clear();
        let decided = self.decide(now, from, message);
        let event = decided.inspect_err(|refusal| self.stats.count(refusal))?;
        self.stats.answered += 1;
        self.stats.permits += self.work.len() as u64;
        let mut templates = self.templates;
        if self.work.iter().all(|item| item.template == MAIN) {
            templates[TAIL] = templates[MAIN];
        }
        let (secret, work) = (self.ring.newest().number(), std::mem::take(&mut self.work));
        Ok(Grant { event, secret, work, templates, series: self.series })
    }

    /// Records the installation of the event with the identifier `code`, which another server
    /// extracted at `made`. Returns false if the event was installed before, or was extracted too
    /// long ago.
    pub(super) fn install(
        &mut self,
        now: Instant,
        connection: u64,
        made: Instant,
        code: u64,
    ) -> bool {
        self.replay.admit(now, made) && self.replay.note(now, connection, Once::Installed(code))
    }

    fn decide(&mut self, now: Instant, from: SocketAddr, message: &[u8]) -> Result<Event, Refusal> {
        let Request { kind, len, .. } = Request::parse(message)?;
        let at = Arrival { now, from, len };
        match kind {
            Kind::Open { token, message } => self.open(at, token, message),
            Kind::Step(returned) => self.step(at, &returned),
            Kind::Restart { attempt, returned } => self.restart(at, attempt, &returned),
        }
    }
}

/// Microseconds after which the timestamps of continuations wrap around: nine years.
const ERA: u64 = 1 << 48;

/// Timestamp of a continuation, in microseconds.
pub(super) fn micros(now: Instant) -> u64 {
    now.as_nanos() / 1_000 % ERA
}

/// Time of a continuation's timestamp: of the possible times, the nearest to `now`.
pub(super) fn instant(now: Instant, micros: u64) -> Instant {
    let now = now.as_nanos() / 1_000;
    let of_this_era = now - now % ERA + micros;
    let nearest = if of_this_era > now + ERA / 2 {
        of_this_era.saturating_sub(ERA)
    } else if of_this_era + ERA / 2 < now {
        of_this_era + ERA
    } else {
        of_this_era
    };
    Instant::ZERO + Duration::from_micros(nearest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_of_continuations_are_distinguished_across_an_era() {
        let at = |micros: u64| Instant::from_nanos(micros * 1_000);
        for now in [5, ERA - 10, ERA + 10, 7 * ERA - 1, 7 * ERA] {
            for made in [now.saturating_sub(1_000_000), now, now + 100] {
                assert_eq!(instant(at(now), micros(at(made))), at(made), "{made} at {now}");
            }
        }
    }
}
