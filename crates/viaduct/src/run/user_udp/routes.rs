//! Routes of the capture namespace, which are kept equal to those of this host.

use std::sync::Arc;

use tracing::debug;
use viaduct_proto::time::Duration;
use viaduct_sys::netns::capture_ns::{SourceRoutes, SourceRoutesWatch};

use super::{UserUdp, now};

/// Minimum interval between reads of the routing table while routes change.
const MIN_ROUTES_INTERVAL: Duration = Duration::from_millis(100);
/// Minimum interval between reads, as a multiple of the duration of a read, which is long if the
/// host has very many routes.
const ROUTES_BACKOFF: u32 = 10;

impl UserUdp {
    /// Records that routes or addresses have changed.
    pub(super) fn note_route_change(&self) {
        if self.watch.as_ref().is_some_and(SourceRoutesWatch::changed) {
            self.state().routes_changed = true;
        }
    }

    /// Updates the routes of the capture namespace to those of this host, if they may have changed.
    /// The lock is released while all routes are read, so that datagrams of programs do not wait.
    pub(super) fn refresh_routes(&self) {
        let mut state = self.state();
        let started = now();
        if !state.routes_changed || started < state.next_routes_read {
            return;
        }
        state.routes_changed = false;
        let (known, all) = (state.own.clone(), state.relays.is_some() || state.names.is_some());
        drop(state);
        let own = SourceRoutes::read(all);
        let is_new = own != *known;
        if is_new && let Err(error) = self.netns.set_routes(&own) {
            debug!("cannot set the routes of the capture namespace: {error}");
        }
        let (now, mut state) = (now(), self.state());
        state.next_routes_read = now + MIN_ROUTES_INTERVAL.max(ROUTES_BACKOFF * now.since(started));
        if is_new {
            state.own = Arc::new(own);
        }
    }
}
