//! Peers with two paths: the path of each lane's messages, and the delay of datagrams that are
//! ahead of the packets that they concern.
//!
//! ```text
//!   site A                            path 0                            site B
//!     packets of lane 0 ══════════════ 30 ms ══════════════▶ tap
//!     their names and repairs ─┐                                          ▼ in the order sent
//!                              └────── 10 ms ──▶ delay line, 20 ms ──▶ receiver of lane 0
//!                                     path 1
//! ```
//!
//! A receiver would count packets as lost if their names arrived before the packets. The difference
//! of the two paths' delays is computed from the probes ([`crate::repair::liveness`]).

use super::Plane;
use super::delay_line::{DelayLine, Delayed};
use crate::repair::transport::Endpoint;
use crate::repair::wire::Datagram;
use crate::time::{Duration, Instant};

/// Interval at which the paths are checked.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Change of a path to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathChange {
    /// Name of the peer.
    pub peer: String,
    /// Index of the path.
    pub path: u8,
    /// True if the path is up now.
    pub is_up: bool,
}

/// State of the paths of all peers that have two paths.
#[derive(Debug, Default)]
pub(super) struct Paths {
    /// Path of the tap that is read.
    pub(super) current: u8,
    /// Time of the next check of the paths; `None` if no peer has several.
    pub(super) due: Option<Instant>,
    /// Changes that the caller has not taken yet.
    changes: Vec<PathChange>,
    /// Datagrams that are ahead of the packets that they concern.
    delayed: DelayLine,
}

impl Paths {
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        [self.due, self.delayed.poll_timeout()].into_iter().flatten().min()
    }
}

impl Plane {
    /// Sets the path over which the packets and datagrams handled from now on have arrived.
    pub fn set_path(&mut self, path: u8) {
        self.paths.current = path;
    }

    /// Returns the changes of paths since the last call.
    pub fn take_path_changes(&mut self) -> Vec<PathChange> {
        std::mem::take(&mut self.paths.changes)
    }

    /// Delays a message of lane `at` that has arrived over the other path. Returns false if the
    /// datagram must be handled now.
    pub(super) fn delay(
        &mut self,
        now: Instant,
        at: usize,
        from: Endpoint,
        datagram: &[u8],
    ) -> bool {
        let lane = &self.peers[at];
        let (_, own) = lane.key_and_lane();
        let is_message = matches!(Datagram::parse(datagram), Some(Datagram::Transport { .. }));
        if lane.path_state().is_none() || own == self.paths.current || !is_message {
            return false;
        }
        let Some(other) = self.lanes.find(self.peer_of(at), self.paths.current) else {
            return false;
        };
        let lead = lane.lead_of(now, &self.peers[other]);
        !lead.is_zero() && self.paths.delayed.push(now + lead, from, datagram)
    }

    /// Handles the delayed datagrams that are due.
    pub(super) fn release(&mut self, now: Instant) {
        while let Some(Delayed { from, mut datagram, .. }) = self.paths.delayed.pop(now) {
            let lane = match Datagram::parse(&datagram) {
                Some(Datagram::Transport { lane, receiver, .. }) => self.slot(lane, receiver),
                _ => None,
            };
            if let Some(at) = lane {
                self.accept(now, at, from, &mut datagram);
            }
        }
    }

    /// Records changes of the paths, and chooses the path of each lane's messages.
    pub(super) fn watch_paths(&mut self, now: Instant) {
        if self.paths.due.is_none_or(|due| now < due) {
            return;
        }
        self.paths.due = Some(now + LOOK_EVERY);
        for (peer, of) in self.lanes.peers.iter().enumerate().filter(|(_, of)| of.by_path) {
            let [first, second] = &mut self.peers[of.owned.clone()] else { continue };
            let states = (first.path_state(), second.path_state());
            let (Some(one), Some(other)) = states else { continue };
            first.choose_path(other);
            second.choose_path(one);
            let is_busy = [0, 1].map(|path| first.uses_path(path) || second.uses_path(path));
            for (lane, path) in [first, second].into_iter().zip(0..) {
                if lane.set_path_busy(now, is_busy[usize::from(path)]) {
                    self.touched.touch(of.owned.start + usize::from(path));
                }
                if let Some(is_up) = lane.take_path_change() {
                    let peer = self.configs[peer].name.clone();
                    self.paths.changes.push(PathChange { peer, path, is_up });
                }
            }
        }
    }
}
