//! Index of peers and lanes by the addresses of packets, and by the slots and hints in datagrams.

use std::collections::HashMap;

use super::lane_table::{LaneTable, PeerLanes};
use crate::repair::peer::Peer;
use crate::repair::site_table::SiteTable;
use crate::repair::wire::Hint;

/// Index of the peers and lanes of a plane.
#[derive(Default)]
pub(super) struct PeerIndex {
    /// Peer of each address.
    pub(super) sites: SiteTable,
    /// Lane that has each slot.
    pub(super) slots: HashMap<u16, usize>,
    /// Peer that sends initiations with each hint.
    pub(super) hints: HashMap<Hint, usize>,
}

impl PeerIndex {
    /// Replaces the slots and hints by those of these lanes.
    pub(super) fn enter(&mut self, peers: &[Peer], lanes: &LaneTable) {
        let slots = peers.iter().enumerate().map(|(at, peer)| (peer.session.slot, at));
        self.slots = slots.collect();
        let owned = lanes.peers.iter().enumerate().filter(|(_, of)| !of.owned.is_empty());
        let hint = |of: &PeerLanes| peers[of.owned.start].session.identities.hint_in;
        self.hints = owned.map(|(at, of)| (hint(of), at)).collect();
    }
}
