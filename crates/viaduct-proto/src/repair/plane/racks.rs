//! Racks whose members are peers of the plane.

use super::Plane;
use crate::repair::racks::Observed;
use crate::repair::touched::Purpose;
use crate::time::Instant;

impl Plane {
    /// Finds out which members of racks are alive, and which weights they have. Chooses the owners
    /// of slices anew if that has changed.
    pub(super) fn look_at_racks(&mut self, now: Instant) {
        let (peers, lanes) = (&self.peers, &self.lanes.peers);
        let observed = |peer: usize| {
            let lanes = &peers[lanes[peer].owned.clone()];
            Observed {
                is_alive: lanes.iter().any(|lane| lane.was_heard_lately(now)),
                weight: lanes.iter().find_map(|lane| lane.weight()),
            }
        };
        let touched = &mut self.touched;
        let changed =
            |peer: usize| lanes[peer].owned.clone().for_each(|at| touched.add(Purpose::Facts, at));
        self.racks.look(now, observed, changed);
    }
}
