//! Tunnels over TLS to peers in split mode, for networks that let neither UDP nor fake TCP pass.
//! This module decides when they are dialled, and the state of such a peer.
//!
//! ```text
//!   handshakes unanswered by all transports ─▶ links are dialled ─▶ up: split connections use them
//!   a handshake is answered ─▶ links end with their last connection; new connections are direct
//! ```

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;

use tracing::{info, warn};
use viaduct_proto::health::State;
use viaduct_proto::repair::{PeerFacts, TransportChoice};

use super::config::{Config, Peer};
use super::snapshot::{Details, Snapshot};
use super::status::PeerStatus;
use crate::engine::outbound::OutboundSpec;
use crate::engine::policy::Detour;
use crate::settings::Settings;
use crate::settings::thread::ProxyThread;
use crate::tunnel::settings::{CarrierKind, Clients, Dial, TunnelSettings};
use crate::tunnel::stats::TunnelCounters;

/// Number of unanswered handshakes, one a second, after which only TCP is expected to pass.
const UNANSWERED: u32 = 6;
/// Links of a tunnel: with the second one, short connections do not wait for a bulk transfer.
const LINKS: usize = 2;

/// Tunnels over TLS, by the names of the peers.
#[derive(Debug, Default)]
pub struct TlsTunnels(BTreeMap<String, TlsPeer>);

/// Tunnel over TLS to one peer.
#[derive(Debug)]
struct TlsPeer {
    choice: TransportChoice,
    /// Public key, as the tunnel's counters show it.
    key: String,
    /// Address that is dialled, if there is one.
    endpoint: Option<SocketAddr>,
    /// True if the gateway can use fake TCP.
    has_fake_tcp: bool,
    /// True if this gateway dials the tunnel now.
    is_dialled: bool,
    /// True if a link of the tunnel is up, or expected after a handover, whichever gateway has
    /// dialled it.
    is_up: bool,
    /// Reason why no link is up.
    down: Option<String>,
}

impl TlsTunnels {
    /// Tunnels of `config`.
    pub fn new(config: &Config) -> TlsTunnels {
        let tunnel = |peer: &Peer| TlsPeer {
            choice: peer.transport,
            key: peer.key.to_string(),
            endpoint: peer.tls_endpoint,
            has_fake_tcp: config.wants_fake_tcp(),
            is_dialled: peer.transport == TransportChoice::None,
            is_up: false,
            down: None,
        };
        TlsTunnels(config.peers.iter().map(|peer| (peer.name.clone(), tunnel(peer))).collect())
    }

    /// Names of the peers whose tunnels are dialled now.
    pub fn dialled(&self) -> Vec<String> {
        let dialled = self.0.iter().filter(|(_, peer)| peer.is_dialled);
        dialled.map(|(name, _)| name.clone()).collect()
    }

    /// Continues the tunnels that the old process has dialled ([`TlsTunnels::dialled`]).
    pub fn dial_again(&mut self, names: &[String]) {
        for (name, peer) in &mut self.0 {
            peer.is_dialled |= peer.endpoint.is_some() && names.contains(name);
        }
    }

    /// Applies a changed config. Tunnels that are dialled remain dialled, unless the transport of
    /// their peer has changed.
    pub fn change(&mut self, config: &Config) {
        let mut new = TlsTunnels::new(config);
        for (name, peer) in &mut new.0 {
            if let Some(old) = self.0.get(name).filter(|old| old.choice == peer.choice) {
                peer.is_dialled = old.is_dialled;
            }
        }
        *self = new;
    }

    /// Copy of `settings` with links to those peers whose tunnels are dialled now.
    pub fn applied(&self, settings: &Settings) -> Settings {
        let mut settings = settings.clone();
        for dial in settings.engine.tunnels.iter_mut().flat_map(|of| &mut of.dials) {
            let is_dialled = self.0.get(&*dial.name).is_some_and(|peer| peer.is_dialled);
            dial.links = if is_dialled { LINKS } else { 0 };
        }
        settings
    }

    /// Dials tunnels to peers that datagrams do not reach, and ends tunnels to peers that datagrams
    /// reach again. Called once a second.
    pub async fn follow(
        &mut self,
        flows: Option<&mut ProxyThread>,
        seen: &Snapshot,
        details: &Details,
    ) {
        let Some(flows) = flows.filter(|of| of.settings().engine.tunnels.is_some()) else { return };
        let status = flows.engine.handle.status().await;
        if self.update(seen, details, &status.counters.tunnels)
            && let Err(error) = flows.reload(self.applied(flows.settings()))
        {
            warn!("the links of tunnels over TLS are not changed: {error:#}");
        }
    }

    /// Decides which tunnels are dialled. Returns whether the decision has changed.
    fn update(&mut self, seen: &Snapshot, details: &Details, tunnels: &[TunnelCounters]) -> bool {
        let up = seen.peers.iter().filter(|(_, stats)| stats.up);
        let up: HashSet<&String> = up.map(|(name, _)| name).collect();
        let mut has_changed = false;
        for (name, peer) in &mut self.0 {
            let mut own = tunnels.iter().filter(|of| of.name == *name || of.peer == peer.key);
            peer.is_up =
                own.clone().any(|of| of.is_expected || of.links.iter().any(|link| link.up));
            peer.down = own.find_map(|of| of.down.clone());
            let is_up = up.contains(name);
            let facts = details.facts.get(name);
            let is_wanted = match peer.choice {
                TransportChoice::None => true,
                _ if is_up => false,
                _ => peer.is_dialled || facts.is_some_and(|of| of.unanswered >= UNANSWERED),
            };
            if let Some(at) = peer.endpoint.filter(|_| is_wanted != peer.is_dialled) {
                (peer.is_dialled, has_changed) = (is_wanted, true);
                match is_wanted {
                    true => info!(peer = name, "a tunnel over TLS to {at} is dialled"),
                    false => info!(peer = name, "the tunnel over TLS ends: datagrams pass again"),
                }
            }
        }
        has_changed
    }

    /// Returns whether the config allows only a tunnel over TLS to a peer.
    pub fn is_forced(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|peer| peer.choice == TransportChoice::None)
    }

    /// State of a peer, given `state`, which follows from datagrams alone.
    pub fn judge(&self, name: &str, state: State, facts: &PeerFacts) -> State {
        let (Some(peer), State::Down(reason)) = (self.0.get(name), &state) else { return state };
        let why = peer.down.as_deref().unwrap_or("no link is up yet");
        let is_silent = facts.unanswered >= UNANSWERED;
        match (peer.choice, peer.is_up, peer.endpoint) {
            (TransportChoice::None, true, _) => State::Up,
            (TransportChoice::None, false, _) => State::Down(format!(
                "its tunnel over TLS is down, and transport = \"tls\" has no repairs: {why}"
            )),
            (_, true, _) => State::Degraded(
                "only TCP passes: repairs are off, and split connections go through a tunnel over \
                 TLS"
                .to_owned(),
            ),
            (TransportChoice::Auto, false, Some(_)) if is_silent => State::Down(format!(
                "repairs are off, as {}, and the tunnel over TLS is down ({why}): {reason}",
                peer.unanswered()
            )),
            (TransportChoice::Auto, false, None) if is_silent => State::Down(format!(
                "repairs are off, as {}; if only TCP passes, use mode = \"split\" with \
                 tls_endpoint: {reason}",
                peer.unanswered()
            )),
            _ => state,
        }
    }

    /// Marks in the status the peers that are reached by TLS, with the reason.
    pub fn show(&self, peers: &mut [PeerStatus]) {
        for status in peers {
            let Some(peer) = self.0.get(&status.name) else { continue };
            let is_forced = peer.choice == TransportChoice::None;
            if is_forced || (peer.is_up && !status.counters.up) {
                let why = if is_forced { "as configured" } else { peer.unanswered() };
                (status.transport, status.transport_reason) = ("tls".to_owned(), why.to_owned());
            }
        }
    }
}

impl TlsPeer {
    /// Clause that names the transports that are not answered.
    fn unanswered(&self) -> &'static str {
        match self.has_fake_tcp {
            true => "neither UDP nor fake TCP is answered",
            false => "UDP is not answered, and fake TCP needs a single worker and a single WAN",
        }
    }
}

/// Tunnels over TLS of the proxy of split mode, and the prefixes whose flows take them; `None` if
/// the config has none.
pub fn tunnels(config: &Config, settings: &Settings) -> Option<(TunnelSettings, Vec<Detour>)> {
    let peers = || config.peers.iter().filter(|peer| peer.may_use_tls());
    let dial = |peer: &Peer| {
        Some(Dial {
            name: (*peer.name).into(),
            to: peer.tls_endpoint?,
            peer: peer.key,
            links: LINKS,
            server_name: peer.server_name.clone(),
            is_fallback: peer.transport != TransportChoice::None,
        })
    };
    let dials: Vec<_> = peers().filter_map(dial).collect();
    if dials.is_empty() && config.tls_listen.is_none() {
        return None;
    }
    let detour = |peer: &Peer| Detour {
        to: peer.prefixes.clone(),
        by: OutboundSpec::Tunnel(peer.name.clone()),
    };
    let detours = peers().map(detour).collect();
    let clients = |peer: &Peer| Clients {
        name: (*peer.name).into(),
        key: peer.key,
        prefixes: peer.prefixes.clone(),
    };
    let mut core = viaduct_proto::tunnel::Settings::default();
    core.queue = core.queue.min(settings.engine.limits.chain_buffer);
    let tunnels = TunnelSettings {
        secret: config.secret.clone(),
        peers: peers().map(|peer| peer.key).collect(),
        listen: config.tls_listen,
        dials,
        carrier: CarrierKind::Tls,
        congestion: settings.engine.policies.far.haul.congestion_control.clone(),
        waits: false,
        allow_to: config.prefixes.clone(),
        clients: peers().map(clients).collect(),
        stranger_memory: Default::default(),
        core,
    };
    Some((tunnels.dead_after(settings.engine.limits.silence.dead_after), detours))
}

#[cfg(test)]
#[path = "tls_tests.rs"]
mod tests;
