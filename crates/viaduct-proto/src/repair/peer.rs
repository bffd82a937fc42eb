//! State of one peer site; connects its session, sender and receiver.

use std::net::SocketAddr;
use std::sync::Arc;

use super::auto::Auto;
use super::bundle::Channel;
use super::coding::Coding;
use super::control;
use super::control::queue::micros;
use super::identity::IdentityKey;
use super::outbox::Outbox;
use super::receiver::{Receiver, TICK, memory_for_store};
use super::report::{REPORT, Report, TRIALS, emit_trials, parse_trials};
use super::requests::Times;
use super::seal::SEAL_OVERHEAD;
use super::section::{self, Need, PREFIX, REPAIR_HEAD, SECTION_HEAD, Section};
use super::sender::{Coder, Observer, Plan, Sender};
use super::session::{Clocks, Received, Session, SessionConfig, WeakKey};
use super::shadow::{Outcome, TRIED};
use super::sites::Sites;
use super::stats::{LossReport, PeerStats};
use super::terms::{Listed, TERMS, Terms};
use super::wire::Hint;
use crate::keys::{Entropy, PublicKey, SecretKey};
use crate::time::{Duration, Instant};

/// Interval of loss reports to the peer; they also keep the session alive.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// Least time between two reports while packets are missing. Reports less than
/// [`REPORT_SPARSE`] apart also need [`REPORT_PACKETS`] new packets between them, or a new
/// doubt about the cause of losses.
const REPORT_SOON: Duration = Duration::from_millis(10);
const REPORT_PACKETS: u64 = 64;
const REPORT_SPARSE: Duration = Duration::from_millis(250);
/// Round-trip time assumed until it is measured.
const USUAL_RTT: Duration = Duration::from_millis(100);
/// Smoothing of the round-trip time: the newest sample has a weight of 1 / `RTT_WEIGHT`.
const RTT_WEIGHT: u32 = 8;
/// Headers of IPv4 and UDP; IPv6 has 20 bytes more.
const OUTER_V4: usize = 28;

/// Configuration of a peer.
#[derive(Clone, Debug)]
pub struct PeerConfig {
    /// Name shown to people.
    pub name: String,
    /// Public key of the peer.
    pub key: PublicKey,
    /// Address of the peer's gateway; if unknown, learnt from its messages.
    pub endpoint: Option<SocketAddr>,
    /// Addresses of the two sites.
    pub sites: Sites,
    /// Coding of outgoing packets; `None` leaves that direction unprotected.
    pub coding: Option<Coding>,
    /// Time without a packet after which unfilled bins fire.
    pub flush_after: Duration,
    /// Age at which session keys are replaced.
    pub rekey_after: Duration,
    /// Longest packet that is encoded, in bytes.
    pub longest: usize,
    /// MTU of the path between the gateways.
    pub mtu: usize,
    /// Bytes of memory for received packets and waiting repairs.
    pub memory: usize,
}

impl PeerConfig {
    /// Checks that the code can work, without building what it needs.
    pub(super) fn check(&self) -> Result<(), PeerError> {
        if let Some(Coding::Fixed(code)) = &self.coding {
            code.check()?;
        }
        Ok(())
    }
}

/// Bytes by which a repair exceeds the longest packet that it covers, including the outer IP
/// and UDP headers.
pub fn overhead(ipv6: bool) -> usize {
    OUTER_V4 + if ipv6 { 20 } else { 0 } + SEAL_OVERHEAD + SECTION_HEAD + REPAIR_HEAD + PREFIX
}

/// Least [`PeerConfig::memory`], in bytes, with which a code can recover anything: the store
/// must hold as many packets as a repair reaches back over.
pub fn least_memory(coding: &Coding, longest: usize) -> usize {
    memory_for_store((coding.span() + 64) * longest.max(576)).max(MIN_MEMORY)
}

/// Least memory of a peer without an encoder.
pub const MIN_MEMORY: usize = 256 << 10;

/// Reason for which a peer cannot be created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// Unusable public key.
    #[error(transparent)]
    Key(WeakKey),
    /// Unusable code parameters.
    #[error(transparent)]
    Code(#[from] crate::fec::Error),
}

/// Peer state other than counters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PeerFacts {
    /// Current endpoint.
    pub endpoint: Option<SocketAddr>,
    /// Reason for which its host name has no address; filled in by the shell, which resolves
    /// names.
    pub unresolved: Option<String>,
    /// Time since the last authentic message; `None` before the first.
    pub silence: Option<Duration>,
    /// Age of the last handshake.
    pub handshake: Option<Duration>,
    /// Terms last received.
    pub terms: Option<Arc<Terms>>,
    /// Mismatch between the peer's terms and this config.
    pub disagreement: Option<String>,
    /// Other protocol version of datagrams that came from its endpoint within the last minute.
    /// The source of the datagrams may be forged.
    pub other_version: Option<u8>,
    /// MSS to which the path lowers SYNs, for IPv4 and IPv6.
    pub lowered_mss: [Option<u16>; 2],
    /// State of the controller, if the code follows the losses.
    pub control: Option<control::State>,
    /// Outcomes that each code would have had, if the peer is only observed.
    pub trials: Option<[Outcome; TRIED.len()]>,
}

/// Interval of terms, in reports, after the first reports of a session.
const TERMS_EVERY: u32 = 10;
/// Reports at the start of a session that carry terms: some of them may be lost.
const TERMS_FIRST: u32 = 3;

pub(super) struct Peer {
    config: PeerConfig,
    slot: u16,
    identity: IdentityKey,
    session: Session,
    sender: Option<Sender>,
    receiver: Receiver,
    endpoint: Option<SocketAddr>,
    reported: LossReport,
    rtt: Option<Duration>,
    /// Stamp of the peer's newest report, and its time of arrival.
    stamp: Option<(u32, Instant)>,
    /// Time and content of the last report sent.
    told: (Instant, control::Report),
    /// Reports sent in the present session or since the last change of the config.
    reports: u32,
    /// Terms sent to the peer: facts of this config that it compares with its own.
    own_terms: Terms,
    terms: Option<Arc<Terms>>,
    disagreement: Option<String>,
    /// Outcomes that codes would have had on the way to the peer, as it reports them.
    trials: Option<[Outcome; TRIED.len()]>,
    next_report: Instant,
    next_tick: Instant,
    /// Datagrams to the peer's endpoint.
    pub(super) transmits: Outbox,
    /// Answers to initiations, each to the source of its initiation.
    pub(super) answers: Vec<(SocketAddr, Vec<u8>)>,
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
}

impl Peer {
    pub(super) fn new(
        local: &Local,
        config: PeerConfig,
        slot: u16,
        now: Instant,
    ) -> Result<Self, PeerError> {
        let shared = local.secret.shared(&config.key).ok_or(PeerError::Key(WeakKey))?;
        let session = Session::new(&session_config(local, &config, slot), &shared, now);
        let identity = IdentityKey::new(&shared.derive(b"viaduct identity"));
        // Numbers rise from run to run, so that numbers that a peer remembers are all older.
        let first = (local.unix_nanos_at_zero.saturating_add(now.as_nanos()) / 1_000).max(1);
        let plan = plan(now, &config, first)?;
        Ok(Peer {
            sender: plan.map(Sender::new),
            receiver: Receiver::new(identity.clone(), config.memory),
            identity,
            session,
            endpoint: config.endpoint,
            reported: LossReport::default(),
            rtt: None,
            stamp: None,
            told: (now, control::Report::default()),
            reports: 0,
            own_terms: own_terms(&config),
            terms: None,
            disagreement: None,
            trials: None,
            next_report: now + REPORT_EVERY,
            next_tick: now + TICK,
            transmits: Outbox::new(),
            answers: Vec::new(),
            slot,
            config,
        })
    }

    pub(super) fn config(&self) -> &PeerConfig {
        &self.config
    }

    /// Low bits of the indices of its sessions.
    pub(super) fn slot(&self) -> u16 {
        self.slot
    }

    pub(super) fn endpoint(&self) -> Option<SocketAddr> {
        self.endpoint
    }

    pub(super) fn stats(&self) -> PeerStats {
        PeerStats {
            up: self.session.alive(),
            sender: self.sender.as_ref().map(Sender::stats).unwrap_or_default(),
            receiver: self.receiver.stats(),
            session: self.session.stats(),
            reported: self.reported,
        }
    }

    pub(super) fn facts(&self, now: Instant) -> PeerFacts {
        PeerFacts {
            endpoint: self.endpoint,
            unresolved: None,
            silence: self.session.silence(now),
            handshake: self.session.handshake(now),
            disagreement: self.disagreement.clone(),
            terms: self.terms.clone(),
            other_version: None,
            lowered_mss: self.receiver.lowered_mss(),
            control: self.sender.as_ref().and_then(|sender| sender.control(now)),
            trials: self.trials.filter(|_| self.config.coding == Some(Coding::Observe)),
        }
    }

    fn compare_terms(&mut self) {
        let own = &self.own_terms;
        self.disagreement = self.terms.as_deref().and_then(|terms| own.disagreement(terms));
    }

    pub(super) fn memory(&self) -> usize {
        self.receiver.memory() + self.sender.as_ref().map_or(0, Sender::memory)
    }

    pub(super) fn cached(&self) -> impl Iterator<Item = &[u8]> {
        self.receiver.cached()
    }

    /// Returns whether `config` can be taken over without a new session.
    pub(super) fn stays(&self, config: &PeerConfig) -> bool {
        config.key == self.config.key && config.rekey_after == self.config.rekey_after
    }

    /// Takes over settings that need no new session.
    pub(super) fn change(&mut self, now: Instant, config: PeerConfig) -> Result<(), PeerError> {
        let old = &self.config;
        let recode = config.coding != old.coding
            || config.flush_after != old.flush_after
            || config.longest != old.longest
            || config.mtu != old.mtu;
        if recode {
            self.change_code(now, &config)?;
        }
        if config.endpoint != self.config.endpoint {
            self.endpoint = config.endpoint;
        }
        if config.memory != self.config.memory {
            self.receiver.resize(now, config.memory);
        }
        self.own_terms = own_terms(&config);
        self.config = config;
        self.compare_terms();
        // The next report carries the new terms.
        self.reports = 0;
        Ok(())
    }

    fn change_code(&mut self, now: Instant, config: &PeerConfig) -> Result<(), PeerError> {
        let next = self.sender.as_ref().map(Sender::next_seq);
        let plan = plan(now, config, next.unwrap_or(self.reported.highest + 1))?;
        match (plan, self.sending()) {
            (Some(plan), Some((sender, mut channel, _))) => sender.change(now, plan, &mut channel),
            (plan, _) => self.sender = plan.map(Sender::new),
        }
        Ok(())
    }

    /// Returns the sender, the channel for its repairs, and the key that names its packets.
    fn sending(&mut self) -> Option<(&mut Sender, Channel<'_>, &IdentityKey)> {
        let ipv6 = self.endpoint.is_some_and(|e| e.is_ipv6());
        let headers = OUTER_V4 + if ipv6 { 20 } else { 0 };
        let channel = Channel { session: &mut self.session, outbox: &mut self.transmits, headers };
        self.sender.as_mut().map(|sender| (sender, channel, &self.identity))
    }

    pub(super) fn handle_outgoing(&mut self, now: Instant, left: Instant, packet: &mut [u8]) {
        self.receiver.handle_outgoing(now, packet);
        if let Some((sender, mut channel, key)) = self.sending() {
            sender.handle((now, left), key, packet, &mut channel);
        }
    }

    pub(super) fn handle_incoming(&mut self, now: Instant, came: Instant, packet: &mut [u8]) {
        if let Some(sender) = &mut self.sender {
            sender.overhear(now, packet);
        }
        self.receiver.handle_packet(now, came, packet);
    }

    pub(super) fn miss_outgoing(&mut self, missed: u64) {
        if let Some(sender) = &mut self.sender {
            sender.miss(missed);
        }
    }

    pub(super) fn handle_own_drops(&mut self, now: Instant) {
        if let Some(sender) = &mut self.sender {
            sender.handle_own_drops(now);
        }
    }

    pub(super) fn miss_incoming(&mut self, now: Instant) {
        self.receiver.miss(now);
    }

    /// Hint at the start of the peer's initiations.
    pub(super) fn hint(&self) -> Hint {
        self.session.hint()
    }

    pub(super) fn clocks(&self) -> (PublicKey, Clocks) {
        (self.config.key, self.session.clocks())
    }

    pub(super) fn remember(&mut self, clocks: Clocks) {
        self.session.remember(clocks);
    }

    /// Handles a datagram. Only a message under a session's keys updates the peer's endpoint:
    /// an initiation is answered to its source and changes no endpoint.
    pub(super) fn handle_datagram(&mut self, now: Instant, from: SocketAddr, datagram: &mut [u8]) {
        let before = self.session.current();
        let mut answer = Vec::new();
        match self.session.handle(now, datagram, &mut answer) {
            Received::Nothing => return,
            Received::Handshake => {}
            Received::Message(message) => {
                self.endpoint = Some(from);
                self.handle_message(now, message);
            }
        }
        if !answer.is_empty() {
            self.answers.push((from, answer));
        }
        if self.session.current() != before {
            // The first message under new keys confirms them to the responder, and each side
            // learns the other's next packet number from it.
            self.reports = 0;
            self.report(now);
        }
    }

    /// Handles a message that was opened.
    pub(super) fn handle_message(&mut self, now: Instant, message: &[u8]) {
        for section in section::sections(message) {
            match section {
                Some(Section::Repair(repair, part)) => {
                    self.receiver.handle_repair(now, repair, part);
                }
                Some(Section::Names(names)) => self.receiver.handle_names(now, &names),
                Some(Section::Need(need)) => self.answer(now, need),
                Some(Section::Copies(copies)) => self.receiver.handle_copies(now, &copies),
                Some(Section::Other(kind, body))
                    if self.handle_other(now, kind, body).is_some() => {}
                Some(Section::Other(..)) | None => self.receiver.malformed(),
            }
        }
    }

    /// Handles a section other than repairs, names, requests and copies; `None` if it is
    /// malformed.
    fn handle_other(&mut self, now: Instant, kind: u8, body: &[u8]) -> Option<()> {
        match kind {
            REPORT => self.take_report(now, Report::parse(body)?),
            TERMS => {
                self.terms = Some(Arc::new(Terms::parse(body)?));
                self.compare_terms();
            }
            TRIALS => self.trials = Some(parse_trials(body)?),
            _ => return None,
        }
        Some(())
    }

    fn take_report(&mut self, now: Instant, report: Report) {
        self.receiver.told(report.next);
        self.reported = report.loss;
        self.stamp = Some((report.stamp, now));
        if let Some(newest) = report.rtt(now) {
            let smooth = |rtt: Duration| (rtt * (RTT_WEIGHT - 1) + newest) / RTT_WEIGHT;
            self.rtt = Some(self.rtt.map_or(newest, smooth));
        }
        self.receiver.set_times(Times { wait: report.wait(), rtt: self.rtt.unwrap_or(USUAL_RTT) });
        if let Some(sender) = &mut self.sender {
            sender.handle_report(now, report.path, self.rtt);
        }
    }

    fn answer(&mut self, now: Instant, need: Need) {
        if let Some((sender, mut channel, _)) = self.sending() {
            sender.answer(now, need, &mut channel);
        }
    }

    /// Returns the time of the next report: soon if the last one is out of date.
    fn report_due(&self) -> Instant {
        let (at, told) = self.told;
        let path = self.receiver.path();
        let is_doubted = path.in_doubt && !told.in_doubt;
        let is_old = path.random.bursts != told.random.bursts
            || path.congested != told.congested
            || path.visible != told.visible;
        if !is_old && !is_doubted {
            return self.next_report;
        }
        let many = is_doubted || path.random.packets - told.random.packets >= REPORT_PACKETS;
        let soon = (self.rtt.unwrap_or(USUAL_RTT) / 4).max(REPORT_SOON);
        self.next_report.min(at + if many { soon } else { soon.max(REPORT_SPARSE) })
    }

    #[cfg(fuzzing)]
    pub(super) fn name(&self, normalised: &[u8]) -> super::identity::Identity {
        self.identity.name(normalised)
    }

    fn report(&mut self, now: Instant) {
        let next = self.sender.as_ref().map_or(0, Sender::next_seq);
        let wait = self.sender.as_ref().and_then(|sender| sender.wait(now));
        let wait = wait.unwrap_or(USUAL_RTT / 4);
        let held = |at| u32::try_from(now.since(at).as_micros()).unwrap_or(u32::MAX);
        let report = Report {
            next,
            stamp: micros(now),
            echo: self.stamp.map(|(stamp, at)| (stamp, held(at))),
            wait: u32::try_from(wait.as_micros()).unwrap_or(u32::MAX),
            loss: self.receiver.stats().link,
            path: self.receiver.path(),
        };
        self.told = (now, report.path);
        let (session, trials) = (&mut self.session, self.receiver.trials());
        self.transmits.push_with(|out| {
            session.seal(out, |message| {
                section::emit(REPORT, message, |body| report.emit(body));
                if let Some(trials) = &trials {
                    section::emit(TRIALS, message, |body| emit_trials(trials, body));
                }
            })
        });
        if session.up() {
            if self.reports < TERMS_FIRST || self.reports.is_multiple_of(TERMS_EVERY) {
                let (terms, session) = (&self.own_terms, &mut self.session);
                self.transmits.push_with(|out| {
                    session.seal(out, |m| section::emit(TERMS, m, |body| terms.emit(body)))
                });
            }
            self.reports = self.reports.saturating_add(1);
        }
        self.next_report = now + REPORT_EVERY;
    }

    pub(super) fn poll_timeout(&self) -> Instant {
        // Without an endpoint no initiation can be sent, so that the session has no deadline.
        let timers = [
            self.endpoint.and_then(|_| self.session.poll_timeout()),
            self.sender.as_ref().and_then(Sender::poll_timeout),
            self.receiver.poll_timeout(),
            Some(self.next_tick),
        ];
        timers.into_iter().flatten().fold(self.report_due(), Instant::min)
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, inject: &mut Outbox) {
        self.receiver.release(now, &self.config.sites, inject);
        if self.endpoint.is_some() {
            let session = &mut self.session;
            self.transmits.push_with(|out| session.handle_timeout(now, out));
        }
        if let Some((sender, mut channel, _)) = self.sending() {
            sender.handle_timeout(now, &mut channel);
        }
        if now >= self.next_tick {
            self.receiver.tick(now);
            self.next_tick = now + TICK;
        }
        if let Some(need) = self.receiver.handle_timeout(now) {
            let session = &mut self.session;
            self.transmits
                .push_with(|out| session.seal(out, |message| section::emit_need(need, message)));
        }
        if now >= self.report_due() {
            self.report(now);
        }
    }
}

fn own_terms(config: &PeerConfig) -> Terms {
    let Sites { local, remote } = &config.sites;
    Terms {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        code: config.coding.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string),
        own: Listed::new(local),
        peer: Listed::new(remote),
    }
}

fn session_config(local: &Local, config: &PeerConfig, slot: u16) -> SessionConfig {
    SessionConfig {
        secret: local.secret.clone(),
        peer: config.key,
        rekey_after: config.rekey_after,
        entropy: local.entropy.clone(),
        unix_nanos_at_zero: local.unix_nanos_at_zero,
        slot,
    }
}

fn plan(now: Instant, config: &PeerConfig, first: u64) -> Result<Option<Plan>, PeerError> {
    let Some(coding) = &config.coding else { return Ok(None) };
    let coder = match coding {
        Coding::Auto(settings) => Coder::Auto(Box::new(Auto::new(now, settings, first)?)),
        Coding::Fixed(code) => Coder::Fixed(code.build_encoder(first)?),
        Coding::Observe => Coder::Observe(Observer::new(first)),
    };
    Ok(Some(Plan {
        coder,
        flush_after: config.flush_after,
        longest: config.longest,
        mtu: config.mtu,
    }))
}
