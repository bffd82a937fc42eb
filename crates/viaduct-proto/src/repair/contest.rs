//! Claims of one slice by members of a rack, and the decision on which member carries the slice.
//!
//! ```text
//!   routers choose o2     o1 ██████████                 o2 owns the slice from its first packet
//!                         o2           ██████████████
//!
//!   a packet goes astray  o1 ████████████████████████ o2 owns the slice until o1, which has more
//!                         o2           █              packets, claims it again
//! ```

use crate::rack::HEARTBEAT;
use crate::time::{Duration, Instant};

/// Age after which a claim is void. Until then, a slice without packets keeps its last owner: it is
/// unlikely that the routers have changed their choice.
const VALID: Duration = Duration::from_secs(60);
/// Age up to which a claim is recent. Heartbeats are 200 to 250 ms apart; the rest allows for
/// differing delays.
const RECENT: Duration = HEARTBEAT.saturating_add(Duration::from_millis(100));

/// Claim of a member.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claimed {
    pub(super) member: usize,
    /// Time of the member's first packet.
    pub(super) since: Instant,
    /// Time at which the claim arrived.
    pub(super) at: Instant,
    /// Number of the member's packets since its last heartbeat.
    pub(super) packets: u16,
}

/// Claims of one slice.
#[derive(Clone, Debug, Default)]
pub(super) struct Contest {
    /// Latest claim of each member.
    claims: Vec<Claimed>,
    owner: Option<usize>,
}

impl Contest {
    /// Member that carries the slice; `None` if there is no valid claim.
    pub(super) fn owner(&self) -> Option<usize> {
        self.owner
    }

    /// Returns whether any member has had packets recently.
    pub(super) fn is_recent(&self, now: Instant) -> bool {
        self.claims.iter().any(|claim| now.since(claim.at) <= RECENT)
    }

    /// Records a claim, which replaces the member's previous claim.
    pub(super) fn claim(&mut self, claimed: Claimed) {
        self.claims.retain(|claim| claim.member != claimed.member);
        self.claims.push(claimed);
    }

    /// Determines the owner again; returns whether there is a valid claim. The owner is the member
    /// whose first packet is the most recent. If another member has had packets since then, packets
    /// have gone astray, or routers distribute the slice over several members; the owner is then
    /// the member with more packets.
    pub(super) fn settle(&mut self, now: Instant, is_alive: &[bool]) -> bool {
        let is_valid = |claim: &Claimed| now.since(claim.at) < VALID && is_alive[claim.member];
        self.claims.retain(is_valid);
        let is_recent = |claim: &&Claimed| now.since(claim.at) <= RECENT;
        let has_recent = self.is_recent(now);
        let is_kept = |owner| self.claims.iter().any(|claim| claim.member == owner);
        if !has_recent && self.owner.is_some_and(is_kept) {
            return true;
        }
        let claims = || self.claims.iter().filter(|claim| !has_recent || is_recent(claim));
        let newest = claims().max_by_key(|claim| claim.since);
        let goes_on = |newest: &&Claimed| {
            claims().any(|of| of.member != newest.member && of.at > newest.since + RECENT)
        };
        // The owner stays unless another member has more than 1.5 times as many packets.
        let weight = |claim: &&Claimed| {
            u32::from(claim.packets) * if Some(claim.member) == self.owner { 3 } else { 2 }
        };
        let owner = match newest {
            Some(newest) if goes_on(&newest) => claims().max_by_key(weight),
            newest => newest,
        };
        self.owner = owner.map(|claim| claim.member);
        self.owner.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(10_000_000_000) + Duration::from_millis(millis)
    }

    /// Periods in which a member has packets, each with its start and end in milliseconds.
    type Times<'a> = &'a [(u64, u64)];

    /// Time of a member's first packet after its last pause of more than half a second.
    fn since(times: Times<'_>, millis: u64) -> Option<u64> {
        let begun = times.iter().filter(|(from, _)| *from <= millis);
        let latest = begun.fold(None, |before: Option<(u64, u64)>, &(from, until)| match before {
            Some((since, end)) if from - end <= 500 => Some((since, until)),
            _ => Some((from, until)),
        });
        latest.map(|(since, _)| since)
    }

    /// Owner at the time `end`, in milliseconds, of a slice with a packet each millisecond, by one
    /// of two members.
    fn owner(carried: [Times<'_>; 2], end: u64) -> Option<usize> {
        let mut contest = Contest::default();
        for millis in 0..=end {
            for (member, times) in carried.into_iter().enumerate() {
                let Some(since) = since(times, millis) else { continue };
                // The heartbeats of the members are 70 ms apart.
                if millis != since && !(millis + 70 * member as u64).is_multiple_of(200) {
                    continue;
                }
                let has = |at: &u64| times.iter().any(|(from, until)| (*from..*until).contains(at));
                let packets = (millis.saturating_sub(199)..=millis).filter(has).count() as u16;
                if packets > 0 {
                    let (since, at) = (at(since), at(millis));
                    contest.claim(Claimed { member, since, at, packets });
                }
            }
            contest.settle(at(millis), &[true; 2]);
        }
        contest.owner()
    }

    #[test]
    fn the_member_with_the_latest_first_packet_carries_a_slice() {
        for moved in (1_000..1_200).step_by(7) {
            for end in [moved, moved + 1, moved + 150, moved + 400, 3_000] {
                let owner = owner([&[(0, moved)], &[(moved, 9_000)]], end);
                assert_eq!(owner, Some(1), "{moved}, {end}");
            }
        }
        assert_eq!(owner([&[(0, 1_000)], &[]], 1_900), Some(0));
        assert_eq!(owner([&[(0, 1_000)], &[]], 30_000), Some(0), "no other member had a packet");
        assert_eq!(owner([&[(0, 1_000)], &[]], 61_010), None);
    }

    #[test]
    fn a_stray_packet_changes_the_owner_for_half_a_second() {
        for stray in (1_000..1_200).step_by(7) {
            let carried: [Times<'_>; 2] = [&[(0, 9_000)], &[(stray, stray + 1)]];
            assert_eq!(owner(carried, stray), Some(1));
            for end in [stray + 510, stray + 900, stray + 1_500] {
                assert_eq!(owner(carried, end), Some(0), "{stray}, {end}");
            }
        }
    }

    #[test]
    fn a_slice_that_returns_has_its_former_owner_within_half_a_second() {
        for away in [100, 300, 450] {
            let returned = 1_000 + away;
            let carried: [Times<'_>; 2] = [&[(0, 1_000), (returned, 9_000)], &[(1_000, returned)]];
            for end in [returned + 510, returned + 900, returned + 1_500] {
                assert_eq!(owner(carried, end), Some(0), "{away}, {end}");
            }
        }
    }

    #[test]
    fn a_dead_member_carries_nothing() {
        let mut contest = Contest::default();
        contest.claim(Claimed { member: 0, since: at(0), at: at(0), packets: 9 });
        contest.claim(Claimed { member: 1, since: at(50), at: at(50), packets: 9 });
        assert!(contest.settle(at(100), &[true, false]));
        assert_eq!(contest.owner(), Some(0));
        assert!(!contest.settle(at(100), &[false, false]));
        assert_eq!(contest.owner(), None);
    }
}
