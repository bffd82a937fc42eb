//! A Trickles port, and the state of its connections.
//!
//! ```text
//!   Connecting ── answered ─────────▶ Established
//!      ├── the server's TCP answers, or no answer for a while ──▶ PlainTcp: continues over TCP
//!      └── no listener, as the server's TCP confirms ──▶ Refused
//! ```
//!
//! An encrypted connection never continues over TCP: it is refused, or stays in `Connecting`.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mio::Token;
use ring::rand::{SecureRandom as _, SystemRandom};
use tracing::debug;
use viaduct_proto::time::Instant;
use viaduct_proto::trickles::standard::MAIN;
use viaduct_proto::trickles::stream::{Config, State, Stream};
use viaduct_trickles::{ClientSettings, Connector, ConnectorEvent, Flow, PortError};

use super::flow_target::{Early, TricklesTarget};
use super::formats::PacketFormats;
use super::server_cache::ServerCache;
use super::slot::{Slot, SlotEvent, SlotState};
use crate::random::entropy;
use crate::rate_limited::RateLimitedLog;

/// Maximum length of a packet, in bytes: the MTU of Ethernet. A smaller MTU is reported by the
/// route's interface or a router.
const MTU: usize = 1500;
/// Timeout of an established connection without an answer. A flow survives shorter outages of its
/// server; TCP gives up retransmissions after about the same time.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(900);
/// Maximum number of connections whose flow has ended; beyond it, the oldest is closed.
const MAX_LEAVING: usize = 1_024;
/// Cache TTL of a server that supports only TCP, and of one that has answered over Trickles.
const PLAIN_TCP_TTL: Duration = Duration::from_secs(60);
const ANSWERED_TTL: Duration = Duration::from_secs(600);
/// Time for which the first packet of a connection waits for the program's first bytes.
const EARLY_DATA_WAIT: Duration = Duration::from_millis(5);
/// Maximum number of turns of the connector before other flows are served.
const TURNS: usize = 64;
/// Rate-limited warnings about servers that cannot be reached, or no longer answer.
static TROUBLE: RateLimitedLog<(SocketAddr, &str)> = RateLimitedLog::new(1);

/// A port, shared by the ends of its flows and their loop.
#[derive(Clone, Debug)]
pub(super) struct SharedPort(Arc<Mutex<Port>>);

/// The port.
#[derive(Debug)]
pub(super) struct Port {
    connector: Connector,
    slots: HashMap<Flow, Slot>,
    /// Connections with an event for the loop.
    events: VecDeque<Flow>,
    /// Unanswered connections, by the time at which TCP is tried or a warning is logged.
    waiting: BTreeSet<(Instant, Flow)>,
    /// Connections whose flow has ended, with written data still to be delivered.
    leaving: BTreeSet<Flow>,
    /// Servers that support only TCP.
    plain: ServerCache,
    /// Servers that have answered over Trickles.
    answered: ServerCache,
    /// True if the last turn left received packets unread.
    busy: bool,
}

impl SharedPort {
    /// Opens the port in the calling thread's network namespace.
    pub(super) fn open(
        formats: PacketFormats,
        instance: String,
        run_dir: PathBuf,
        buffer: usize,
    ) -> Result<SharedPort, PortError> {
        let settings = ClientSettings {
            formats: formats.into(),
            mtu: MTU,
            // Connection tracking stays on, because this machine may translate its own
            // addresses (NAT).
            untracked: false,
            instance,
            run_dir,
        };
        Ok(SharedPort(Arc::new(Mutex::new(Port {
            connector: Connector::open(&settings, random())?.with_memory_limit(buffer as u64),
            slots: HashMap::new(),
            events: VecDeque::new(),
            waiting: BTreeSet::new(),
            leaving: BTreeSet::new(),
            plain: ServerCache::new(PLAIN_TCP_TTL),
            answered: ServerCache::new(ANSWERED_TTL),
            busy: false,
        }))))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Port> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Port {
    /// Returns whether the server at `to` is known to support only TCP.
    pub(super) fn is_plain(&self, to: SocketAddr, now: Instant) -> bool {
        self.plain.holds(to, now)
    }

    /// Begins a connection; returns its flow, and whether the first bytes may be sent immediately.
    pub(super) fn connect(
        &mut self,
        to: SocketAddr,
        target: TricklesTarget,
        now: Instant,
    ) -> io::Result<(Flow, bool)> {
        let key = target.key;
        let config = Config { give_up: CONNECTION_TIMEOUT, ..Config::default() };
        let flow = match key {
            None => self.connector.connect(to, config)?,
            Some(key) => self.connector.connect_encrypted(to, config, key, entropy())?,
        };
        let slot = Slot::new(to, key.is_some(), now);
        self.waiting.insert((slot.until, flow));
        self.slots.insert(flow, slot);
        let early = match target.early {
            Early::Never => false,
            Early::Known => self.answered.holds(to, now),
            Early::Always => true,
        };
        if early {
            self.connector.hold(flow, EARLY_DATA_WAIT);
        }
        self.connector.flush();
        Ok((flow, early))
    }

    /// Sets the connection's token in the event loop.
    pub(super) fn register(&mut self, flow: Flow, token: Token) {
        if let Some(slot) = self.slots.get_mut(&flow) {
            slot.token = Some(token);
        }
        self.queue_event(flow);
    }

    pub(super) fn state(&self, flow: Flow) -> SlotState {
        self.slots.get(&flow).map_or(SlotState::Refused, |slot| slot.state)
    }

    /// Streams of a connection.
    pub(super) fn stream(&mut self, flow: Flow) -> Option<&mut Stream> {
        self.connector.stream(flow)
    }

    /// Local and remote address.
    pub(super) fn names(&self, flow: Flow) -> Option<(SocketAddr, SocketAddr)> {
        let slot = self.slots.get(&flow)?;
        Some((self.connector.port().local(flow)?, slot.to))
    }

    /// Removes a connection whose flow has ended. If `well`, written data is still delivered.
    pub(super) fn leave(&mut self, flow: Flow, well: bool) {
        let Some(slot) = self.slots.remove(&flow) else { return };
        self.waiting.remove(&(slot.until, flow));
        self.events.retain(|of| *of != flow);
        match slot.state {
            SlotState::Established if well && !self.is_over(flow) => {
                self.leaving.insert(flow);
                if self.leaving.len() > MAX_LEAVING
                    && let Some(first) = self.leaving.pop_first()
                {
                    self.connector.close(first);
                }
            }
            SlotState::Established => self.connector.close(flow),
            SlotState::Connecting | SlotState::PlainTcp | SlotState::Refused => {
                self.connector.forget(flow);
            }
        }
    }

    /// Handles received packets and the timers due by `now`, and sends packets.
    pub(super) fn turn(&mut self, now: Instant) {
        self.busy = true;
        for _ in 0..TURNS {
            match self.connector.turn() {
                Ok(0) => self.busy = false,
                Ok(_) => continue,
                Err(error) => {
                    debug!("trickles: cannot drive a port: {error}");
                    self.busy = false;
                }
            }
            break;
        }
        while let Some((flow, word)) = self.connector.poll_event() {
            self.handle_word(flow, word, now);
        }
        while let Some(&(at, flow)) = self.waiting.first().filter(|(at, _)| *at <= now) {
            self.waiting.remove(&(at, flow));
            match self.slots.get(&flow) {
                // An encrypted connection must not fall back to TCP: it waits until it is given up.
                Some(Slot { encrypted: true, state: SlotState::Connecting, to, .. }) => {
                    let why = "a server without a key, or with another key, does not reply";
                    TROUBLE.warn((*to, why), format_args!("trickles: {to} does not answer: {why}"));
                }
                Some(Slot { state: SlotState::Connecting, .. }) => {
                    self.set_state(flow, SlotState::PlainTcp, now);
                }
                _ => {}
            }
        }
        let over: Vec<Flow> =
            self.leaving.iter().copied().filter(|flow| self.is_over(*flow)).collect();
        for flow in over {
            self.leaving.remove(&flow);
            self.connector.close(flow);
        }
    }

    /// Takes the next event: the token of the end, and the event.
    pub(super) fn poll_event(&mut self) -> Option<(Token, SlotEvent)> {
        while let Some(flow) = self.events.pop_front() {
            let Some(slot) = self.slots.get_mut(&flow) else { continue };
            slot.is_queued = false;
            let event = match slot.state {
                SlotState::PlainTcp => SlotEvent::PlainTcp(slot.to),
                SlotState::Connecting | SlotState::Established | SlotState::Refused => {
                    SlotEvent::Ready
                }
            };
            if let Some(token) = slot.token {
                return Some((token, event));
            }
        }
        None
    }

    /// Time until the next timer, for which the loop may sleep.
    pub(super) fn poll_timeout(&self, now: Instant) -> Option<Duration> {
        if self.busy || !self.events.is_empty() {
            return Some(Duration::ZERO);
        }
        let waiting = self.waiting.first().map(|(at, _)| at.since(now));
        self.connector.poll_timeout().into_iter().chain(waiting).min()
    }

    /// Returns whether the data of all ended connections has been delivered.
    pub(super) fn is_done(&self) -> bool {
        self.leaving.is_empty()
    }

    fn is_encrypted(&self, flow: Flow) -> bool {
        self.slots.get(&flow).is_some_and(|slot| slot.encrypted)
    }

    fn handle_word(&mut self, flow: Flow, word: ConnectorEvent, now: Instant) {
        match word {
            ConnectorEvent::Open => self.set_state(flow, SlotState::Established, now),
            ConnectorEvent::PlainTcp if self.is_encrypted(flow) => {
                self.set_state(flow, SlotState::Refused, now);
            }
            ConnectorEvent::PlainTcp => self.set_state(flow, SlotState::PlainTcp, now),
            ConnectorEvent::FellBack { reset } => self.turned(flow, reset, now),
            ConnectorEvent::MtuTooSmall => {
                if let Some(&Slot { to, encrypted, .. }) = self.slots.get(&flow) {
                    let why = match encrypted {
                        true => "encrypted Trickles needs packets of 1,280 bytes",
                        false => "its flows use TCP",
                    };
                    let line =
                        format_args!("trickles: the MTU of the path to {to} is too small: {why}");
                    TROUBLE.warn((to, why), line);
                }
                self.handle_word(flow, ConnectorEvent::Refused { reset: false }, now);
            }
            ConnectorEvent::Unresponsive => {
                if let Some(Slot { to, .. }) = self.slots.get(&flow) {
                    let why = "its connections wait for 15 minutes";
                    let line = format_args!("trickles: {to} does not answer any more: {why}");
                    TROUBLE.warn((*to, why), line);
                }
            }
            ConnectorEvent::Refused { reset } => {
                let known = reset || self.is_encrypted(flow);
                self.refused(flow);
                let state = if known { SlotState::Refused } else { SlotState::PlainTcp };
                self.set_state(flow, state, now);
            }
            ConnectorEvent::Changed(_) => self.queue_event(flow),
        }
    }

    /// Handles the refusal of one packet format. If the server's TCP sent a reset, the server is
    /// up, and the wait for an answer over UDP is shortened: a filter may drop datagrams silently.
    fn turned(&mut self, flow: Flow, reset: bool, now: Instant) {
        self.refused(flow);
        let Some(slot) = self.slots.get_mut(&flow).filter(|_| reset) else { return };
        if self.waiting.remove(&(slot.until, flow)) {
            slot.hurry(now);
            self.waiting.insert((slot.until, flow));
        }
    }

    fn refused(&mut self, flow: Flow) {
        if let Some(slot) = self.slots.get_mut(&flow) {
            slot.refused = true;
        }
    }

    fn set_state(&mut self, flow: Flow, state: SlotState, now: Instant) {
        let Some(slot) = self.slots.get_mut(&flow) else { return };
        // A decision is final.
        if slot.state != SlotState::Connecting {
            return;
        }
        slot.state = state;
        match state {
            SlotState::Established => self.answered.learn(slot.to, now),
            SlotState::PlainTcp | SlotState::Refused => self.answered.forget(slot.to),
            SlotState::Connecting => {}
        }
        // A server that has refused may accept the next time, so it is not cached.
        if state == SlotState::PlainTcp && !slot.refused {
            self.plain.learn(slot.to, now);
        }
        self.queue_event(flow);
    }

    fn queue_event(&mut self, flow: Flow) {
        let Some(slot) = self.slots.get_mut(&flow) else { return };
        if !std::mem::replace(&mut slot.is_queued, true) {
            self.events.push_back(flow);
        }
    }

    /// Returns whether all written data has been delivered, or never will be.
    fn is_over(&self, flow: Flow) -> bool {
        self.connector.stream_ref(flow).is_none_or(|stream| {
            let failed = matches!(stream.state(MAIN), State::Failed(_));
            failed || stream.is_flushed(MAIN)
        })
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connector.as_fd()
    }
}

fn random() -> u64 {
    let mut bytes = [0; 8];
    // Random bytes are always available once the kernel has started.
    SystemRandom::new().fill(&mut bytes).expect("the kernel gives random bytes");
    u64::from_be_bytes(bytes)
}
