//! Peers that are members of a rack: the member that carries the packets to a slice of its site,
//! and the member that carries the packets to a slice of this site.
//!
//! ```text
//!   packet ─▶ SiteTable: first member ─┬─ leaves ──▶ slice of the peer's site ─▶ owner
//!                                      └─ arrives ─▶ slice of this site ───────▶ owner
//!
//!   check, every 50 ms: members heard from recently, and the weights that they report ─▶ owners
//!   claims of members, which see packets of the slice ─▶ contest ─▶ owner instead
//! ```
//!
//! The ranking says which member should carry a slice, claims say which one does: routers may need
//! more or less time than the gateways to notice a death, a drain or a return.
//!
//! A wrong owner impairs only the protection: the sender's repairs then go to a gateway that does
//! not see the packets, or the receiver gives packets to a session that has no repairs for them,
//! and counts them as lost in another session.

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::Range;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::claims::{Claim, Claims};
use super::contest::{Claimed, Contest};
use super::peer::PeerConfig;
use super::prefix_table::PrefixTable;
use crate::rack::{self, Member};
use crate::time::{Duration, Instant};

/// Kind of the section with the sender's weight in its rack, one byte.
pub(super) const MEMBER: u8 = 9;

/// Interval at which the members' state is checked.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Maximum number of moved slices whose packets are handed over between two checks of the members.
const MAX_HANDOVERS: u32 = 128;

/// Membership of the two gateways in racks of their sites.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RackConfig {
    /// Weight of this gateway in its site's rack, as sent to the peer; `None` if it is in no rack.
    pub own_weight: Option<u8>,
    /// Slices of both sites that this gateway may carry as a member of its site's rack.
    pub own_slices: Vec<IpNet>,
    /// Membership of the peer. The members of a rack follow one another in the list of peers.
    pub peer: Option<PeerMember>,
}

/// Peer that is a member of a rack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerMember {
    /// Name of the rack.
    pub rack: String,
    /// Weight in the config, used until the peer reports its weight.
    pub weight: u8,
    /// Prefixes of both sites whose slices the member owns while it is alive.
    pub slices: Vec<IpNet>,
}

/// Number of slices that a member of a rack owns, at its own site and at this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceCount {
    /// Slices of the peer's site: packets to them are encoded for the peer.
    pub to: usize,
    /// Slices of this site: the peer encodes packets to them.
    pub from: usize,
}

/// Slice of this site that a claim has moved to another member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moved {
    /// Peer that owned the slice before.
    pub(super) from: usize,
    pub(super) slice: IpNet,
}

/// Observed state of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Observed {
    pub(super) is_alive: bool,
    /// Weight that the member reports.
    pub(super) weight: Option<u8>,
}

/// Racks of all peer sites.
#[derive(Debug, Default)]
pub(super) struct Racks {
    racks: Vec<Rack>,
    /// Index of the rack of each peer; empty if there are no racks.
    of_peer: Vec<Option<u32>>,
    due: Option<Instant>,
}

#[derive(Debug)]
struct Rack {
    /// Indices of the peers that are members.
    peers: Range<usize>,
    members: Vec<Member>,
    is_alive: Vec<bool>,
    /// Weights in the config.
    weights: Vec<u8>,
    to: Owners,
    from: Owners,
    /// False if the only member is a gateway without a rack.
    is_rack: bool,
    /// Slices that this gateway carries to and from the rack's site; `None` if it is in no rack.
    claims: Option<Claims>,
    /// Number of moved slices whose packets may still be handed over before the next check of the
    /// members.
    handovers: u32,
}

/// Owners of the slices of one site.
#[derive(Debug)]
struct Owners {
    slices: Vec<IpNet>,
    table: PrefixTable<u32>,
    rankings: Vec<Vec<usize>>,
    /// Index of the member that owns each slice. If no member is alive, the first in the ranking.
    owners: Vec<usize>,
    /// Claims of members, by slice and lane.
    contests: HashMap<(u32, u8), Contest>,
}

impl Racks {
    /// Creates the racks of these peers. No member is alive yet.
    pub(super) fn new(configs: &[PeerConfig]) -> Racks {
        let mut racks = Racks::default();
        let name = |config: &PeerConfig| config.rack.peer.as_ref().map(|peer| peer.rack.clone());
        let mut first = 0;
        for group in configs.chunk_by(|a, b| name(a).is_some() && name(a) == name(b)) {
            let peers = first..first + group.len();
            first = peers.end;
            // A member of a rack also sends its claims to a gateway without a rack.
            if name(&group[0]).is_some() || group[0].rack.own_weight.is_some() {
                racks.racks.push(Rack::new(peers, group));
            }
        }
        if !racks.racks.is_empty() {
            racks.of_peer = vec![None; configs.len()];
            for (at, rack) in (0..).zip(&racks.racks) {
                racks.of_peer[rack.peers.clone()].fill(Some(at));
            }
            racks.due = Some(Instant::ZERO);
        }
        racks
    }

    /// Peer for which packets to `destination` are encoded, given any member `peer` of its rack.
    /// `lane` returns a packet's lane at a peer.
    pub(super) fn to(&self, peer: usize, destination: IpAddr, lane: impl Fn(usize) -> u8) -> usize {
        let owner = |rack: &Rack| rack.owner(&rack.to, destination, lane);
        self.rack(peer).and_then(owner).unwrap_or(peer)
    }

    /// Peer that encodes packets to `destination`, given any member `peer` of its rack. `lane`
    /// returns a packet's lane at a peer.
    pub(super) fn from(
        &self,
        peer: usize,
        destination: IpAddr,
        lane: impl Fn(usize) -> u8,
    ) -> usize {
        let owner = |rack: &Rack| rack.owner(&rack.from, destination, lane);
        self.rack(peer).and_then(owner).unwrap_or(peer)
    }

    /// Records a packet to or from the site of `peer`. Returns whether this gateway did not carry
    /// the packet's slice on this lane before: claims must then be sent immediately.
    pub(super) fn carry(
        &mut self,
        now: Instant,
        peer: usize,
        destination: IpAddr,
        lane: impl Fn(usize) -> u8,
    ) -> bool {
        let claims = self.rack_mut(peer).and_then(|rack| rack.claims.as_mut());
        claims.is_some_and(|claims| claims.carry(now, destination, lane(peer)))
    }

    /// Returns whether the peer was alive at the last check, or is not a member of a rack.
    pub(super) fn is_alive(&self, peer: usize) -> bool {
        self.rack(peer).is_none_or(|rack| rack.is_alive[peer - rack.peers.start])
    }

    /// Peers of the rack of `peer`.
    pub(super) fn members(&self, peer: usize) -> Range<usize> {
        self.rack(peer).map_or(peer..peer + 1, |rack| rack.peers.clone())
    }

    /// Body of a section with the new claims on a lane, for the rack of `peer`; `None` if they
    /// wait.
    pub(super) fn fresh_claims(&mut self, now: Instant, peer: usize, lane: u8) -> Option<Vec<u8>> {
        self.rack_mut(peer)?.claims.as_mut()?.fresh(now, lane)
    }

    /// Claims to send now, each with peers, lane and section body: those of a heartbeat that is
    /// due, or new claims that have waited.
    pub(super) fn heartbeats(&mut self, now: Instant) -> Vec<(Range<usize>, u8, Vec<u8>)> {
        let of_rack = |rack: &mut Rack| {
            let (peers, claims) = (rack.peers.clone(), rack.claims.as_mut());
            let bodies = claims.map(|claims| claims.heartbeat(now)).unwrap_or_default();
            bodies.into_iter().map(move |(lane, body)| (peers.clone(), lane, body))
        };
        self.racks.iter_mut().flat_map(of_rack).collect()
    }

    /// Records a claim that `peer` has sent on this lane. Returns the slice if it belongs to this
    /// site and the claim has made the peer the slice's owner, but at most [`MAX_HANDOVERS`] slices
    /// between two checks of the members.
    pub(super) fn claim(
        &mut self,
        now: Instant,
        (peer, lane): (usize, u8),
        claim: Claim,
    ) -> Option<Moved> {
        let rack = self.rack_mut(peer)?;
        let member = peer - rack.peers.start;
        let packets = claim.packets;
        let claimed = Claimed { member, since: now - claim.age, at: now, packets };
        rack.to.claim(&rack.is_alive, (claim.address, lane), claimed);
        let (slice, former) = rack.from.claim(&rack.is_alive, (claim.address, lane), claimed)?;
        rack.handovers = rack.handovers.checked_sub(1)?;
        Some(Moved { from: rack.peers.start + former, slice })
    }

    /// Takes over from `before` the claims of racks that are unchanged, and this gateway's claims
    /// to them.
    pub(super) fn keep_claims(&mut self, before: Racks) {
        for mut old in before.racks {
            let is_same = |new: &&mut Rack| {
                let keys =
                    |rack: &Rack| -> Vec<_> { rack.members.iter().map(|of| of.key).collect() };
                keys(new) == keys(&old)
                    && new.to.slices == old.to.slices
                    && new.from.slices == old.from.slices
            };
            let Some(new) = self.racks.iter_mut().find(is_same) else { continue };
            new.to.contests = std::mem::take(&mut old.to.contests);
            new.from.contests = std::mem::take(&mut old.from.contests);
            let slices = |claims: &Option<Claims>| claims.as_ref().map(|of| of.slices.clone());
            if slices(&new.claims) == slices(&old.claims) {
                new.claims = old.claims;
            }
        }
    }

    fn rack_mut(&mut self, peer: usize) -> Option<&mut Rack> {
        let rack = (*self.of_peer.get(peer)?)?;
        self.racks.get_mut(rack as usize)
    }

    fn rack(&self, peer: usize) -> Option<&Rack> {
        let rack = (*self.of_peer.get(peer)?)?;
        self.racks.get(rack as usize)
    }

    /// Number of slices that the peer owns; `None` if it is not a member of a rack.
    pub(super) fn slices(&self, peer: usize) -> Option<SliceCount> {
        let rack = self.rack(peer).filter(|rack| rack.is_rack)?;
        let member = peer - rack.peers.start;
        Some(SliceCount { to: rack.to.count(member), from: rack.from.count(member) })
    }

    /// Time of the next check of the members.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    /// Returns whether a check of the members is due.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// Updates the members' observed state. Calls `changed` with each member whose slices may have
    /// changed.
    pub(super) fn look(
        &mut self,
        now: Instant,
        observed: impl Fn(usize) -> Observed,
        mut changed: impl FnMut(usize),
    ) {
        self.due = self.due.map(|_| now + LOOK_EVERY);
        for rack in &mut self.racks {
            rack.handovers = MAX_HANDOVERS;
            let has_changed = rack.look(&observed);
            if has_changed {
                // Routers may choose other members now, so older claims no longer count.
                rack.to.contests.retain(|_, contest| contest.is_recent(now));
                rack.from.contests.retain(|_, contest| contest.is_recent(now));
            }
            rack.to.settle(now, &rack.is_alive);
            rack.from.settle(now, &rack.is_alive);
            if has_changed {
                rack.peers.clone().for_each(&mut changed);
            }
        }
    }
}

impl Rack {
    fn new(peers: Range<usize>, configs: &[PeerConfig]) -> Rack {
        let member = |config: &PeerConfig| {
            let (weight, slices) = config
                .rack
                .peer
                .as_ref()
                .map_or((1, Vec::new()), |of| (of.weight, of.slices.clone()));
            Member { key: config.key, weight, slices }
        };
        let members: Vec<Member> = configs.iter().map(member).collect();
        let sites = &configs[0].sites;
        let (to, from) =
            (Owners::new(&sites.remote, &members), Owners::new(&sites.local, &members));
        let weights = members.iter().map(|member| member.weight).collect();
        let rack = &configs[0].rack;
        let claims = rack.own_weight.map(|_| Claims::new(rack.own_slices.clone()));
        Rack {
            peers,
            is_alive: vec![false; members.len()],
            weights,
            members,
            to,
            from,
            is_rack: rack.peer.is_some(),
            claims,
            handovers: MAX_HANDOVERS,
        }
    }

    /// Peer that owns the slice of `destination`; `None` if no slice contains this address.
    fn owner(&self, of: &Owners, destination: IpAddr, lane: impl Fn(usize) -> u8) -> Option<usize> {
        let slice = of.table.find(destination)?;
        let ranked = *of.owners.get(slice as usize)?;
        if of.contests.is_empty() {
            return Some(self.peers.start + ranked);
        }
        Some(self.peers.start + of.owner(slice, lane(self.peers.start + ranked))?)
    }

    /// Updates the members' observed state; returns whether it has changed.
    fn look(&mut self, observed: impl Fn(usize) -> Observed) -> bool {
        let (mut has_changed, mut has_other_weights) = (false, false);
        for (at, peer) in self.peers.clone().enumerate() {
            let Observed { is_alive, weight } = observed(peer);
            let weight = weight.unwrap_or(self.weights[at]);
            has_changed |= std::mem::replace(&mut self.is_alive[at], is_alive) != is_alive;
            has_other_weights |= std::mem::replace(&mut self.members[at].weight, weight) != weight;
        }
        if has_other_weights {
            self.to.rank(&self.members);
            self.from.rank(&self.members);
        }
        if has_changed || has_other_weights {
            self.to.choose(&self.is_alive);
            self.from.choose(&self.is_alive);
        }
        has_changed || has_other_weights
    }
}

impl Owners {
    fn new(prefixes: &[IpNet], members: &[Member]) -> Owners {
        let slices = rack::slices(prefixes, members);
        let mut table = PrefixTable::default();
        (0..).zip(&slices).for_each(|(at, slice)| table.insert(slice, at));
        let mut owners = Owners {
            slices,
            table,
            rankings: Vec::new(),
            owners: Vec::new(),
            contests: HashMap::new(),
        };
        owners.rank(members);
        owners.choose(&vec![false; members.len()]);
        owners
    }

    fn rank(&mut self, members: &[Member]) {
        self.rankings = self.slices.iter().map(|slice| rack::ranking(slice, members)).collect();
    }

    fn choose(&mut self, is_alive: &[bool]) {
        let owner = |ranking: &Vec<usize>| rack::owner(ranking, |at| is_alive[at]).unwrap_or(0);
        self.owners = self.rankings.iter().map(owner).collect();
    }

    /// Member that owns a slice on this lane.
    fn owner(&self, slice: u32, lane: u8) -> Option<usize> {
        let claimed = self.contests.get(&(slice, lane)).and_then(Contest::owner);
        claimed.or(self.owners.get(slice as usize).copied())
    }

    /// Records a claim. If the claim has made its member the owner, returns the slice and its
    /// former owner.
    fn claim(
        &mut self,
        is_alive: &[bool],
        (address, lane): (IpAddr, u8),
        claimed: Claimed,
    ) -> Option<(IpNet, usize)> {
        let slice = self.table.find(address)?;
        let former = self.owner(slice, lane)?;
        let contest = self.contests.entry((slice, lane)).or_default();
        contest.claim(claimed);
        contest.settle(claimed.at, is_alive);
        let is_new = former != claimed.member && contest.owner() == Some(claimed.member);
        is_new.then(|| (self.slices[slice as usize], former))
    }

    /// Settles all contests, and forgets those without valid claims.
    fn settle(&mut self, now: Instant, is_alive: &[bool]) {
        self.contests.retain(|_, contest| contest.settle(now, is_alive));
    }

    fn count(&self, member: usize) -> usize {
        self.owners.iter().filter(|owner| **owner == member).count()
    }
}
