//! What an operator should find in the log without asking: what may be the reason where a peer has never
//! answered, and datagrams that no peer's key opens.

use std::time::{Duration, Instant};

use tracing::warn;

use super::config::Config;
use super::snapshot::Snapshot;

/// How long a peer may take to answer at first.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often the log may complain of strangers.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

/// What was seen when it last looked.
#[derive(Debug)]
pub struct Watch {
    began: Instant,
    up: Vec<String>,
    /// Peers that were up once, or were complained of.
    known: Vec<String>,
    stray: u64,
    complained: Option<Instant>,
}

impl Default for Watch {
    fn default() -> Self {
        let (up, known) = (Vec::new(), Vec::new());
        Watch { began: Instant::now(), up, known, stray: 0, complained: None }
    }
}

impl Watch {
    /// Logs what has changed since the last look. Call it once a second.
    pub fn look(&mut self, config: &Config, now: &Snapshot) {
        let peers = || now.peers.iter().map(|(name, stats)| (name, stats.up));
        if self.began.elapsed() >= PATIENCE {
            for (peer, _) in peers().filter(|(_, up)| !up) {
                self.complain_once(config, peer);
            }
        }
        self.known.extend(peers().filter(|(_, up)| *up).map(|(name, _)| name.clone()));
        self.known.sort();
        self.known.dedup();
        self.up = peers().filter(|(_, up)| *up).map(|(name, _)| name.clone()).collect();
        let strays = now.plane.stray.saturating_sub(self.stray);
        let all_up = self.up.len() == now.peers.len();
        let patient = self.complained.is_some_and(|at| at.elapsed() < COMPLAIN_EVERY);
        if strays > 0 && !all_up && !patient {
            warn!(
                "{strays} datagram(s) came that no peer's key opens: is each [[peer]] key what \
                 `viaduct key show` prints there, and this site's key known there?"
            );
            self.complained = Some(Instant::now());
            self.stray = now.plane.stray;
        }
    }

    /// Says of a peer that has never answered what may be the reason.
    fn complain_once(&mut self, config: &Config, peer: &str) {
        let Some(table) = config.peers.iter().find(|table| table.name == peer) else { return };
        if self.known.iter().any(|known| known == peer) {
            return;
        }
        match table.endpoint {
            Some(at) => warn!(
                peer,
                "the peer has not answered at {at}: does its gateway run, and do firewalls let UDP \
                 through, both ways?"
            ),
            None => warn!(peer, "the peer has not called: does its config have our endpoint?"),
        }
        self.known.push(peer.to_owned());
    }
}
