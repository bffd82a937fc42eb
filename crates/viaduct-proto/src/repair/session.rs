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
//! An initiation carries a timestamp from its sender's clock; timestamps must increase. The latest
//! timestamp in each direction is kept across restarts ([`Clocks`]): so a recorded initiation is
//! refused even after a restart, and a site whose clock was set back can still connect.

mod handover;
mod schedule;
mod tally;

use super::clocks::Clocks;
use super::handshake::{Identities, Initiation, Keys};
use super::lanes::{LaneCount, LaneOffer};
use super::seal::{Opener, Refusal, Sealer};
use super::stats::SessionStats;
use super::transport::Transport;
use super::wire::Datagram;
use crate::keys::{self, Entropy, PublicKey, SecretKey, SharedSecret};
use crate::time::{Duration, Instant};
use schedule::Schedule;

pub(super) use schedule::SILENCE;
pub(super) use tally::Tally;

/// Maximum number of sessions: two for each transport, in case both sides have started one, and two
/// older sessions.
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
    /// Low 16 bits of every session index, which assign a datagram to this lane of the peer.
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
    /// Datagram that has been counted and needs no further action.
    Nothing,
}

pub(super) struct Session {
    pub(super) identities: Identities,
    unix_nanos_at_zero: u64,
    /// Low 16 bits of the indices of the sessions.
    pub(super) slot: u16,
    pub(super) offer: LaneOffer,
    /// Number of lanes that the peer wants, according to a handshake; `None` once taken.
    wish: Option<LaneCount>,
    /// Sessions, newest first.
    live: Vec<Live>,
    /// Latest initiation over each transport, until it is answered.
    pending: [Option<(u32, Initiation)>; Transport::ALL.len()],
    pub(super) schedule: Schedule,
    pub(super) clocks: Clocks,
    /// Number of handshakes that may still be answered in the current second, and the start of this
    /// second.
    allowance: (u32, Instant),
    /// Datagrams that the peer has sent over UDP.
    pub(super) datagrams: Tally,
    pub(super) stats: SessionStats,
}

struct Live {
    index: u32,
    /// Transport of the handshake.
    transport: Transport,
    born: Instant,
    /// True if this side has started the session.
    initiator: bool,
    /// True if this side has started the session, or the peer has used it. Otherwise the session
    /// seals no messages.
    confirmed: bool,
    sealer: Sealer,
    opener: Opener,
    /// Counter after the highest counter that has arrived.
    next: u64,
    keys: Keys,
}

impl Session {
    /// Creates a session from the shared secret of the two keys; the first handshake is due
    /// immediately.
    pub(super) fn new(config: &SessionConfig, shared: &SharedSecret, now: Instant) -> Self {
        let SessionConfig { secret, peer, entropy, .. } = config.clone();
        let waits = secret.public().as_bytes() >= peer.as_bytes();
        Session {
            identities: Identities::new(secret, peer, shared, entropy),
            unix_nanos_at_zero: config.unix_nanos_at_zero,
            slot: config.slot,
            offer: config.offer,
            wish: None,
            live: Vec::new(),
            pending: Default::default(),
            schedule: Schedule::new(config.rekey_after, waits, now),
            clocks: Clocks::default(),
            allowance: (LIMIT, now),
            datagrams: Tally::default(),
            stats: SessionStats::default(),
        }
    }

    /// Takes over the timestamps of an earlier run.
    pub(super) fn remember(&mut self, clocks: Clocks) {
        self.clocks = self.clocks.max(clocks);
    }

    /// Takes the number of lanes that the peer wants; `None` if there has been no handshake since
    /// the last call.
    pub(super) fn take_wish(&mut self) -> Option<LaneCount> {
        self.wish.take()
    }

    /// Returns whether messages can be sealed.
    pub(super) fn up(&self) -> bool {
        self.current().is_some()
    }

    /// Index of the session that seals messages.
    pub(super) fn current(&self) -> Option<u32> {
        self.live.iter().find(|s| s.confirmed).map(|s| s.index)
    }

    /// Returns whether there is a session and the peer answers. Reports of the peer, one a second,
    /// count as answers. The peer counts as gone after [`SILENCE`] and two retry intervals of a
    /// handshake.
    pub(super) fn alive(&self) -> bool {
        self.up() && !self.schedule.is_silent()
    }

    /// Appends a sealed datagram to `out`. Without a session, appends nothing and returns false.
    pub(super) fn seal(&mut self, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        let newest = self.live.iter_mut().find(|s| s.confirmed);
        newest.map(|session| session.sealer.seal(out, write)).is_some()
    }

    /// Handles a datagram that has arrived over `via`. Appends the answer, if any, to `out`.
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

    /// Returns whether a handshake is for this lane. Lanes by path are distinct from lanes by
    /// address.
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
                    // Several handshakes may have been in progress; the peer has chosen this
                    // session.
                    self.live[..=at].rotate_right(1);
                    self.schedule.completed(now);
                }
                self.schedule.heard(now);
                self.update_schedule(now);
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
        // The index is checked first: this check is cheap, and a third party rarely guesses the
        // index of the pending initiation.
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
        self.schedule.heard(now);
        self.schedule.completed(now);
        self.wish = Some(wanted);
        // A response over a less preferred transport is no longer needed.
        self.pending[at..].fill_with(|| None);
        self.schedule.answered();
        self.adopt(now, via, (receiver, sender), &keys, true);
        self.update_schedule(now);
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
        // unconfirmed sessions are therefore dropped, so that they do not evict working sessions.
        if !initiator {
            self.live.retain(|s| s.confirmed || s.transport != transport);
        }
        self.live.insert(0, live);
        self.live.truncate(KEPT);
    }

    /// Schedules the next initiation according to the age of the keys in use and the silence of the
    /// peer.
    fn update_schedule(&mut self, now: Instant) {
        let newest = self.live.iter().find(|s| s.confirmed);
        self.schedule.update(now, newest.map(|s| (s.born, s.initiator)));
    }

    /// Returns whether initiations are due now; they are sent with [`Session::initiate`].
    pub(super) fn handle_timeout(&mut self, now: Instant) -> bool {
        let expiry = self.schedule.expiry();
        self.live.retain(|s| now.since(s.born) < expiry);
        self.schedule.handle_timeout(now)
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
