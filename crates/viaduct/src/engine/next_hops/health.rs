//! States of next hops, shared by their checks and the event loops.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError, RwLock};

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::UnboundedSender;
use viaduct_proto::health::State;

use super::checks::Message;

/// State of a next hop that is checked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HopStatus {
    /// Address of the hop.
    pub hop: SocketAddr,
    /// State, for the operator.
    pub state: State,
    /// True if the hop is known to be down: no flow is sent to it.
    pub is_down: bool,
    /// Probes sent.
    pub probes: u64,
    /// Probes that failed.
    pub failures: u64,
    /// Number of times that the hop went down.
    pub falls: u64,
}

/// States of all next hops that are checked.
#[derive(Debug, Default)]
pub struct HopHealth {
    states: RwLock<BTreeMap<SocketAddr, HopStatus>>,
    /// Sender to the checks, if there are any.
    checks: Mutex<Option<UnboundedSender<Message>>>,
}

impl HopStatus {
    /// Status of a hop that has no counters.
    #[cfg(test)]
    pub fn of(hop: SocketAddr, is_down: bool) -> HopStatus {
        HopStatus { hop, state: State::Up, is_down, probes: 0, failures: 0, falls: 0 }
    }
}

impl HopHealth {
    /// Returns whether a hop is known to be down.
    pub fn is_down(&self, hop: SocketAddr) -> bool {
        let states = self.states.read().unwrap_or_else(PoisonError::into_inner);
        states.get(&hop).is_some_and(|status| status.is_down)
    }

    /// States of all hops.
    pub fn statuses(&self) -> Vec<HopStatus> {
        let states = self.states.read().unwrap_or_else(PoisonError::into_inner);
        states.values().cloned().collect()
    }

    /// Requests a probe of a hop to which a flow could not connect. Hops that are not checked are
    /// ignored.
    pub fn suspect(&self, hop: SocketAddr) {
        let checks = self.checks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(checks) = &*checks {
            // There is no receiver while the proxy shuts down.
            let _ = checks.send(Message::Suspect(hop));
        }
    }

    /// Publishes the state of a hop.
    pub(super) fn publish(&self, status: HopStatus) {
        self.states.write().unwrap_or_else(PoisonError::into_inner).insert(status.hop, status);
    }

    /// Removes all hops except those that `is_kept` selects.
    pub(super) fn retain(&self, is_kept: impl Fn(SocketAddr) -> bool) {
        let mut states = self.states.write().unwrap_or_else(PoisonError::into_inner);
        states.retain(|hop, _| is_kept(*hop));
    }

    /// Sets the sender to the checks.
    pub(super) fn attach(&self, checks: UnboundedSender<Message>) {
        *self.checks.lock().unwrap_or_else(PoisonError::into_inner) = Some(checks);
    }
}
