//! Racks whose members are peers of the plane.

use std::ops::Range;

use super::Plane;
use crate::repair::racks::Observed;
use crate::repair::touched::Purpose;
use crate::time::Instant;
use crate::wire::ip::Header;

impl Plane {
    /// Checks which members of racks are alive, and which weights they have. If any of this has
    /// changed, chooses the owners of slices again.
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
        for (peers, lane, body) in self.racks.heartbeats(now) {
            self.claim(peers, lane, &body);
        }
    }

    /// Records a packet to or from the site of `peer`. If it is the first packet of a slice, claims
    /// the slice immediately, before the packet's name is sent.
    pub(super) fn carry(&mut self, now: Instant, peer: usize, header: &Header) {
        let (lanes, path) = (&self.lanes, self.paths.current);
        let lane = |peer| lanes.number(peer, header, path);
        if !self.racks.carry(now, peer, header.destination, lane) {
            return;
        }
        let lane = lane(peer);
        if let Some(body) = self.racks.fresh_claims(now, peer, lane) {
            self.claim(self.racks.members(peer), lane, &body);
        }
    }

    /// Sends claims to peers.
    fn claim(&mut self, peers: Range<usize>, lane: u8, body: &[u8]) {
        for peer in peers {
            if let Some(at) = self.lanes.find(peer, lane) {
                self.peer(at).claim(body);
            }
        }
    }

    /// Handles the claims that the peer of lane `at` has sent. Hands over to this peer the packets
    /// of a claimed slice that arrived before the claim, when they were expected from another
    /// member.
    pub(super) fn take_claims(&mut self, now: Instant, at: usize) {
        let claims = self.peers[at].take_claims();
        if claims.is_empty() {
            return;
        }
        let hint = self.peers[at].session.identities.hint_in;
        let Some(&peer) = self.index.hints.get(&hint) else { return };
        // A member that has just returned counts as alive immediately.
        if !self.racks.is_alive(peer) {
            self.look_at_racks(now);
        }
        let (_, lane) = self.peers[at].key_and_lane();
        for claim in claims {
            let Some(moved) = self.racks.claim(now, (peer, lane), claim) else { continue };
            let Some(former) = self.lanes.find(moved.from, lane) else { continue };
            let unmatched = self.peers[former].receiver.unmatched(now, &moved.slice);
            let peer = self.peer(at);
            unmatched.into_iter().for_each(|(came, mut packet)| {
                peer.adopt(now, came, &mut packet);
            });
        }
    }
}
