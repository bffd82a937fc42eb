//! Lane of a peer with two paths: probes of its own path, and the path of its messages.
//!
//! ```text
//!   packets of the lane ══════════ own path ══════════▶
//!   probes              ─────────  own path  ─────────▶
//!   names, repairs, copies, requests, reports, handshakes ── own or other path, while it is up ──▶
//! ```

use std::net::SocketAddr;

use super::Peer;
use super::config::{PathsConfig, RepairPath};
use super::facts::PathFacts;
use crate::repair::liveness::{Liveness, PROBE, Probe};
use crate::repair::outbox::Outbox;
use crate::repair::section;
use crate::repair::transport::{Endpoint, Transport};
use crate::time::{Duration, Instant};

/// Maximum round trip of the other path for repairs to take that path, as a multiple of the round
/// trip of the packets' path: to switch to the other path, and to stay on it.
const MAX_LONGER: [u32; 2] = [2, 3];
/// Difference of round trips that does not matter.
const SLACK: Duration = Duration::from_millis(10);

/// Path of one lane, and its state.
pub(in crate::repair) struct OwnPath {
    pub(super) liveness: Liveness,
    /// True if the path was up at the last call of [`Peer::take_path_change`].
    was_up: bool,
    /// Index of the path that messages take.
    via: usize,
    /// Probes to send over the path.
    probes: Outbox,
}

impl OwnPath {
    /// Creates the state of the path with this index.
    pub(super) fn new(now: Instant, path: u8) -> OwnPath {
        OwnPath {
            liveness: Liveness::new(now),
            was_up: false,
            via: path.into(),
            probes: Outbox::new(),
        }
    }
}

/// State of a path, by which the path of messages is chosen.
#[derive(Clone, Copy, Debug)]
pub(in crate::repair) struct PathState {
    pub(in crate::repair) is_up: bool,
    rtt: Option<Duration>,
}

impl Peer {
    /// State of the lane's own path; `None` with a single path.
    pub(in crate::repair) fn path_state(&self) -> Option<PathState> {
        let liveness = &self.own_path.as_ref()?.liveness;
        Some(PathState { is_up: liveness.is_up(), rtt: liveness.rtt() })
    }

    /// Returns true if the path has come up since the last call, and false if it has gone down.
    pub(in crate::repair) fn take_path_change(&mut self) -> Option<bool> {
        let own = self.own_path.as_mut()?;
        let is_up = own.liveness.is_up();
        (std::mem::replace(&mut own.was_up, is_up) != is_up).then_some(is_up)
    }

    /// Returns whether the lane has traffic and its packets or messages take this path.
    pub(in crate::repair) fn uses_path(&self, path: u8) -> bool {
        let own = self.session.offer.lane;
        let via = self.own_path.as_ref().map_or(own, |of| of.via as u8);
        !self.is_idle() && (own == path || via == path)
    }

    /// Sets whether the lane's own path is used. Returns true if a probe may now be due earlier.
    pub(in crate::repair) fn set_path_busy(&mut self, now: Instant, is_busy: bool) -> bool {
        self.own_path.as_mut().is_some_and(|path| path.liveness.set_busy(now, is_busy))
    }

    /// Chooses the path of messages, given the state of the other path.
    pub(in crate::repair) fn choose_path(&mut self, other: PathState) {
        let (Some(paths), Some(own)) = (self.config.paths, self.path_state()) else { return };
        let lane = usize::from(self.session.offer.lane);
        let Some(path) = &mut self.own_path else { return };
        let was_other = path.via != lane;
        let is_other = takes_other(paths.repairs, was_other, own, other);
        path.via = if is_other { 1 - lane } else { lane };
        self.paths.endpoint = Some(at(paths.endpoints[path.via]));
        if let Some(sender) = &mut self.sender {
            sender.set_other_path(is_other);
        }
    }

    /// Destination of an initiation. Without a session, attempts alternate between the paths.
    pub(super) fn path_address(&self, paths: &PathsConfig) -> SocketAddr {
        let own = usize::from(self.session.offer.lane);
        let turn = self.paths.selector.unanswered() as usize % paths.endpoints.len();
        match &self.own_path {
            Some(path) if self.session.alive() => paths.endpoints[path.via],
            _ => paths.endpoints[(own + turn) % paths.endpoints.len()],
        }
    }

    /// Time by which datagrams of this lane that arrive over the path of `other` are ahead of
    /// packets that were sent at the same time.
    pub(in crate::repair) fn lead_of(&self, now: Instant, other: &Peer) -> Duration {
        /// Maximum time for which datagrams are delayed, in microseconds.
        const MAX_LEAD: u32 = 200_000;
        /// Allowance for variation of the delays, in microseconds.
        const VARIATION: u32 = 1_000;
        let path = |peer: &Peer| {
            let liveness = &peer.own_path.as_ref()?.liveness;
            liveness.offset().filter(|_| liveness.is_heard(now))
        };
        let (Some(own), Some(other)) = (path(self), path(other)) else { return Duration::ZERO };
        let lead = own.wrapping_sub(other).cast_signed().max(0).cast_unsigned() + VARIATION;
        Duration::from_micros(lead.min(MAX_LEAD).into())
    }

    pub(super) fn handle_probe(&mut self, now: Instant, body: &[u8]) -> Option<()> {
        let probe = Probe::parse(body)?;
        self.own_path.as_mut()?.liveness.handle_probe(now, probe);
        Some(())
    }

    /// Sends the probe that is due.
    pub(super) fn probe(&mut self, now: Instant) {
        let Some(path) = &mut self.own_path else { return };
        if let Some(probe) = path.liveness.handle_timeout(now) {
            let session = &mut self.session;
            path.probes.push_with(|out| {
                session.seal(out, |m| section::emit(PROBE, m, |body| probe.emit(body)))
            });
        }
    }

    /// Probes to send over the lane's own path, and their destination.
    pub(in crate::repair) fn probes(&self) -> Option<(Endpoint, &Outbox)> {
        Some((at(self.config.endpoint?), &self.own_path.as_ref()?.probes))
    }

    pub(super) fn clear_probes(&mut self) {
        if let Some(path) = &mut self.own_path {
            path.probes.clear();
        }
    }

    pub(super) fn path_facts(&self) -> Vec<PathFacts> {
        let facts = |path: &OwnPath| PathFacts {
            path: self.session.offer.lane,
            is_up: path.liveness.is_up(),
            rtt: path.liveness.rtt(),
            via: path.via as u8,
            packets: self.sender.as_ref().map_or(0, |sender| sender.stats.packets),
            incoming: self.receiver.stats().link,
            outgoing: self.reports.loss,
        };
        self.own_path.iter().map(facts).collect()
    }
}

fn at(address: SocketAddr) -> Endpoint {
    Endpoint { transport: Transport::Udp, address }
}

/// Returns whether messages take the path that packets do not take.
fn takes_other(policy: RepairPath, was_other: bool, own: PathState, other: PathState) -> bool {
    match (own.is_up, other.is_up, policy) {
        (_, false, _) | (true, true, RepairPath::Same) => false,
        (false, true, _) | (true, true, RepairPath::Other) => true,
        (true, true, RepairPath::Auto) => {
            let most = |rtt: Duration| rtt * MAX_LONGER[usize::from(was_other)] + SLACK;
            own.rtt.zip(other.rtt).is_some_and(|(own, other)| other <= most(own))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_take_a_path_that_is_up_and_short() {
        let path = |is_up, millis| PathState { is_up, rtt: Some(Duration::from_millis(millis)) };
        let takes = |policy, own, other| takes_other(policy, false, own, other);
        for policy in [RepairPath::Auto, RepairPath::Same, RepairPath::Other] {
            assert!(takes(policy, path(false, 10), path(true, 500)));
            assert!(!takes(policy, path(true, 10), path(false, 10)));
            assert!(!takes(policy, path(false, 10), path(false, 10)));
        }
        let (near, far) = (path(true, 20), path(true, 60));
        assert!(takes(RepairPath::Auto, far, near) && !takes(RepairPath::Auto, near, far));
        assert!(takes_other(RepairPath::Auto, true, near, far), "messages take this path already");
        assert!(takes(RepairPath::Other, near, far) && !takes(RepairPath::Same, far, near));
    }
}
