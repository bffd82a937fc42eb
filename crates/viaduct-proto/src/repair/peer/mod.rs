//! State of a peer, or of one of its lanes: connects its session, sender and receiver.
//!
//! ```text
//!   packets that leave ──▶ sender ─── repairs, names ──▶ session ──▶ datagrams
//!                            ▲                               ▲
//!                            │ reports, requests             │ reports, terms
//!                            │                      reporting, agreement
//!   datagrams ──▶ session ───┴─ repairs, names ─┐
//!   packets that arrive ────────────────────────┴──▶ receiver ──▶ packets to inject
//! ```

mod agreement;
mod by_path;
mod change;
mod config;
mod facts;
mod handover;
mod messages;
mod paths;
mod reporting;
mod throttle;

use std::sync::Arc;

use agreement::Agreement;
use by_path::OwnPath;
use config::plan;
use paths::Paths;
use reporting::Reporting;
use throttle::Throttle;

use super::bundle::Channel;
use super::claims::{CLAIMS, Claim};
use super::clocks::Clocks;
use super::coding::Coding;
use super::handshake_pace::HandshakePace;
use super::identity::IdentityKey;
use super::lanes::{LaneCount, LaneOffer};
use super::outbox::Outbox;
use super::receiver::{Receiver, TICK};
use super::section;
use super::sender::Sender;
use super::session::{Session, SessionConfig, WeakKey};
use super::shadow::{Outcome, TRIED};
use super::stats::{LossReport, PeerStats};
use super::transport::Endpoint;
use crate::keys::{Entropy, PublicKey, SecretKey};
use crate::rack::DEAD_AFTER;
use crate::time::Instant;

pub use config::{
    MIN_MEMORY, PATHS, PathsConfig, PeerConfig, PeerError, RepairPath, least_memory, overhead,
};
pub use facts::{PathFacts, PeerFacts};

/// Divisor of the memory of all peers: repairs that wait for packets of one peer may take 1 /
/// `DECODER_PART` of this memory.
const DECODER_PART: usize = 8;

pub(super) struct Peer {
    pub(super) config: PeerConfig,
    identity: Arc<IdentityKey>,
    pub(super) session: Session,
    sender: Option<Sender>,
    pub(super) receiver: Receiver,
    pub(super) paths: Paths,
    /// State of the lane's path; `None` with a single path.
    own_path: Option<OwnPath>,
    reports: Reports,
    reporting: Reporting,
    agreement: Agreement,
    throttle: Throttle,
    /// Claims of the peer that the plane has not taken yet.
    claimed: Vec<Claim>,
    /// Time of the next housekeeping; `None` while there is none to do.
    next_tick: Option<Instant>,
    /// Number of times that the tap missed packets, as last reported to the receiver.
    pub(super) misses: u64,
    /// Repairs sent and received, as last counted by the plane.
    pub(super) repairs: u64,
    /// Datagrams to the peer's endpoint, apart from handshakes.
    pub(super) transmits: Outbox,
    /// Initiations, and answers to initiations, each with its destination. An answer goes to the
    /// source of the initiation.
    pub(super) handshakes: Vec<(Endpoint, Vec<u8>)>,
}

/// Latest reports of the peer on the packets from this side.
#[derive(Default)]
struct Reports {
    loss: LossReport,
    /// Outcomes that the trial codes would have had.
    trials: Option<[Outcome; TRIED.len()]>,
    /// Weight of the peer in its rack.
    weight: Option<u8>,
}

/// Facts that all peers of a gateway share.
#[derive(Clone)]
pub struct Local {
    /// The site's key.
    pub secret: SecretKey,
    /// Source of keys.
    pub entropy: Entropy,
    /// Wall clock at the origin of [`Instant`], nanoseconds since 1970.
    pub unix_nanos_at_zero: u64,
    /// Number of lanes that the site wants.
    pub lanes: LaneCount,
}

/// Place of a peer's lane in its gateway.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Low bits of the indices of the lane's sessions.
    pub(super) slot: u16,
    /// Index of the lane.
    pub(super) lane: u8,
    /// Memory for all lanes of all peers, in bytes.
    pub(super) memory: usize,
}

impl Peer {
    /// Creates the state of a peer's lane.
    pub(super) fn new(
        local: &Local,
        config: PeerConfig,
        place: Place,
        now: Instant,
    ) -> Result<Self, PeerError> {
        let shared = local.secret.shared(&config.key).ok_or(PeerError::Key(WeakKey))?;
        let mut session = Session::new(&session_config(local, &config, place), &shared, now);
        let paths = Paths::new(&config);
        session.schedule.silence_limit = paths.silence_limit();
        let identity = Arc::new(IdentityKey::new(&shared.derive(b"viaduct identity")));
        // Packet numbers increase from run to run: all numbers that a peer remembers are lower.
        let first = (local.unix_nanos_at_zero.saturating_add(now.as_nanos()) / 1_000).max(1);
        let plan = plan(now, &config, first)?;
        Ok(Peer {
            sender: plan.map(Sender::new),
            receiver: Receiver::new(identity.clone(), place.memory / DECODER_PART),
            identity,
            session,
            paths,
            own_path: config.paths.map(|_| OwnPath::new(now, place.lane)),
            reports: Reports::default(),
            reporting: Reporting::new(now, &config.rack),
            agreement: Agreement::new(&config),
            throttle: Throttle::default(),
            claimed: Vec::new(),
            next_tick: None,
            misses: 0,
            repairs: 0,
            transmits: Outbox::new(),
            handshakes: Vec::new(),
            config,
        })
    }

    pub(super) fn stats(&self) -> PeerStats {
        PeerStats {
            up: self.session.alive(),
            sender: self.sender.as_ref().map(|sender| sender.stats).unwrap_or_default(),
            receiver: self.receiver.stats(),
            session: self.session.stats,
            reported: self.reports.loss,
        }
    }

    /// Takes over the peer's last loss report to a former lane with the same number.
    pub(super) fn resume_reported(&mut self, loss: LossReport) {
        self.reports.loss = loss;
    }

    pub(super) fn facts(&self, now: Instant) -> PeerFacts {
        PeerFacts {
            endpoint: self.paths.endpoint.map(|at| at.address),
            transport: self.paths.selector.current,
            cause: self.paths.selector.cause,
            unanswered: self.paths.selector.unanswered(),
            unresolved: None,
            heard_at: self.session.schedule.heard_at(),
            handshake_at: self.session.schedule.handshake_at(),
            disagreement: self.agreement.disagreement.clone(),
            terms: self.agreement.peer.clone(),
            other_version: None,
            lowered_mss: self.receiver.injection.syns.lowered(),
            control: self.sender.as_ref().and_then(|sender| sender.coder.control(now)),
            trials: self.reports.trials.filter(|_| self.config.coding == Some(Coding::Observe)),
            slices: None,
            lanes: 1,
            lanes_down: usize::from(!self.session.alive()),
            paths: self.path_facts(),
        }
    }

    pub(super) fn key_and_lane(&self) -> (PublicKey, u8) {
        (self.config.key, self.session.offer.lane)
    }

    /// Returns whether the peer was heard from recently enough to count as an alive member of its
    /// rack.
    pub(super) fn was_heard_lately(&self, now: Instant) -> bool {
        let heard_at = self.session.schedule.heard_at().filter(|_| self.session.up());
        heard_at.is_some_and(|at| now.since(at) < DEAD_AFTER)
    }

    /// Bytes of memory held.
    pub(super) fn held(&self) -> usize {
        self.receiver.held() + self.sender.as_ref().map_or(0, Sender::held)
    }

    /// Bytes of memory that [`Peer::shed`] can free.
    pub(super) fn sheddable(&self) -> usize {
        self.receiver.sheddable() + self.sender.as_ref().map_or(0, Sender::sheddable)
    }

    /// Frees the memory of the oldest packets, in the direction that holds more memory.
    pub(super) fn shed(&mut self) {
        match &mut self.sender {
            Some(sender) if sender.sheddable() > self.receiver.sheddable() => sender.shed(),
            _ => self.receiver.shed(),
        }
    }

    /// Returns whether there is no traffic.
    pub(super) fn is_idle(&self) -> bool {
        self.next_tick.is_none()
    }

    /// Returns the sender, the channel for its repairs, and the key that names its packets.
    fn sending(&mut self) -> Option<(&mut Sender, Channel<'_>, &IdentityKey)> {
        let headers = self.paths.headers();
        let channel = Channel { session: &mut self.session, outbox: &mut self.transmits, headers };
        self.sender.as_mut().map(|sender| (sender, channel, &*self.identity))
    }

    /// Starts housekeeping, because there is traffic.
    fn wake(&mut self, now: Instant) {
        self.next_tick.get_or_insert(now + TICK);
    }

    /// Takes the claims that the peer has sent.
    pub(super) fn take_claims(&mut self) -> Vec<Claim> {
        std::mem::take(&mut self.claimed)
    }

    /// Handles a packet that leaves; `symbol` is a buffer that all peers share.
    pub(super) fn handle_outgoing(
        &mut self,
        now: Instant,
        left: Instant,
        packet: &mut [u8],
        symbol: &mut Vec<u8>,
    ) {
        self.wake(now);
        self.receiver.injection.recent.leaves(now, packet);
        if let Some((sender, mut channel, key)) = self.sending() {
            sender.handle((now, left), key, (packet, symbol), &mut channel);
        }
    }

    pub(super) fn handle_incoming(&mut self, now: Instant, came: Instant, packet: &mut [u8]) {
        self.wake(now);
        if let Some(sender) = &mut self.sender {
            sender.overhear(now, packet);
        }
        self.receiver.handle_packet(now, came, packet);
    }

    /// Handles a packet from the peer's site that was first assigned to another member of the
    /// peer's rack.
    pub(super) fn adopt(&mut self, now: Instant, came: Instant, packet: &mut [u8]) {
        self.wake(now);
        self.receiver.adopt(now, came, packet);
    }

    pub(super) fn miss_outgoing(&mut self, missed: u64) {
        if let Some(sender) = &mut self.sender {
            sender.miss(missed);
        }
    }

    pub(super) fn handle_own_drops(&mut self, now: Instant) {
        self.throttle.handle_own_drops(now);
        if let Some(sender) = &mut self.sender {
            sender.handle_own_drops(now);
        }
    }

    /// Weight of the peer in its rack, if it has reported one.
    pub(super) fn weight(&self) -> Option<u8> {
        self.reports.weight
    }

    pub(super) fn clear_transmits(&mut self) {
        self.transmits.clear();
        self.handshakes.clear();
        self.clear_probes();
    }

    pub(super) fn clocks(&self) -> (PublicKey, Clocks) {
        (self.config.key, self.session.clocks)
    }

    #[cfg(fuzzing)]
    pub(super) fn name(&self, normalised: &[u8]) -> super::identity::Identity {
        self.identity.name(normalised)
    }

    /// Sends the initiations that are due, or reserves a later time for them.
    fn initiate(&mut self, now: Instant, pace: &mut HandshakePace) {
        self.session.schedule.reserve(now, self.paths.selector.unanswered(), pace);
        let transports = match self.session.handle_timeout(now) {
            true => self.paths.selector.handshake(self.session.schedule.is_overdue(now)),
            false => self.paths.selector.probe(now),
        };
        for &transport in transports {
            let address = match &self.config.paths {
                Some(paths) => Some(self.path_address(paths)),
                None => self.paths.address(transport, &self.config),
            };
            if let Some(address) = address {
                let mut initiation = Vec::new();
                self.session.initiate(now, transport, &mut initiation);
                if !initiation.is_empty() {
                    self.handshakes.push((Endpoint { transport, address }, initiation));
                }
            }
        }
    }

    /// Time of the next report; `None` without a session.
    fn report_due(&self) -> Option<Instant> {
        let due = || self.reporting.due(&self.receiver.measurement.path.report());
        self.session.up().then(due)
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let timers = [
            self.paths.poll_timeout(self.session.schedule.next_try()),
            self.sender.as_ref().and_then(Sender::poll_timeout),
            self.receiver.poll_timeout(),
            self.next_tick,
            self.report_due(),
            self.own_path.as_ref().map(|path| path.liveness.poll_timeout()),
        ];
        timers.into_iter().flatten().min()
    }

    pub(super) fn handle_timeout(
        &mut self,
        now: Instant,
        inject: &mut Outbox,
        pace: &mut HandshakePace,
    ) {
        self.receiver.release(now, &self.config.sites, inject);
        if self.paths.has_address() {
            self.initiate(now, pace);
        }
        if let Some((sender, mut channel, _)) = self.sending() {
            sender.handle_timeout(now, &mut channel);
        }
        if self.next_tick.is_some_and(|due| due <= now) {
            self.tick(now);
        }
        if let Some(need) = self.receiver.handle_timeout(now) {
            let session = &mut self.session;
            self.transmits
                .push_with(|out| session.seal(out, |message| section::emit_need(need, message)));
        }
        if self.report_due().is_some_and(|due| due <= now) {
            self.report(now);
        }
        self.probe(now);
    }

    /// Sends a section with claims of this gateway.
    pub(super) fn claim(&mut self, body: &[u8]) {
        let session = &mut self.session;
        if session.up() {
            self.transmits.push_with(|out| {
                session.seal(out, |m| section::emit(CLAIMS, m, |out| out.extend(body)))
            });
        }
    }

    /// Does the housekeeping, and schedules the next one unless nothing is left to do.
    fn tick(&mut self, now: Instant) {
        self.receiver.tick(now);
        self.watch_throttle(now);
        let mut is_idle = self.receiver.is_idle();
        if let Some(sender) = &mut self.sender {
            sender.tick(now);
            is_idle &= sender.is_idle();
        }
        self.next_tick = (!is_idle).then_some(now + TICK);
    }
}

fn session_config(local: &Local, config: &PeerConfig, place: Place) -> SessionConfig {
    let by_path = config.paths.is_some();
    let wanted = if by_path { LaneCount::OF_PATHS } else { local.lanes };
    SessionConfig {
        secret: local.secret.clone(),
        peer: config.key,
        rekey_after: config.rekey_after,
        entropy: local.entropy.clone(),
        unix_nanos_at_zero: local.unix_nanos_at_zero,
        slot: place.slot,
        offer: LaneOffer { lane: place.lane, wanted, by_path },
    }
}
