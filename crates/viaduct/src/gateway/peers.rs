//! States of the peers, updated once a second, and the log of their changes.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use tracing::{info, warn};
use viaduct_proto::health::State;
use viaduct_proto::repair::control::{self, Regime};
use viaduct_proto::repair::health::Health;
use viaduct_proto::repair::{Cause, PeerFacts, Transport};
use viaduct_proto::time::Instant as Now;

use super::snapshot::{Details, Snapshot};
use super::tls::TlsTunnels;

/// Time after the first check for which a silent peer is not logged.
const FIRST_ANSWER: Duration = Duration::from_secs(5);

/// States of the peers.
#[derive(Debug, Default)]
pub struct PeerStates {
    /// Health of each peer, and the time of its first check.
    health: HashMap<String, (Instant, Health)>,
    states: Vec<(String, State)>,
    logged: HashMap<String, String>,
    /// Last logged transport by peer.
    transports: HashMap<String, Transport>,
    /// Last logged regime of repairs by peer.
    regimes: HashMap<String, Regime>,
}

impl PeerStates {
    /// State of each peer at the last check.
    pub fn get(&self) -> &[(String, State)] {
        &self.states
    }

    /// Updates the states of the peers, and logs changes. `trouble` is the problem of the WAN
    /// itself, if there is one. `tls` has the tunnels to peers that datagrams do not reach.
    pub fn update(
        &mut self,
        now: Now,
        seen: &Snapshot,
        details: &Details,
        trouble: Option<&str>,
        tls: &TlsTunnels,
    ) {
        let nothing = Default::default();
        self.states.clear();
        for (name, stats) in &seen.peers {
            let facts = details.facts.get(name).unwrap_or(&nothing);
            let first = || (Instant::now(), Health::default());
            let (_, health) = self.health.entry(name.clone()).or_insert_with(first);
            let mut state = health.look(now, stats, facts, trouble);
            if trouble.is_none() {
                state = tls.judge(name, state, facts);
            }
            self.states.push((name.clone(), state));
            if let Some(facts) = details.facts.get(name) {
                self.log_transport(name, facts);
            }
            if let Some(control) = facts.control {
                self.log_regime(name, &control);
            }
        }
        self.log_changes(tls);
        let peers: HashSet<&String> = seen.peers.iter().map(|(name, _)| name).collect();
        self.health.retain(|name, _| peers.contains(name));
        self.transports.retain(|name, _| peers.contains(name));
        self.regimes.retain(|name, _| peers.contains(name));
        self.logged.retain(|name, _| peers.contains(name));
    }

    /// Logs a change of the transport of datagrams for `peer`.
    fn log_transport(&mut self, peer: &str, facts: &PeerFacts) {
        let PeerFacts { transport, cause, .. } = facts;
        let before = self.transports.insert(peer.to_owned(), *transport).unwrap_or_default();
        if before != *transport && *cause != Cause::Config {
            info!(peer, "datagrams are sent by {transport}: {cause}");
        }
    }

    /// Logs a change of the regime of repairs for `peer`, with its overhead.
    fn log_regime(&mut self, peer: &str, control: &control::State) {
        let before = self.regimes.insert(peer.to_owned(), control.regime);
        if before.unwrap_or_default() != control.regime {
            let overhead = format!("{:.1} %", 100.0 * control.overhead);
            info!(peer, overhead, "repairs: {}", control.regime);
        }
    }

    fn log_changes(&mut self, tls: &TlsTunnels) {
        for (peer, state) in &self.states {
            let first = self.health.get(peer);
            let is_early = first.is_some_and(|(since, _)| since.elapsed() < FIRST_ANSWER);
            let before = self.logged.get(peer);
            let kind = kind(state);
            if before == Some(&kind) || (is_early && before.is_none() && !state.is_up()) {
                continue;
            }
            match state {
                State::Up if tls.is_forced(peer) => {
                    info!(peer, "up: split connections go through a tunnel over TLS, no repairs");
                }
                State::Up if before.is_none() => {
                    info!(peer, "session up: packets for the peer are protected");
                }
                State::Up => info!(peer, "up again: packets for the peer are protected"),
                _ => warn!(peer, "{state}"),
            }
            self.logged.insert(peer.clone(), kind);
        }
    }
}

/// State without its numbers, which change constantly.
fn kind(state: &State) -> String {
    let text = state.to_string();
    let text = text.split(", last handshake").next().unwrap_or_default();
    text.chars().filter(|c| !c.is_ascii_digit()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use viaduct_proto::repair::stats::PeerStats;

    #[test]
    fn each_peer_has_a_state_that_is_removed_with_the_peer() {
        let mut states = PeerStates::default();
        let peer = |name: &str, up| (name.to_owned(), PeerStats { up, ..PeerStats::default() });
        let seen =
            Snapshot { peers: vec![peer("a", true), peer("b", false)], ..Default::default() };
        let (tls, details) = (TlsTunnels::default(), Details::default());
        states.update(Now::ZERO, &seen, &details, None, &tls);
        let names: Vec<_> =
            states.get().iter().map(|(name, state)| (&name[..], state.name())).collect();
        assert_eq!(names, [("a", "up"), ("b", "down")]);
        states.update(Now::ZERO, &seen, &details, Some("wan0 is down"), &tls);
        assert!(states.get()[0].1.to_string().starts_with("down: wan0 is down"));
        let seen = Snapshot { peers: vec![peer("a", true)], ..Default::default() };
        states.update(Now::ZERO, &seen, &details, None, &tls);
        assert_eq!((states.get().len(), states.health.len()), (1, 1));
    }

    #[test]
    fn changed_numbers_are_not_a_change_of_state() {
        let down = |age| State::Down(format!("it does not answer, last handshake {age} s ago"));
        assert_eq!(kind(&down(3)), kind(&down(90)));
        assert_ne!(kind(&down(3)), kind(&State::Up));
    }
}
