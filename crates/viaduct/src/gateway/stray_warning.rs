//! Warning about datagrams that no peer's key opens, while a peer is down: one of the two gateways
//! may have a wrong public key for the other.

use std::time::{Duration, Instant};

use tracing::warn;

use super::snapshot::Snapshot;

/// Minimum interval between two such warnings.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// State of the last check.
#[derive(Debug, Default)]
pub struct StrayWarning {
    /// Number of stray datagrams at the last warning, or when all peers were up for the last time.
    stray: u64,
    warned: Option<Instant>,
}

impl StrayWarning {
    /// Logs a warning if a peer is down and datagrams that no peer's key opens have arrived, since
    /// the last warning or since all peers were last up, whichever is later. Logs at most one
    /// warning per [`WARN_EVERY`]. To be called once a second.
    pub fn check(&mut self, now: &Snapshot) {
        let strays = now.plane.stray.saturating_sub(self.stray);
        let all_up = now.peers.iter().all(|(_, stats)| stats.up);
        let is_recent = self.warned.is_some_and(|at| at.elapsed() < WARN_EVERY);
        if all_up {
            self.stray = now.plane.stray;
        }
        if strays == 0 || all_up || is_recent {
            return;
        }
        warn!(
            "{strays} datagram(s) arrived that no peer's key opens: each [[peer]] key must be the \
             one that `viaduct key show` prints on the peer's gateway, and the peer must have this \
             gateway's key"
        );
        (self.stray, self.warned) = (now.plane.stray, Some(Instant::now()));
    }
}
