//! What an operator should find in the log without asking: peers that come and go, and datagrams
//! that no peer's key opens.

use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::snapshot::Snapshot;

/// How often the log may complain of strangers.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

/// What was seen when it last looked.
#[derive(Debug, Default)]
pub struct Watch {
    up: Vec<String>,
    stray: u64,
    complained: Option<Instant>,
}

impl Watch {
    /// Logs what has changed since the last look. Call it once a second.
    pub fn look(&mut self, now: &Snapshot) {
        let peers = || now.peers.iter().map(|(name, stats)| (name, stats.up));
        for (peer, up) in peers() {
            match (self.up.contains(peer), up) {
                (false, true) => info!(peer, "the peer answers: packets for it are protected"),
                (true, false) => warn!(peer, "the peer does not answer: nothing is repaired"),
                _ => {}
            }
        }
        self.up = peers().filter(|(_, up)| *up).map(|(name, _)| name.clone()).collect();
        let strays = now.plane.stray.saturating_sub(self.stray);
        let all_up = self.up.len() == now.peers.len();
        let patient = self.complained.is_some_and(|at| at.elapsed() < COMPLAIN_EVERY);
        if strays > 0 && !all_up && !patient {
            warn!(
                "{strays} datagrams came that no peer's key opens: is each [[peer]] key what \
                 `viaduct key show` prints there, and this site's key known there?"
            );
            self.complained = Some(Instant::now());
            self.stray = now.plane.stray;
        }
    }
}
