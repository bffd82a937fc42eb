//! Claims: a member of a rack tells the other site which slices it carries.
//!
//! Routers decide which member carries a slice. If they choose a member other than expected, the
//! other site's view of the rack is wrong until that site notices the cause. Until then, that site
//! would count packets that have arrived as lost, because it expects them from another member. So a
//! member claims each slice with the slice's first packet.
//!
//! ```text
//!   first packet of a slice, in either direction ─▶ claim of the slice, immediately
//!   each heartbeat ─▶ claims of all slices with packets since the last heartbeat
//! ```
//!
//! Claims go to all members of the other site's rack, because the sender may be wrong about which
//! member needs the claim. A claim is valid for its lane. The body of the section is a list of
//! claims, each with these fields (lengths in bytes):
//!
//! ```text
//!   family 1 (4 or 6) | age 4 | packets 2 | address 4 or 16
//! ```
//!
//! - age: time in milliseconds since the member's first packet of the slice, or since the first
//!   packet after a pause of half a second
//! - packets: number of packets since the last heartbeat, at most 65,535
//! - address: any address in the slice, so that the sites need not divide their prefixes alike

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use ipnet::IpNet;

use super::prefix_table::PrefixTable;
use crate::rack::HEARTBEAT;
use crate::reader::Reader;
use crate::time::{Duration, Instant};

/// Kind of the section with claims.
pub(super) const CLAIMS: u8 = 11;

/// Time without a packet after which a slice is no longer carried.
const PAUSE: Duration = Duration::from_millis(500);
/// Time for which a claim counts as new. Each message with a new claim repeats the other claims
/// that are still new, in case their messages were lost: often many slices move at the same time.
const NEW: Duration = Duration::from_millis(100);
/// Minimum time between two messages with new claims. Claims in between wait for the next call of
/// [`Claims::heartbeat`].
const FRESH_EVERY: Duration = Duration::from_millis(1);
/// Maximum number of claims in one section: claims with IPv6 addresses fill 1,104 bytes.
const MAX_CLAIMS: usize = 48;

const IPV4: u8 = 4;
const IPV6: u8 = 6;

/// Claim of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    /// Address in the slice.
    pub(super) address: IpAddr,
    /// Time since the member's first packet of the slice.
    pub(super) age: Duration,
    /// Number of packets since the last heartbeat.
    pub(super) packets: u16,
}

/// Slices that this gateway carries.
#[derive(Debug)]
pub(super) struct Claims {
    pub(super) slices: Vec<IpNet>,
    /// Maps addresses to indices in `slices`.
    table: PrefixTable<u32>,
    /// Recent packets, by slice and lane.
    carried: HashMap<(u32, u8), Carried>,
    /// Time of the next heartbeat.
    due: Instant,
    /// Time of the last message with new claims.
    last_fresh: Option<Instant>,
    /// Lanes whose new claims wait.
    waiting: BTreeSet<u8>,
}

/// Recent packets of a slice.
#[derive(Clone, Copy, Debug)]
struct Carried {
    /// Destination of the last packet.
    address: IpAddr,
    /// Time of the first packet.
    since: Instant,
    /// Time of the last packet.
    last: Instant,
    /// Number of packets since the last heartbeat.
    packets: u16,
}

impl Carried {
    fn claim(&self, now: Instant) -> Claim {
        let Carried { address, since, packets, .. } = *self;
        Claim { address, age: now.since(since), packets }
    }
}

impl Claims {
    /// Creates the state of a gateway that has seen no packets of these slices.
    pub(super) fn new(slices: Vec<IpNet>) -> Claims {
        let mut table = PrefixTable::default();
        (0..).zip(&slices).for_each(|(at, slice)| table.insert(slice, at));
        Claims {
            slices,
            table,
            carried: HashMap::new(),
            due: Instant::ZERO,
            last_fresh: None,
            waiting: BTreeSet::new(),
        }
    }

    /// Records a packet; returns whether it is the first packet of its slice on this lane, or the
    /// first after a pause.
    pub(super) fn carry(&mut self, now: Instant, destination: IpAddr, lane: u8) -> bool {
        let Some(slice) = self.table.find(destination) else { return false };
        let first = Carried { address: destination, since: now, last: now, packets: 0 };
        let carried = self.carried.entry((slice, lane)).or_insert(first);
        if now.since(carried.last) > PAUSE {
            *carried = first;
        }
        (carried.address, carried.last) = (destination, now);
        carried.packets = carried.packets.saturating_add(1);
        carried.since == now && carried.packets == 1
    }

    /// Returns the body of a section with the newest claims on a lane, to be sent immediately;
    /// `None` if these claims wait for the next call of [`Claims::heartbeat`].
    pub(super) fn fresh(&mut self, now: Instant, lane: u8) -> Option<Vec<u8>> {
        if self.last_fresh.is_some_and(|last| now.since(last) < FRESH_EVERY && now > last) {
            self.waiting.insert(lane);
            return None;
        }
        self.last_fresh = Some(now);
        Some(self.newest(now, lane))
    }

    fn newest(&self, now: Instant, lane: u8) -> Vec<u8> {
        let is_new = |of: &u8, carried: &Carried| *of == lane && now.since(carried.since) <= NEW;
        let new = self.carried.iter().filter(|((_, of), carried)| is_new(of, carried));
        let mut new: Vec<&Carried> = new.map(|(_, carried)| carried).collect();
        new.sort_unstable_by_key(|carried| Reverse((carried.since, carried.address)));
        let claims: Vec<_> = new.iter().take(MAX_CLAIMS).map(|of| of.claim(now)).collect();
        emit(&claims)
    }

    /// Returns the bodies of sections, each with its lane: with the claims of a heartbeat if one is
    /// due, otherwise with the new claims that have waited.
    pub(super) fn heartbeat(&mut self, now: Instant) -> Vec<(u8, Vec<u8>)> {
        let waiting = std::mem::take(&mut self.waiting);
        if now < self.due {
            return waiting.into_iter().map(|lane| (lane, self.newest(now, lane))).collect();
        }
        self.due = now + HEARTBEAT;
        self.carried.retain(|_, carried| now.since(carried.last) <= PAUSE);
        let mut claims: BTreeMap<u8, Vec<Claim>> = BTreeMap::new();
        for ((_, lane), carried) in self.carried.iter_mut().filter(|(_, of)| of.packets > 0) {
            claims.entry(*lane).or_default().push(carried.claim(now));
            carried.packets = 0;
        }
        let bodies = |(lane, claims): (u8, Vec<Claim>)| {
            claims.chunks(MAX_CLAIMS).map(|claims| (lane, emit(claims))).collect::<Vec<_>>()
        };
        claims.into_iter().flat_map(bodies).collect()
    }
}

fn emit(claims: &[Claim]) -> Vec<u8> {
    let mut body = Vec::new();
    for claim in claims {
        body.push(if claim.address.is_ipv4() { IPV4 } else { IPV6 });
        let age = u32::try_from(claim.age.as_millis()).unwrap_or(u32::MAX);
        body.extend(age.to_be_bytes());
        body.extend(claim.packets.to_be_bytes());
        match claim.address {
            IpAddr::V4(address) => body.extend(address.octets()),
            IpAddr::V6(address) => body.extend(address.octets()),
        }
    }
    body
}

/// Parses a section's body; `None` if it is malformed, or has too many claims.
pub(super) fn parse(body: &[u8]) -> Option<Vec<Claim>> {
    let (mut rest, mut claims) = (Reader(body), Vec::new());
    while !rest.is_empty() {
        let (family, age) = (rest.u8()?, Duration::from_millis(rest.u32()?.into()));
        let packets = rest.u16()?;
        let address = match family {
            IPV4 => IpAddr::from(rest.array::<4>()?),
            IPV6 => IpAddr::from(rest.array::<16>()?),
            _ => return None,
        };
        claims.push(Claim { address, age, packets });
    }
    (claims.len() <= MAX_CLAIMS).then_some(claims)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(10_000_000_000) + Duration::from_millis(millis)
    }

    #[test]
    fn a_slice_is_claimed_with_its_first_packet_and_with_heartbeats() {
        let slices = ["10.1.0.0/17", "10.1.128.0/17", "2001:db8::/48"].map(|s| s.parse().unwrap());
        let mut claims = Claims::new(slices.to_vec());
        let [one, next, v6] = ["10.1.3.4", "10.1.3.5", "2001:db8::1"]
            .map(|address| address.parse::<IpAddr>().unwrap());
        let claim =
            |address, age, packets| Claim { address, age: Duration::from_millis(age), packets };
        let fresh = |claims: &mut Claims, millis, lane| -> Vec<Claim> {
            let mut all = parse(&claims.fresh(at(millis), lane).unwrap()).unwrap();
            all.sort_by_key(|claim| claim.address);
            all
        };
        assert!(claims.heartbeat(at(0)).is_empty());
        assert!(claims.carry(at(0), one, 3));
        assert!(!claims.carry(at(0), "192.0.2.1".parse().unwrap(), 3), "in no slice");
        assert_eq!(fresh(&mut claims, 0, 3), [claim(one, 0, 1)]);
        assert!(!claims.carry(at(10), next, 3) && claims.carry(at(10), v6, 3));
        assert_eq!(fresh(&mut claims, 10, 3), [claim(next, 10, 2), claim(v6, 0, 1)]);
        assert!(claims.carry(at(10), one, 2), "another lane");
        let heartbeat = |claims: &mut Claims, millis| -> Vec<(u8, Vec<Claim>)> {
            let bodies = claims.heartbeat(at(millis)).into_iter();
            bodies.map(|(lane, body)| (lane, parse(&body).unwrap())).collect()
        };
        assert!(heartbeat(&mut claims, 199).is_empty());
        let all = heartbeat(&mut claims, 200);
        assert_eq!(all[0], (2, vec![claim(one, 190, 1)]));
        assert_eq!((all.len(), all[1].0, all[1].1.len()), (2, 3, 2));
        assert!(fresh(&mut claims, 200, 3).is_empty() && heartbeat(&mut claims, 400).is_empty());
        assert!(!claims.carry(at(510), one, 2), "the pause was short");
        assert_eq!(heartbeat(&mut claims, 600), [(2, vec![claim(one, 590, 1)])]);
        assert!(claims.carry(at(1_011), one, 2), "the slice was no longer carried");
    }

    #[test]
    fn many_new_claims_take_few_messages() {
        let slices: Vec<IpNet> =
            (0..200).map(|n| format!("10.{n}.0.0/16").parse().unwrap()).collect();
        let mut claims = Claims::new(slices);
        let (mut sent, mut claimed) = (0, BTreeSet::new());
        let mut take = |body: Vec<u8>| {
            sent += 1;
            claimed.extend(parse(&body).unwrap().iter().map(|claim| claim.address));
        };
        claims.heartbeat(at(0));
        for n in 0..200_u64 {
            // 20 slices a millisecond.
            let now = at(10) + Duration::from_micros(50 * n);
            assert!(claims.carry(now, IpAddr::from([10, n as u8, 0, 1]), 0));
            claims.fresh(now, 0).into_iter().for_each(&mut take);
        }
        let rest = claims.heartbeat(at(50));
        rest.into_iter().for_each(|(_, body)| take(body));
        assert_eq!((sent, claimed.len()), (11, 200));
    }

    #[test]
    fn claims_round_trip_and_malformed_ones_are_refused() {
        let claims: Vec<Claim> = ["10.1.2.3", "2001:db8::1"]
            .map(|address| Claim {
                address: address.parse().unwrap(),
                age: Duration::from_millis(258),
                packets: 772,
            })
            .to_vec();
        let body = emit(&claims);
        assert_eq!(parse(&body), Some(claims));
        assert_eq!(body[..11], [4, 0, 0, 1, 2, 3, 4, 10, 1, 2, 3]);
        for length in (0..body.len()).filter(|length| ![0, 11].contains(length)) {
            assert_eq!(parse(&body[..length]), None, "{length}");
        }
        let mut other = body.clone();
        other[0] = 5;
        assert_eq!(parse(&other), None);
        assert_eq!(parse(&body[..11].repeat(MAX_CLAIMS)).map(|all| all.len()), Some(MAX_CLAIMS));
        assert_eq!(parse(&body[..11].repeat(MAX_CLAIMS + 1)), None);
    }
}
