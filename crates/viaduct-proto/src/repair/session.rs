//! Secure session with one peer: times of handshakes, and the keys that seal and open messages.
//!
//! ```text
//!   start, silence, age ──▶ initiation ──▶            ┌▶ newest: seals, opens
//!                           ◀── response ── new keys ─┤
//!   peer's initiation   ──▶ response; keys wait until │
//!                           the peer has used them ───┴▶ older: opens only, until it expires
//! ```
//!
//! Either side may start. A responder seals with new keys only after the peer has used them: a
//! replayed or incomplete handshake never interrupts a working session.
//!
//! An initiation carries its sender's clock, which must rise. The latest value in each direction is
//! kept across restarts ([`Clocks`]): a recorded initiation is still refused after a restart, and a
//! site whose clock was set back can still connect.

mod handover;

use super::clocks::Clocks;
use super::handshake::{Identities, Initiation, Keys};
use super::lanes::{LaneCount, LaneOffer};
use super::seal::{Opener, Refusal, Sealer};
use super::stats::SessionStats;
use super::transport::Transport;
use super::wire::Datagram;
use crate::keys::{self, Entropy, PublicKey, SecretKey, SharedSecret};
use crate::time::{Duration, Instant};

/// Retransmission interval of an unanswered initiation.
const RETRY: Duration = Duration::from_secs(1);
/// Time without an authentic message after which a new session is requested.
pub(super) const SILENCE: Duration = Duration::from_secs(4);
/// Maximum number of sessions: two for each transport, in case both sides have started one, and two
/// older ones.
const KEPT: usize = 6;
/// Maximum number of handshakes that are answered in a second.
const LIMIT: u32 = 5;

#[derive(Clone)]
pub(super) struct SessionConfig {
    /// This site's key.
    pub secret: SecretKey,
    /// The peer's key.
    pub peer: PublicKey,
    /// Age at which a session is replaced; it opens messages for twice as long.
    pub rekey_after: Duration,
    /// Source of keys.
    pub entropy: Entropy,
    /// Wall clock at the origin of [`Instant`], nanoseconds since 1970.
    pub unix_nanos_at_zero: u64,
    /// Low 16 bits of every session index, which assign a datagram to this peer.
    pub slot: u16,
    /// Lane of the sessions, and the number of lanes that this site wants.
    pub offer: LaneOffer,
}

/// Reason why a session cannot be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer's public key is not valid (a point of small order)")]
pub struct WeakKey;

/// Kind of a received datagram. The source of an initiation or a response does not prove the peer's
/// endpoint: handshake messages can be replayed from elsewhere.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received<'a> {
    /// Message from the peer, with the index of its session.
    Message(u32, &'a [u8]),
    /// Initiation of the peer.
    Initiation,
    /// Response to an initiation, over the same transport.
    Response,
    /// Datagram that needs no action, and has been counted.
    Nothing,
}

pub(super) struct Session {
    pub(super) identities: Identities,
    rekey_after: Duration,
    unix_nanos_at_zero: u64,
    slot: u16,
    pub(super) offer: LaneOffer,
    /// Number of lanes that the peer wants according to a handshake; `None` once taken.
    wish: Option<LaneCount>,
    /// Extra wait of this side, so that both sides do not start at once.
    responder_delay: Duration,
    /// Sessions, newest first.
    live: Vec<Live>,
    /// Latest initiation over each transport.
    pending: [Option<(u32, Initiation)>; Transport::ALL.len()],
    /// Initiations are sent until one is answered.
    is_retrying: bool,
    next_try: Option<Instant>,
    /// Time without an authentic message after which a new session is requested.
    pub(super) silence_limit: Duration,
    last_heard: Instant,
    /// An authentic message or response has arrived from the peer.
    is_known: bool,
    last_handshake: Option<Instant>,
    /// The peer has been silent for so long that it counts as gone.
    silent: bool,
    pub(super) clocks: Clocks,
    allowance: (u32, Instant),
    /// Datagrams that the peer has sent over UDP.
    pub(super) datagrams: Tally,
    pub(super) stats: SessionStats,
}

/// Units sent, and the number of them that were lost. A late arrival reduces the latter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) sent: u64,
    pub(super) lost: u64,
}

impl Tally {
    /// Share that was lost since `before`; 0 if nothing was sent.
    pub(super) fn loss_since(self, before: Tally) -> f64 {
        let lost = self.lost.saturating_sub(before.lost);
        lost as f64 / self.sent.saturating_sub(before.sent).max(1) as f64
    }

    /// Counts the arrival of a unit with this number; `next` is the number after the highest one
    /// that has arrived.
    fn count(&mut self, next: &mut u64, number: u64) {
        let skipped = number.checked_sub(*next);
        match skipped {
            Some(skipped) => {
                self.sent = self.sent.saturating_add(skipped).saturating_add(1);
                self.lost = self.lost.saturating_add(skipped);
            }
            None => self.lost = self.lost.saturating_sub(1),
        }
        *next = (*next).max(number.saturating_add(1));
    }
}

struct Live {
    index: u32,
    /// Transport of the handshake.
    transport: Transport,
    born: Instant,
    initiator: bool,
    confirmed: bool,
    sealer: Sealer,
    opener: Opener,
    /// Counter after the highest one that has arrived.
    next: u64,
    keys: Keys,
}

impl Session {
    /// Creates a session from the shared secret of the two keys; the first handshake is due at
    /// once.
    pub(super) fn new(config: &SessionConfig, shared: &SharedSecret, now: Instant) -> Self {
        let SessionConfig { secret, peer, entropy, .. } = config.clone();
        Session {
            identities: Identities::new(secret, peer, shared, entropy),
            rekey_after: config.rekey_after,
            unix_nanos_at_zero: config.unix_nanos_at_zero,
            slot: config.slot,
            offer: config.offer,
            wish: None,
            responder_delay: if config.secret.public().as_bytes() < config.peer.as_bytes() {
                Duration::ZERO
            } else {
                RETRY / 2
            },
            live: Vec::new(),
            pending: Default::default(),
            is_retrying: false,
            next_try: Some(now),
            silence_limit: SILENCE,
            last_heard: now,
            is_known: false,
            last_handshake: None,
            silent: false,
            clocks: Clocks::default(),
            allowance: (LIMIT, now),
            datagrams: Tally::default(),
            stats: SessionStats::default(),
        }
    }

    /// Takes over the clocks of an earlier run.
    pub(super) fn remember(&mut self, clocks: Clocks) {
        self.clocks = self.clocks.max(clocks);
    }

    /// Takes the number of lanes that the peer wants, if a handshake has told it since the last
    /// call.
    pub(super) fn take_wish(&mut self) -> Option<LaneCount> {
        self.wish.take()
    }

    /// Time of the last authentic message; `None` before the first.
    pub(super) fn heard_at(&self) -> Option<Instant> {
        self.is_known.then_some(self.last_heard)
    }

    /// Time of the last completed handshake.
    pub(super) fn handshake_at(&self) -> Option<Instant> {
        self.last_handshake
    }

    /// Returns whether messages can be sealed.
    pub(super) fn up(&self) -> bool {
        self.current().is_some()
    }

    /// Index of the session that seals messages.
    pub(super) fn current(&self) -> Option<u32> {
        self.live.iter().find(|s| s.confirmed).map(|s| s.index)
    }

    /// Returns whether the peer answers. Its reports, one a second, count as answers; after
    /// [`SILENCE`] a handshake is started.
    pub(super) fn alive(&self) -> bool {
        self.up() && !self.silent
    }

    /// Appends a sealed datagram to `out`. Without a session, appends nothing and returns false.
    pub(super) fn seal(&mut self, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        let newest = self.live.iter_mut().find(|s| s.confirmed);
        newest.map(|session| session.sealer.seal(out, write)).is_some()
    }

    /// Handles a datagram that has arrived by `via`. An answer is appended to `out`.
    pub(super) fn handle<'a>(
        &mut self,
        now: Instant,
        via: Transport,
        datagram: &'a mut [u8],
        out: &mut Vec<u8>,
    ) -> Received<'a> {
        match Datagram::parse(datagram) {
            Some(Datagram::Transport { lane, receiver, counter }) if lane == self.offer.lane => {
                self.open(now, receiver, counter, datagram)
            }
            Some(Datagram::Initiation { offer, sender, unix_nanos, .. })
                if self.is_for_lane(offer) =>
            {
                self.respond(now, via, (offer.wanted, sender, unix_nanos), datagram, out)
            }
            Some(Datagram::Response { offer, sender, receiver }) if self.is_for_lane(offer) => {
                self.finish(now, via, (offer.wanted, sender, receiver), datagram)
            }
            Some(_) | None => {
                self.stats.forged += 1;
                Received::Nothing
            }
        }
    }

    /// Returns whether a handshake is for this lane. Lanes by path are not those by address.
    fn is_for_lane(&self, offer: LaneOffer) -> bool {
        offer.lane == self.offer.lane && offer.by_path == self.offer.by_path
    }

    fn open<'a>(
        &mut self,
        now: Instant,
        receiver: u32,
        counter: u64,
        datagram: &'a mut [u8],
    ) -> Received<'a> {
        let Some(at) = self.live.iter().position(|s| s.index == receiver) else {
            self.stats.unknown += 1;
            return Received::Nothing;
        };
        match self.live[at].opener.open(counter, datagram) {
            Ok(message) => {
                if self.live[at].transport == Transport::Udp {
                    self.datagrams.count(&mut self.live[at].next, counter);
                }
                if !std::mem::replace(&mut self.live[at].confirmed, true) {
                    // The peer has several handshakes in progress, and has chosen this session.
                    self.live[..=at].rotate_right(1);
                    self.last_handshake = Some(now);
                }
                (self.last_heard, self.is_known) = (now, true);
                self.schedule(now);
                Received::Message(receiver, message)
            }
            Err(Refusal::Forged) => {
                self.stats.forged += 1;
                Received::Nothing
            }
            Err(Refusal::Replayed) => {
                self.stats.replayed += 1;
                Received::Nothing
            }
        }
    }

    fn respond<'a>(
        &mut self,
        now: Instant,
        via: Transport,
        (wanted, sender, unix_nanos): (LaneCount, u32, u64),
        datagram: &mut [u8],
        out: &mut Vec<u8>,
    ) -> Received<'a> {
        if !self.identities.authentic(datagram) {
            self.stats.forged += 1;
            return Received::Nothing;
        }
        if unix_nanos <= self.clocks.heard {
            self.stats.replayed += 1;
            return Received::Nothing;
        }
        if !self.allowed(now) {
            self.stats.limited += 1;
            return Received::Nothing;
        }
        let index = self.new_index();
        let (start, head) =
            (out.len(), Datagram::Response { offer: self.offer, sender: index, receiver: sender });
        let Some(keys) = self.identities.respond(datagram, head, out) else {
            out.truncate(start);
            self.stats.forged += 1;
            return Received::Nothing;
        };
        (self.clocks.heard, self.wish) = (unix_nanos, Some(wanted));
        self.adopt(now, via, (index, sender), &keys, false);
        Received::Initiation
    }

    fn finish<'a>(
        &mut self,
        now: Instant,
        via: Transport,
        (wanted, sender, receiver): (LaneCount, u32, u32),
        datagram: &mut [u8],
    ) -> Received<'a> {
        let at = via as usize;
        // The index is checked first: that is cheap, and a third party rarely guesses the pending
        // one.
        if self.pending[at].as_ref().is_none_or(|(index, _)| *index != receiver) {
            self.stats.unknown += 1;
            return Received::Nothing;
        }
        if !self.identities.authentic(datagram) {
            self.stats.forged += 1;
            return Received::Nothing;
        }
        let Some((_, initiation)) = self.pending[at].take() else { return Received::Nothing };
        let Some(keys) = initiation.finish(datagram) else {
            self.stats.forged += 1;
            return Received::Nothing;
        };
        (self.last_heard, self.is_known) = (now, true);
        (self.last_handshake, self.wish) = (Some(now), Some(wanted));
        // A response by a less preferred transport is not needed any more.
        self.pending[at..].fill_with(|| None);
        self.is_retrying = false;
        self.adopt(now, via, (receiver, sender), &keys, true);
        self.schedule(now);
        Received::Response
    }

    fn adopt(
        &mut self,
        now: Instant,
        transport: Transport,
        (index, peer_index): (u32, u32),
        keys: &Keys,
        initiator: bool,
    ) {
        self.stats.handshakes += 1;
        let live = Live {
            index,
            transport,
            born: now,
            initiator,
            confirmed: initiator,
            sealer: Sealer::new(&keys.send, self.offer.lane, peer_index),
            opener: Opener::new(&keys.receive),
            next: 0,
            keys: *keys,
        };
        // The peer uses only the answer to its latest initiation over a transport. Earlier
        // unconfirmed sessions are therefore dropped, so that they do not evict working ones.
        if !initiator {
            self.live.retain(|s| s.confirmed || s.transport != transport);
        }
        self.live.insert(0, live);
        self.live.truncate(KEPT);
    }

    /// Schedules the next initiation: by age (the responder a little later) or by silence.
    fn schedule(&mut self, now: Instant) {
        if self.is_retrying {
            return; // the next try is scheduled already
        }
        let newest = self.live.iter().find(|s| s.confirmed);
        let wait = |s: &Live| if s.initiator { self.rekey_after } else { self.rekey_after * 9 / 8 };
        let by_age = newest.map(|s| s.born + wait(s) + self.responder_delay);
        let by_silence = self.last_heard + self.silence_limit + self.responder_delay;
        self.next_try = Some(by_age.map_or(now, |age| age.min(by_silence)));
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.next_try
    }

    /// Returns whether initiations are due now; they are sent with [`Session::initiate`].
    pub(super) fn handle_timeout(&mut self, now: Instant) -> bool {
        self.silent = now.since(self.last_heard) > SILENCE + 2 * RETRY;
        let expiry = self.rekey_after * 2 + SILENCE;
        self.live.retain(|s| now.since(s.born) < expiry);
        if self.next_try.is_none_or(|due| now < due) {
            return false;
        }
        (self.is_retrying, self.next_try) = (true, Some(now + RETRY));
        true
    }

    /// Puts off the next initiation.
    pub(super) fn postpone(&mut self, until: Instant) {
        self.next_try = Some(until);
    }

    /// Makes a handshake due now, unless one is in progress.
    pub(super) fn start(&mut self, now: Instant) {
        if !self.is_retrying {
            self.next_try = Some(now);
        }
    }

    /// Returns whether the peer has been silent for so long that a new session is requested.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        now.since(self.last_heard) >= self.silence_limit
    }

    /// Appends an initiation, to be sent over `via`, to `out`.
    pub(super) fn initiate(&mut self, now: Instant, via: Transport, out: &mut Vec<u8>) {
        let (index, start) = (self.new_index(), out.len());
        let clock = self.unix_nanos_at_zero.saturating_add(now.as_nanos());
        let unix_nanos = clock.max(self.clocks.sent.saturating_add(1));
        self.clocks.sent = unix_nanos;
        let initiation = self.identities.initiate(self.offer, index, unix_nanos, out);
        if initiation.is_none() {
            out.truncate(start);
        }
        self.pending[via as usize] = initiation.map(|initiation| (index, initiation));
    }

    fn new_index(&self) -> u32 {
        let random = u32::from_be_bytes(keys::random(&self.identities.entropy));
        random & 0xffff_0000 | u32::from(self.slot)
    }

    fn allowed(&mut self, now: Instant) -> bool {
        let (left, since) = &mut self.allowance;
        if now.since(*since) >= Duration::from_secs(1) {
            (*left, *since) = (LIMIT, now);
        }
        let allowed = *left > 0;
        *left -= u32::from(allowed);
        allowed
    }
}
