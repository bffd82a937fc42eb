//! Warning about datagrams that no peer's key opens, while a peer is down: one of two keys may
//! be wrong.

use std::time::{Duration, Instant};

use tracing::warn;

use super::snapshot::Snapshot;

/// Minimum interval between two such warnings.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// State at the last check.
#[derive(Debug, Default)]
pub struct StrayWarning {
    stray: u64,
    warned: Option<Instant>,
}

impl StrayWarning {
    /// Logs a warning if such datagrams came since the last check. Must be called once a second.
    pub fn check(&mut self, now: &Snapshot) {
        let strays = now.plane.stray.saturating_sub(self.stray);
        let all_up = now.peers.iter().all(|(_, stats)| stats.up);
        let is_recent = self.warned.is_some_and(|at| at.elapsed() < WARN_EVERY);
        if strays == 0 || all_up || is_recent {
            return;
        }
        warn!(
            "{strays} datagram(s) came that no peer's key opens: is each [[peer]] key what \
             `viaduct key show` prints there, and this site's key known there?"
        );
        (self.stray, self.warned) = (now.plane.stray, Some(Instant::now()));
    }
}
