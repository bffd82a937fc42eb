//! Choice of the path that each class of packets takes at a site with two WANs, and the log
//! of changes.
//!
//! ```text
//!   packet thread: probes ─▶ a path is down, or up ─▶ PathChoice ─▶ marks of nftables ─▶ routing
//!                                                        └─▶ log
//! ```
//!
//! A class takes its preferred path, unless that path is down and the other one is up. If both are
//! down, the peer's gateway does not answer, so nothing is known about the paths.

use std::collections::HashMap;

use tokio::sync::mpsc::UnboundedReceiver;
use tracing::{info, warn};
use viaduct_proto::repair::{Match, PATHS, PathChange};
use viaduct_sys::nft::path_rules::{self, PathRoute, PathRules};

use super::config::{Config, Peer};
use super::preflight::pair;
use super::system::table_name;

/// Selection of paths.
pub struct PathChoice {
    changes: UnboundedReceiver<PathChange>,
    /// States of the paths to each peer, by its name.
    up: HashMap<String, [bool; PATHS]>,
    /// True if the last selection could not be put in force.
    pub is_pending: bool,
    /// Reason why a selection, or a route, is not in force.
    trouble: Option<String>,
}

impl PathChoice {
    /// Creates a selection in which no path is known to be up.
    pub fn new(changes: UnboundedReceiver<PathChange>) -> PathChoice {
        PathChoice { changes, up: HashMap::new(), is_pending: false, trouble: None }
    }

    /// Waits for changes of paths, records them, and logs them.
    pub async fn changed(&mut self, config: &Config) {
        let Some(first) = self.changes.recv().await else { return std::future::pending().await };
        self.note(config, &first);
        self.note_waiting(config);
    }

    /// Records and logs the queued changes of paths.
    pub fn note_waiting(&mut self, config: &Config) {
        while let Ok(change) = self.changes.try_recv() {
            self.note(config, &change);
        }
    }

    fn note(&mut self, config: &Config, change: &PathChange) {
        let PathChange { peer, path, is_up } = change;
        let path = usize::from(*path);
        let states = self.up.entry(peer.clone()).or_default();
        states[path] = *is_up;
        let Some(wan) = config.wans.get(path) else { return };
        let other = config.wans.get(PATHS - 1 - path).filter(|_| states[PATHS - 1 - path]);
        match (is_up, other) {
            (true, _) => info!(peer, "the path by {} is up", wan.name),
            (false, Some(other)) => {
                warn!(peer, "the path by {} is down: its packets take {}", wan.name, other.name);
            }
            (false, None) => warn!(peer, "no path is up: the path by {} is down, too", wan.name),
        }
    }

    /// Rules for the current states of the paths.
    pub fn rules(&self, config: &Config) -> PathRules {
        let none = [false; PATHS];
        let up = |peer: &Peer| self.up.get(&peer.name).copied().unwrap_or(none);
        rules(config, up)
    }

    /// Records why the rules are not in force; `None` if they are. Returns true if the reason is
    /// new.
    pub fn record(&mut self, failure: Option<String>) -> bool {
        let is_new = failure.is_some() && failure != self.trouble;
        self.trouble = failure;
        is_new
    }

    /// Reason why a selection, or a route, is not in force.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }
}

/// Rules of `config`, given which paths to each peer are up.
pub fn rules(config: &Config, up: impl Fn(&Peer) -> [bool; PATHS]) -> PathRules {
    let everything = Match::default();
    let classes = config.path_classes.iter().map(|class| (&class.matches, class.wan));
    let classes: Vec<_> = classes.chain([(&everything, 0)]).collect();
    let choices = config.peers.iter().flat_map(|peer| {
        let up = up(peer);
        classes.iter().map(move |(matches, wan)| choice(peer, matches, taken(*wan, up)))
    });
    let route = |wan: &super::config::Wan| PathRoute {
        interface: wan.interface.clone(),
        via: wan.via.clone(),
    };
    PathRules {
        instance: format!("{}_paths", table_name(&config.name)),
        local: config.prefixes.iter().map(pair).collect(),
        paths: config.wans.iter().map(route).collect(),
        choices: choices.collect(),
    }
}

/// Path of packets that prefer `wanted`.
fn taken(wanted: usize, up: [bool; PATHS]) -> usize {
    let other = PATHS - 1 - wanted;
    if !up[wanted] && up[other] { other } else { wanted }
}

fn choice(peer: &Peer, matches: &Match, path: usize) -> path_rules::PathChoice {
    path_rules::PathChoice {
        to: peer.prefixes.iter().map(pair).collect(),
        dscp: matches.dscp.clone(),
        prefixes: matches.prefixes.iter().map(pair).collect(),
        ports: matches.ports.iter().map(|of| (*of.start(), *of.end())).collect(),
        protocols: matches.protocols.clone(),
        path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_left_only_for_a_path_that_is_up() {
        for (up, expected) in [
            ([true, true], [0, 1]),
            ([true, false], [0, 0]),
            ([false, true], [1, 1]),
            ([false, false], [0, 1]),
        ] {
            assert_eq!([taken(0, up), taken(1, up)], expected, "{up:?}");
        }
    }
}
