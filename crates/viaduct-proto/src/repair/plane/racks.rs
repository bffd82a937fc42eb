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

    /// Takes over the claims that the peer of lane `at` has sent. Packets of a claimed slice may
    /// have arrived before the claim, and were expected from another member.
    pub(super) fn take_claims(&mut self, now: Instant, at: usize) {
        let claims = self.peers[at].take_claims();
        if claims.is_empty() {
            return;
        }
        let hint = self.peers[at].session.identities.hint_in;
        let Some(&peer) = self.index.hints.get(&hint) else { return };
        let (_, lane) = self.peers[at].key_and_lane();
        for claim in claims {
            let Some(moved) = self.racks.claim(now, (peer, lane), claim) else { continue };
            let Some(former) = self.lanes.find(moved.from, lane) else { continue };
            for (came, mut packet) in self.peers[former].receiver.unmatched(now, &moved.slice) {
                self.peer(at).handle_incoming(now, came, &mut packet);
            }
        }
    }
}
