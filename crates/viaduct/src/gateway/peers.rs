//! States of the peers, updated once a second, and the log of their changes.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use tracing::{info, warn};
use viaduct_proto::health::State;
use viaduct_proto::repair::control::Regime;
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
    known: HashMap<String, Known>,
    states: Vec<(String, State)>,
}

/// State of one peer since its first check.
#[derive(Debug)]
struct Known {
    since: Instant,
    health: Health,
    /// State at the last check, and as it was logged, without its numbers.
    state: Option<State>,
    logged: Option<String>,
    transport: Transport,
    regime: Regime,
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
        self.states.clear();
        for (name, stats) in &seen.peers {
            let facts = details.facts.get(name);
            let known = match self.known.get_mut(name) {
                Some(known) => known,
                None => self.known.entry(name.clone()).or_default(),
            };
            let nothing = PeerFacts::default();
            let mut state = known.health.look(now, stats, facts.unwrap_or(&nothing), trouble);
            if trouble.is_none() {
                state = tls.judge(name, state, facts.unwrap_or(&nothing));
            }
            if let Some(facts) = facts {
                known.log_transport(name, facts);
                known.log_regime(name, facts);
            }
            known.log_state(name, &state, tls);
            self.states.push((name.clone(), state));
        }
        if self.known.len() > seen.peers.len() {
            let peers: HashSet<&String> = seen.peers.iter().map(|(name, _)| name).collect();
            self.known.retain(|name, _| peers.contains(name));
        }
    }
}

impl Default for Known {
    fn default() -> Self {
        Known {
            since: Instant::now(),
            health: Health::default(),
            state: None,
            logged: None,
            transport: Transport::default(),
            regime: Regime::default(),
        }
    }
}

impl Known {
    /// Logs a change of the transport of datagrams for `peer`.
    fn log_transport(&mut self, peer: &str, facts: &PeerFacts) {
        let PeerFacts { transport, cause, .. } = facts;
        let before = std::mem::replace(&mut self.transport, *transport);
        if before != *transport && *cause != Cause::Config {
            info!(peer, "datagrams are sent by {transport}: {cause}");
        }
    }

    /// Logs a change of the regime of repairs for `peer`, with its overhead.
    fn log_regime(&mut self, peer: &str, facts: &PeerFacts) {
        let Some(control) = &facts.control else { return };
        if std::mem::replace(&mut self.regime, control.regime) != control.regime {
            let overhead = format!("{:.1} %", 100.0 * control.overhead);
            info!(peer, overhead, "repairs: {}", control.regime);
        }
    }

    /// Logs a change of the state of `peer`.
    fn log_state(&mut self, peer: &str, state: &State, tls: &TlsTunnels) {
        let is_early = self.since.elapsed() < FIRST_ANSWER;
        if is_early && self.logged.is_none() && !state.is_up() {
            return;
        }
        // With thousands of peers that are down, their texts would take most of the check's time.
        if self.logged.is_some() && self.state.as_ref() == Some(state) {
            return;
        }
        self.state = Some(state.clone());
        let kind = kind(state);
        if self.logged.as_ref() == Some(&kind) {
            return;
        }
        match state {
            State::Up if tls.is_forced(peer) => {
                info!(peer, "up: split connections go through a tunnel over TLS, no repairs");
            }
            State::Up if self.logged.is_none() => {
                info!(peer, "session up: packets for the peer are protected");
            }
            State::Up => info!(peer, "up again: packets for the peer are protected"),
            _ => warn!(peer, "{state}"),
        }
        self.logged = Some(kind);
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
        assert_eq!((states.get().len(), states.known.len()), (1, 1));
    }

    #[test]
    fn changed_numbers_are_not_a_change_of_state() {
        let down = |age| State::Down(format!("it does not answer, last handshake {age} s ago"));
        assert_eq!(kind(&down(3)), kind(&down(90)));
        assert_ne!(kind(&down(3)), kind(&State::Up));
    }
}
