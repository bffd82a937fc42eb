//! Rack: several gateways of one site, its *members*, divide packets by their destination
//! (Maelstrom, 4.6).
//!
//! ```text
//!   destination ─▶ slice: the longest one ─▶ ranking of the members ─▶ owner: the first member
//!                  that contains it          by rendezvous hashing       that is alive
//! ```
//!
//! Members need no agreement. A ranking follows from a slice and the members' keys, weights and
//! preferred slices, so each gateway computes the same one from the same config. If a member dies,
//! only its slices change owners: each goes to the next member in its ranking. If the weight of a
//! member rises, slices move only to that member. While gateways differ in which members they
//! consider alive, they compute different owners for some slices, until a member claims them
//! ([`crate::repair`]).

use std::cmp::Reverse;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::keys::PublicKey;
use crate::time::Duration;

/// Maximum number of members of a rack.
pub const MAX_MEMBERS: usize = 32;
/// Maximum weight of a member.
pub const MAX_WEIGHT: u8 = 100;

/// Interval at which members tell each peer that they are alive.
pub const HEARTBEAT: Duration = Duration::from_millis(200);
/// Time without a message after which a member is considered dead: three heartbeats may be lost.
pub const DEAD_AFTER: Duration = Duration::from_millis(700);

/// Additional prefix bits of a slice, compared with the prefix that it divides: 16 slices.
const SLICE_BITS: u8 = 4;

/// Member of a rack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Public key, which identifies the member.
    pub key: PublicKey,
    /// Weight: the member's number of slices is proportional to it. A member with weight 0 is
    /// drained: it owns a slice only if no other member is alive.
    pub weight: u8,
    /// Prefixes whose slices the member owns while it is alive and not drained. If several members
    /// list a slice, the one with the longest prefix owns it.
    pub slices: Vec<IpNet>,
}

/// Slices of the `prefixes`: 16 equal parts of each prefix, or its addresses if it has fewer than
/// 16; and the listed prefixes of members, if they are longer than these parts.
pub fn slices(prefixes: &[IpNet], members: &[Member]) -> Vec<IpNet> {
    let parts = prefixes.iter().flat_map(|prefix| {
        let length = (prefix.prefix_len() + SLICE_BITS).min(prefix.max_prefix_len());
        // The length is valid: at least that of the prefix, and at most that of an address.
        prefix.trunc().subnets(length).into_iter().flatten()
    });
    let mut all: Vec<IpNet> = parts.collect();
    let listed = members.iter().flat_map(|member| &member.slices).map(IpNet::trunc);
    let is_longer = |slice: &IpNet| {
        let within = prefixes.iter().find(|prefix| prefix.contains(slice));
        within.is_some_and(|prefix| slice.prefix_len() > prefix.prefix_len() + SLICE_BITS)
    };
    all.extend(listed.filter(is_longer));
    all.sort_unstable();
    all.dedup();
    all
}

/// Members, by index, in the order in which they own the slice.
pub fn ranking(slice: &IpNet, members: &[Member]) -> Vec<usize> {
    let mut ranking: Vec<usize> = (0..members.len()).collect();
    ranking.sort_by_cached_key(|&at| {
        let member = &members[at];
        let (listed, score) = (member.listed(slice), member.score(slice));
        (member.weight == 0, Reverse(listed), Reverse(score), *member.key.as_bytes())
    });
    ranking
}

/// Owner of a slice with this ranking: the first member that is alive, or the first of all if none
/// is alive.
pub fn owner(ranking: &[usize], is_alive: impl Fn(usize) -> bool) -> Option<usize> {
    let alive = ranking.iter().find(|&&at| is_alive(at));
    alive.or(ranking.first()).copied()
}

impl Member {
    /// Length of the longest listed prefix that contains the slice; `None` if there is none.
    fn listed(&self, slice: &IpNet) -> Option<u8> {
        let holds = |prefix: &&IpNet| prefix.contains(slice);
        self.slices.iter().filter(holds).map(IpNet::prefix_len).max()
    }

    /// Score of the member for a slice: the maximum of as many random numbers as its weight. The
    /// member with the highest score is the owner, so each random number of each member is equally
    /// likely to determine the owner.
    fn score(&self, slice: &IpNet) -> u64 {
        let (family, address) = match slice.network() {
            IpAddr::V4(address) => (4_u64, u128::from(address.to_bits())),
            IpAddr::V6(address) => (6, address.to_bits()),
        };
        let of_slice = [family << 8 | u64::from(slice.prefix_len()), (address >> 64) as u64];
        let of_key =
            self.key.as_bytes().as_chunks::<8>().0.iter().map(|word| u64::from_be_bytes(*word));
        let words = of_slice.into_iter().chain([address as u64]).chain(of_key);
        let seed = words.fold(0, |seed, word| mixed(seed ^ word));
        (0..self.weight.max(1)).map(|draw| mixed(seed ^ u64::from(draw))).max().unwrap_or_default()
    }
}

/// Random number for a word (the generator splitmix64).
fn mixed(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

#[cfg(test)]
mod tests;
