//! Peers that are members of a rack: the member to which packets for a slice of its site go, and
//! the one from which packets for a slice of this site come.
//!
//! ```text
//!   packet ─▶ SiteTable: first member ─┬─ leaves ──▶ slice of the peer's site ─▶ owner
//!                                      └─ arrives ─▶ slice of this site ───────▶ owner
//!
//!   look, each 50 ms: members that were heard lately, and the weights that they report ─▶ owners
//!   claim of a member, whose packets it sees ─▶ owner instead, while the claim is valid
//! ```
//!
//! The ranking says which member should carry a slice, a claim says which one does: routers may
//! need more or less time than the gateways to notice a death, a drain or a return.
//!
//! A wrong owner impairs only the protection: the sender's repairs then go to a gateway that does
//! not see the packets, or the receiver gives packets to a session that has no repairs for them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::Range;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::claims::{Claim, VALID};
use super::peer::PeerConfig;
use super::prefix_table::PrefixTable;
use crate::rack::{self, Member};
use crate::time::{Duration, Instant};

/// Kind of the section with the sender's weight in its rack, one byte.
pub(super) const MEMBER: u8 = 9;

/// Interval at which the members are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Membership of the two gateways in racks of their sites.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RackConfig {
    /// Weight of this gateway in its site's rack, as told to the peer; `None` if it is in no rack.
    pub own_weight: Option<u8>,
    /// Slices of both sites, if this gateway is in a rack.
    pub slices: Vec<IpNet>,
    /// Membership of the peer. The members of a rack follow one another in the list of peers.
    pub peer: Option<PeerMember>,
}

/// Peer that is a member of a rack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerMember {
    /// Name of the rack.
    pub rack: String,
    /// Weight in the config, used until the peer reports its own.
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

/// Slice that another member owns since its claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moved {
    /// Peer that owned it before.
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
    /// Index of the rack of each peer; empty without racks.
    of_peer: Vec<Option<u32>>,
    due: Option<Instant>,
}

#[derive(Debug)]
struct Rack {
    /// Indices of the peers that are the members.
    peers: Range<usize>,
    members: Vec<Member>,
    is_alive: Vec<bool>,
    /// Weights in the config.
    weights: Vec<u8>,
    to: Owners,
    from: Owners,
}

/// Owners of the slices of one site.
#[derive(Debug)]
struct Owners {
    slices: Vec<IpNet>,
    table: PrefixTable<u32>,
    rankings: Vec<Vec<usize>>,
    /// Owner of each slice: the index of a member. If none is alive, the first of the ranking.
    owners: Vec<usize>,
    /// Claims, by slice and lane.
    claims: HashMap<(u32, u8), Claimed>,
}

/// Claim of a member.
#[derive(Clone, Copy, Debug)]
struct Claimed {
    member: usize,
    /// Time of the member's first packet.
    since: Instant,
    until: Instant,
}

impl Racks {
    /// Creates the racks of these peers, of which no member is alive yet.
    pub(super) fn new(configs: &[PeerConfig]) -> Racks {
        let mut racks = Racks::default();
        let name = |config: &PeerConfig| config.rack.peer.as_ref().map(|peer| peer.rack.clone());
        let mut first = 0;
        for group in configs.chunk_by(|a, b| name(a).is_some() && name(a) == name(b)) {
            let peers = first..first + group.len();
            first = peers.end;
            if name(&group[0]).is_some() {
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

    /// Peer that packets to `destination` are encoded for, given any member `peer` of its rack.
    /// `lane` returns a packet's lane at a peer.
    pub(super) fn to(
        &self,
        now: Instant,
        peer: usize,
        destination: IpAddr,
        lane: impl Fn(usize) -> u8,
    ) -> usize {
        let owner = |rack: &Rack| rack.owner(now, &rack.to, destination, lane);
        self.rack(peer).and_then(owner).unwrap_or(peer)
    }

    /// Peer that encodes packets to `destination`, given any member `peer` of its rack. `lane`
    /// returns a packet's lane at a peer.
    pub(super) fn from(
        &self,
        now: Instant,
        peer: usize,
        destination: IpAddr,
        lane: impl Fn(usize) -> u8,
    ) -> usize {
        let owner = |rack: &Rack| rack.owner(now, &rack.from, destination, lane);
        self.rack(peer).and_then(owner).unwrap_or(peer)
    }

    /// Takes over a claim that `peer` has sent on this lane. Returns the slice if the claim changes
    /// its owner, and packets of the slice arrive here.
    pub(super) fn claim(
        &mut self,
        now: Instant,
        (peer, lane): (usize, u8),
        claim: Claim,
    ) -> Option<Moved> {
        let rack = (*self.of_peer.get(peer)?)?;
        let rack = self.racks.get_mut(rack as usize)?;
        let member = peer - rack.peers.start;
        let since = now - claim.age;
        let claimed = Claimed { member, since, until: now + VALID };
        rack.to.claim((now, &rack.is_alive), (claim.address, lane), claimed);
        let (slice, from) =
            rack.from.claim((now, &rack.is_alive), (claim.address, lane), claimed)?;
        Some(Moved { from: rack.peers.start + from, slice })
    }

    fn rack(&self, peer: usize) -> Option<&Rack> {
        let rack = (*self.of_peer.get(peer)?)?;
        self.racks.get(rack as usize)
    }

    /// Number of slices that the peer owns; `None` if it is no member of a rack.
    pub(super) fn slices(&self, peer: usize) -> Option<SliceCount> {
        let rack = self.rack(peer)?;
        let member = peer - rack.peers.start;
        Some(SliceCount { to: rack.to.count(member), from: rack.from.count(member) })
    }

    /// Time of the next look at the members.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    /// Returns whether the members must be looked at.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// Takes over the observed state of the members. Calls `changed` with each member whose slices
    /// may have changed.
    pub(super) fn look(
        &mut self,
        now: Instant,
        observed: impl Fn(usize) -> Observed,
        mut changed: impl FnMut(usize),
    ) {
        self.due = self.due.map(|_| now + LOOK_EVERY);
        for rack in &mut self.racks {
            rack.to.claims.retain(|_, claim| claim.until > now);
            rack.from.claims.retain(|_, claim| claim.until > now);
            if rack.look(&observed) {
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
        Rack { peers, is_alive: vec![false; members.len()], weights, members, to, from }
    }

    /// Peer that owns the slice of `destination`; `None` if no slice has this address.
    fn owner(
        &self,
        now: Instant,
        of: &Owners,
        destination: IpAddr,
        lane: impl Fn(usize) -> u8,
    ) -> Option<usize> {
        let slice = of.table.find(destination)?;
        let lane = lane(self.peers.start + of.owners.get(slice as usize)?);
        Some(self.peers.start + of.owner((now, &self.is_alive), slice, lane)?)
    }

    /// Takes over the observed state; returns whether it has changed.
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
            claims: HashMap::new(),
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
    fn owner(&self, (now, is_alive): (Instant, &[bool]), slice: u32, lane: u8) -> Option<usize> {
        let valid = |claim: &&Claimed| claim.until > now && is_alive[claim.member];
        let claimed = self.claims.get(&(slice, lane)).filter(valid).map(|claim| claim.member);
        claimed.or(self.owners.get(slice as usize).copied())
    }

    /// Takes over a claim, unless another member has seen its first packet later. Returns the slice
    /// and its former owner if the owner changes.
    fn claim(
        &mut self,
        (now, is_alive): (Instant, &[bool]),
        (address, lane): (IpAddr, u8),
        claimed: Claimed,
    ) -> Option<(IpNet, usize)> {
        let slice = self.table.find(address)?;
        let former = self.owner((now, is_alive), slice, lane)?;
        let before = self.claims.get(&(slice, lane)).filter(|before| {
            before.until > now && is_alive[before.member] && before.member != claimed.member
        });
        if before.is_some_and(|before| before.since > claimed.since) {
            return None;
        }
        self.claims.insert((slice, lane), claimed);
        let is_other = self.owner((now, is_alive), slice, lane) != Some(former);
        is_other.then(|| (self.slices[slice as usize], former))
    }

    fn count(&self, member: usize) -> usize {
        self.owners.iter().filter(|owner| **owner == member).count()
    }
}
