//! Peers and lanes of a plane: their replacement, and their handshake timestamps.

use std::collections::{HashMap, HashSet};

use super::lane_table::{LaneTable, PeerLanes};
use super::{LANES_EVERY, MAX_ALL_LANES, MAX_PEERS, PeersError, Plane};
use crate::keys::PublicKey;
use crate::repair::budget::Budget;
use crate::repair::clocks::Clocks;
use crate::repair::lanes::{LaneCount, Shares};
use crate::repair::peer::{Peer, PeerConfig, Place};
use crate::repair::racks::Racks;
use crate::repair::site_table::SiteTable;
use crate::repair::stats::PeerStats;
use crate::time::Instant;

/// Lane of a plane after a change.
enum NextLane {
    /// Lane that had this index before the change, and gets this config.
    Stays(usize, Box<PeerConfig>),
    Fresh(Box<Peer>),
}

impl Plane {
    /// Replaces the set of peers, completely or not at all. Peers that stay keep their sessions and
    /// received packets.
    pub fn change(&mut self, peers: Vec<PeerConfig>, now: Instant) -> Result<(), PeersError> {
        self.rebuild(peers, self.lanes.shares(), now)
    }

    /// Sets the shares whose lanes this plane owns. Lanes that were not owned before begin with a
    /// handshake.
    pub fn own(&mut self, shares: Shares, now: Instant) -> Result<(), PeersError> {
        self.rebuild(self.configs.clone(), shares, now)
    }

    /// Shares whose lanes this plane owns.
    pub fn shares(&self) -> Shares {
        self.lanes.shares()
    }

    pub(super) fn rebuild(
        &mut self,
        configs: Vec<PeerConfig>,
        shares: Shares,
        now: Instant,
    ) -> Result<(), PeersError> {
        if configs.len() > MAX_PEERS {
            return Err(PeersError::TooMany(configs.len()));
        }
        let lanes = self.lanes_of(&configs, shares, now);
        let all = lanes.peers.last().map_or(0, |last| last.owned.end);
        if all > MAX_ALL_LANES {
            return Err(PeersError::TooManyLanes(all));
        }
        let of_lanes = configs.iter().zip(&lanes.peers).flat_map(|(config, of)| {
            lanes.owned(of.count).map(|lane| (lane, config.of_lane(of.count, lane)))
        });
        let of_lanes: Vec<_> = of_lanes.collect();
        let budget = Budget::new(of_lanes.iter().map(|(_, config)| config.memory));
        let next = self.next_lanes(of_lanes, budget.limit(), now)?;
        self.remembered = self.clocks();
        // All peers are valid.
        (self.lanes, self.configs) = (lanes, configs);
        self.paths.due = self.lanes.peers.iter().any(|of| of.by_path).then_some(now);
        let mut old: Vec<_> = std::mem::take(&mut self.peers).into_iter().map(Some).collect();
        let peer = |next: NextLane| match next {
            NextLane::Stays(at, config) => {
                let mut peer = old[at].take()?;
                let changed = peer.change(now, *config);
                debug_assert!(changed.is_ok(), "the config was checked: {changed:?}");
                Some(peer)
            }
            NextLane::Fresh(peer) => Some(recalled(*peer, &self.remembered)),
        };
        self.peers = next.into_iter().filter_map(peer).collect();
        self.keep_counters(old.into_iter().flatten());
        self.budget = budget;
        self.index.sites = SiteTable::new(self.configs.iter().map(|config| &config.sites));
        self.peers.iter_mut().for_each(|peer| peer.repairs = peer.stats().repairs());
        self.repairs = self.peers.iter().map(|peer| peer.repairs).sum();
        self.enter_slots();
        let before = std::mem::replace(&mut self.racks, Racks::new(&self.configs));
        self.racks.keep_claims(before);
        self.look_at_racks(now);
        Ok(())
    }

    /// Decides for each lane, given by its number and config, whether the existing lane stays.
    /// `memory`: memory of all lanes, in bytes.
    fn next_lanes(
        &self,
        of_lanes: Vec<(u8, PeerConfig)>,
        memory: usize,
        now: Instant,
    ) -> Result<Vec<NextLane>, PeersError> {
        let mut free = (0..=u16::MAX).filter(|slot| !self.index.slots.contains_key(slot));
        let known = self.peers.iter().enumerate().map(|(at, old)| (old.key_and_lane(), at));
        let known: HashMap<(PublicKey, u8), usize> = known.collect();
        let mut taken = HashSet::new();
        let next = |(lane, config): (u8, PeerConfig)| {
            let name = config.name.clone();
            let refused = |error| PeersError::Peer(name, error);
            let stays = known.get(&(config.key, lane)).copied();
            match stays.filter(|at| self.peers[*at].stays(&config) && taken.insert(*at)) {
                Some(at) => {
                    config.check().map(|()| NextLane::Stays(at, Box::new(config))).map_err(refused)
                }
                None => {
                    let place = Place { slot: free.next().unwrap_or_default(), lane, memory };
                    let peer = Peer::new(&self.local, config, place, now).map_err(refused)?;
                    Ok(NextLane::Fresh(Box::new(peer)))
                }
            }
        };
        of_lanes.into_iter().map(next).collect()
    }

    /// Returns the lanes of these peers. Known peers keep their counters and the number of lanes
    /// that they want.
    fn lanes_of(&self, configs: &[PeerConfig], shares: Shares, now: Instant) -> LaneTable {
        let mut lanes = LaneTable::new(self.local.lanes, shares);
        let known: HashMap<PublicKey, &PeerLanes> =
            self.lanes.peers.iter().map(|of| (of.key, of)).collect();
        let mut first = 0;
        for config in configs {
            let known = known.get(&config.key);
            let peer_wants = known.map_or(LaneCount::ONE, |of| of.peer_wants);
            let by_path = config.paths.is_some();
            let count = if by_path { LaneCount::OF_PATHS } else { lanes.in_force(peer_wants) };
            let owned = first..first + lanes.owned(count).count();
            first = owned.end;
            let former = known.map_or_else(PeerStats::none, |of| of.former);
            let free_at = match known {
                Some(of) if of.count != count => now + LANES_EVERY,
                Some(of) => of.free_at,
                None => Instant::ZERO,
            };
            lanes.peers.push(PeerLanes {
                key: config.key,
                peer_wants,
                count,
                free_at,
                by_path,
                owned,
                former,
            });
        }
        lanes
    }

    /// Adds the counters of lanes that are no longer owned to the totals of their peers. The peer's
    /// last report goes to the new lane with the same number, if there is one, because the peer
    /// continues to report totals.
    fn keep_counters(&mut self, former: impl Iterator<Item = Peer>) {
        let heirs = self.peers.iter().enumerate().map(|(at, peer)| (peer.key_and_lane(), at));
        let heirs: HashMap<_, _> = heirs.collect();
        for lane in former {
            let key = lane.config.key;
            let mut stats = PeerStats { up: true, ..lane.stats() };
            if let Some(at) = heirs.get(&lane.key_and_lane()) {
                self.peers[*at].resume_reported(std::mem::take(&mut stats.reported));
            }
            if let Some(of) = self.lanes.peers.iter_mut().find(|of| of.key == key) {
                of.former.merge(&stats);
            }
        }
    }

    pub(super) fn enter_slots(&mut self) {
        self.index.enter(&self.peers, &self.lanes);
        self.deadlines.clear();
        self.touched.reset(self.peers.len());
    }

    /// Handshake timestamps of current and former peers, to be kept across a restart.
    pub fn clocks(&self) -> HashMap<PublicKey, Clocks> {
        let mut clocks = self.remembered.clone();
        for (key, of) in self.peers.iter().map(Peer::clocks) {
            let before = clocks.entry(key).or_default();
            *before = before.max(of);
        }
        clocks.retain(|_, of| *of != Clocks::default());
        let former = clocks.len().saturating_sub(self.configs.len());
        if former > MAX_PEERS {
            // The former peers with the oldest handshakes are forgotten.
            let present: HashSet<_> = self.configs.iter().map(|config| config.key).collect();
            let mut oldest: Vec<_> = clocks
                .iter()
                .filter(|(key, _)| !present.contains(*key))
                .map(|(key, of)| (of.heard.max(of.sent), *key))
                .collect();
            oldest.sort_unstable_by_key(|(latest, _)| *latest);
            let many = oldest.len().saturating_sub(MAX_PEERS);
            for (_, key) in oldest.iter().take(many) {
                clocks.remove(key);
            }
        }
        clocks
    }

    /// Takes over the handshake timestamps of an earlier run.
    pub fn remember(&mut self, clocks: HashMap<PublicKey, Clocks>) {
        self.remembered = clocks;
        let peers = std::mem::take(&mut self.peers).into_iter();
        self.peers = peers.map(|peer| recalled(peer, &self.remembered)).collect();
    }
}

/// Returns the peer with its handshake timestamps from earlier sessions.
fn recalled(mut peer: Peer, remembered: &HashMap<PublicKey, Clocks>) -> Peer {
    if let Some(clocks) = remembered.get(&peer.config.key) {
        peer.session.remember(*clocks);
    }
    peer
}
