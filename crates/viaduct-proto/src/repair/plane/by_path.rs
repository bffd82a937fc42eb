//! Peers with two paths: which path each lane's messages take, and datagrams that are ahead of the
//! packets that they concern.
//!
//! ```text
//!   site A                            path 0                            site B
//!     packets of lane 0 ══════════════ 30 ms ══════════════▶ tap
//!     their names and repairs ─┐                                          ▼ in the order sent
//!                              └────── 10 ms ──▶ delay line, 20 ms ──▶ receiver of lane 0
//!                                     path 1
//! ```
//!
//! A receiver would take packets for lost if their names arrived before them. The difference of the
//! two paths' delays follows from the probes ([`crate::repair::liveness`]).

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::Plane;
use crate::repair::transport::Endpoint;
use crate::repair::wire::Datagram;
use crate::time::{Duration, Instant};

/// Interval at which the paths are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Limit of delayed datagrams, and of their bytes; further ones are handled at once.
const MAX_DELAYED: usize = 8_192;
const MAX_DELAYED_BYTES: usize = 8 << 20;

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

/// Datagrams that wait until the packets that were sent before them have arrived.
#[derive(Debug, Default)]
pub(super) struct DelayLine {
    waiting: BinaryHeap<Delayed>,
    bytes: usize,
    /// Number of the next datagram; it keeps datagrams with the same due time in order.
    next: u64,
}

#[derive(Debug, PartialEq, Eq)]
struct Delayed {
    due: Instant,
    number: u64,
    from: Endpoint,
    datagram: Vec<u8>,
}

impl Ord for Delayed {
    /// The greatest is due first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.due, other.number).cmp(&(self.due, self.number))
    }
}

impl PartialOrd for Delayed {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl DelayLine {
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.waiting.peek().map(|first| first.due)
    }

    /// Adds a datagram; returns false if there is no room.
    fn push(&mut self, due: Instant, from: Endpoint, datagram: &[u8]) -> bool {
        let bytes = self.bytes + datagram.len();
        if self.waiting.len() >= MAX_DELAYED || bytes > MAX_DELAYED_BYTES {
            return false;
        }
        let datagram = datagram.to_vec();
        self.waiting.push(Delayed { due, number: self.next, from, datagram });
        (self.bytes, self.next) = (bytes, self.next + 1);
        true
    }

    fn pop(&mut self, now: Instant) -> Option<Delayed> {
        self.waiting.peek().filter(|first| first.due <= now)?;
        let first = self.waiting.pop()?;
        self.bytes -= first.datagram.len();
        Some(first)
    }
}

impl Plane {
    /// Sets the path by which packets and datagrams handled from now on have come.
    pub fn set_path(&mut self, path: u8) {
        self.path = path;
    }

    /// Changes of paths since the last call.
    pub fn take_path_changes(&mut self) -> Vec<PathChange> {
        std::mem::take(&mut self.path_changes)
    }

    /// Delays a message of lane `at` that has come by the other path; returns false if it must be
    /// handled now.
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
        if lane.path_state().is_none() || own == self.path || !is_message {
            return false;
        }
        let Some(other) = self.lanes.find(self.peer_of(at), self.path) else { return false };
        let lead = lane.lead_of(now, &self.peers[other]);
        !lead.is_zero() && self.delayed.push(now + lead, from, datagram)
    }

    /// Handles the delayed datagrams that are due.
    pub(super) fn release(&mut self, now: Instant) {
        while let Some(Delayed { from, mut datagram, .. }) = self.delayed.pop(now) {
            let lane = match Datagram::parse(&datagram) {
                Some(Datagram::Transport { lane, receiver, .. }) => self.slot(lane, receiver),
                _ => None,
            };
            if let Some(at) = lane {
                self.accept(now, at, from, &mut datagram);
            }
        }
    }

    /// Notes changes of the paths, and chooses the path of each lane's messages.
    pub(super) fn watch_paths(&mut self, now: Instant) {
        if self.paths_due.is_none_or(|due| now < due) {
            return;
        }
        self.paths_due = Some(now + LOOK_EVERY);
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
                    self.path_changes.push(PathChange { peer, path, is_up });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delayed_datagrams_come_out_by_time_and_in_order() {
        let at = |millis| Instant::ZERO + Duration::from_millis(millis);
        let from = Endpoint::from(std::net::SocketAddr::from(([192, 0, 2, 1], 7_400)));
        let mut line = DelayLine::default();
        for (due, byte) in [(20, 1), (10, 2), (20, 3)] {
            assert!(line.push(at(due), from, &[byte]));
        }
        assert_eq!((line.poll_timeout(), line.pop(at(9))), (Some(at(10)), None));
        let out: Vec<_> = std::iter::from_fn(|| line.pop(at(20))).collect();
        let out: Vec<_> = out.into_iter().map(|of| of.datagram[0]).collect();
        assert_eq!((out, line.bytes), (vec![2, 1, 3], 0));
        assert!(!line.push(at(1), from, &vec![0; MAX_DELAYED_BYTES + 1]));
    }
}
