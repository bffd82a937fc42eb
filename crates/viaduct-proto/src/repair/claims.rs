//! Claims: a member of a rack tells the peer which slices' packets pass it.
//!
//! Routers decide which member carries a slice. If they choose another one, the peer's view of the
//! rack is wrong until it has noticed why: packets would count as lost that have arrived, since
//! they were expected from another member. So a member claims each slice with its first packet.
//!
//! ```text
//!   first packet of a slice, in either direction ─▶ its claim, at once and after 20 ms
//!   each second                                  ─▶ claims of all slices with a packet since
//! ```
//!
//! Body of the section: claims, each
//!
//! ```text
//!   family 1 (4 or 6) | age 2 | address 4 or 16
//! ```
//!
//! - age: time in milliseconds, at most 65,535, since the member's first packet of the slice
//! - address: any address in the slice, so that the sites need not divide their prefixes alike

use std::net::IpAddr;

use ipnet::IpNet;

use super::prefix_table::PrefixTable;
use crate::reader::Reader;
use crate::time::{Duration, Instant};

/// Kind of the section with claims.
pub(super) const CLAIMS: u8 = 11;

/// Time without a packet after which a slice is no longer carried.
const PAUSE: Duration = Duration::from_secs(1);
/// Interval of the claims of all slices that are carried.
const EVERY: Duration = Duration::from_secs(1);
/// Time after which the first claim of a slice is repeated, in case that it is lost.
const AGAIN: Duration = Duration::from_millis(20);
/// Number of times that a claim is sent by itself, not with all others.
const FIRST_CLAIMS: u8 = 2;
/// Age after which a claim that was not repeated is void: two repetitions may be lost.
pub(super) const VALID: Duration = Duration::from_millis(2_500);
/// Maximum number of claims in one section: those of IPv6 fill 912 bytes.
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
}

/// Slices that this gateway carries.
#[derive(Debug)]
pub(super) struct Claims {
    table: PrefixTable<u32>,
    slices: usize,
    /// State of each slice; empty before the first packet.
    carried: Vec<Option<Carried>>,
    /// Time at which claims that are new are sent.
    due: Option<Instant>,
    /// Time at which all claims are sent.
    all_due: Option<Instant>,
}

/// Slice with recent packets.
#[derive(Clone, Copy, Debug)]
struct Carried {
    address: IpAddr,
    /// Time of the first packet, and of the last one.
    since: Instant,
    last: Instant,
    /// Number of times that the slice was claimed.
    claimed: u8,
}

impl Claims {
    /// Creates the state of a gateway that has seen no packets of these slices.
    pub(super) fn new(slices: &[IpNet]) -> Claims {
        let mut table = PrefixTable::default();
        (0..).zip(slices).for_each(|(at, slice)| table.insert(slice, at));
        Claims { table, slices: slices.len(), carried: Vec::new(), due: None, all_due: None }
    }

    /// Notes a packet to this address.
    pub(super) fn carry(&mut self, now: Instant, destination: IpAddr) {
        let Some(slice) = self.table.find(destination) else { return };
        if self.carried.is_empty() {
            self.carried.resize(self.slices, None);
        }
        match &mut self.carried[slice as usize] {
            Some(carried) if now.since(carried.last) <= PAUSE => carried.last = now,
            other => {
                *other = Some(Carried { address: destination, since: now, last: now, claimed: 0 });
                self.due = Some(now);
            }
        }
    }

    /// Time of the next claims.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.due.into_iter().chain(self.all_due).min()
    }

    /// Bodies of the sections that are due.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> Vec<Vec<u8>> {
        if self.poll_timeout().is_none_or(|due| due > now) {
            return Vec::new();
        }
        let is_all = self.all_due.is_some_and(|due| due <= now);
        let (mut claims, mut is_any, mut is_new) = (Vec::new(), false, false);
        for slice in &mut self.carried {
            let Some(carried) = slice.as_mut().filter(|of| now.since(of.last) <= PAUSE) else {
                *slice = None;
                continue;
            };
            if is_all || carried.claimed < FIRST_CLAIMS {
                let age = now.since(carried.since);
                claims.push(Claim { address: carried.address, age });
                carried.claimed = carried.claimed.saturating_add(1);
            }
            (is_any, is_new) = (true, is_new || carried.claimed < FIRST_CLAIMS);
        }
        self.due = is_new.then_some(now + AGAIN);
        if is_all || self.all_due.is_none() {
            self.all_due = is_any.then_some(now + EVERY);
        }
        claims.chunks(MAX_CLAIMS).map(emit).collect()
    }
}

fn emit(claims: &[Claim]) -> Vec<u8> {
    let mut body = Vec::new();
    for claim in claims {
        body.push(if claim.address.is_ipv4() { IPV4 } else { IPV6 });
        let age = u16::try_from(claim.age.as_millis()).unwrap_or(u16::MAX);
        body.extend(age.to_be_bytes());
        match claim.address {
            IpAddr::V4(address) => body.extend(address.octets()),
            IpAddr::V6(address) => body.extend(address.octets()),
        }
    }
    body
}

/// Parses a section's body; `None` if it is malformed.
pub(super) fn parse(body: &[u8]) -> Option<Vec<Claim>> {
    let (mut rest, mut claims) = (Reader(body), Vec::new());
    while !rest.is_empty() {
        let (family, age) = (rest.u8()?, Duration::from_millis(rest.u16()?.into()));
        let address = match family {
            IPV4 => IpAddr::from(rest.array::<4>()?),
            IPV6 => IpAddr::from(rest.array::<16>()?),
            _ => return None,
        };
        claims.push(Claim { address, age });
    }
    Some(claims)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    /// Claims sent until `end`, each with its time in milliseconds and its age.
    fn sent(claims: &mut Claims, end: u64) -> Vec<(u64, Vec<Claim>)> {
        let mut sent = Vec::new();
        while let Some(due) = claims.poll_timeout().filter(|due| *due <= at(end)) {
            for body in claims.handle_timeout(due) {
                sent.push((due.since(at(0)).as_millis() as u64, parse(&body).unwrap()));
            }
        }
        sent
    }

    #[test]
    fn a_slice_is_claimed_from_its_first_packet_until_its_packets_end() {
        let slices = ["10.1.0.0/17", "10.1.128.0/17", "2001:db8::/48"].map(|s| s.parse().unwrap());
        let mut claims = Claims::new(&slices);
        assert_eq!(claims.poll_timeout(), None);
        let [one, v6] = ["10.1.3.4", "2001:db8::1"].map(|s| s.parse::<IpAddr>().unwrap());
        let claim = |address, age| Claim { address, age: Duration::from_millis(age) };
        claims.carry(at(0), one);
        claims.carry(at(0), "192.0.2.1".parse().unwrap());
        assert_eq!(sent(&mut claims, 5), [(0, vec![claim(one, 0)])]);
        claims.carry(at(10), v6);
        let (first, again) = ([claim(one, 10), claim(v6, 0)], [claim(v6, 20)]);
        assert_eq!(sent(&mut claims, 900), [(10, first.to_vec()), (30, again.to_vec())]);
        claims.carry(at(900), v6);
        let both = [claim(one, 1_000), claim(v6, 990)];
        assert_eq!(sent(&mut claims, 1_500), [(1_000, both.to_vec())]);
        assert_eq!(sent(&mut claims, 2_500), [], "both have paused");
        assert_eq!(claims.poll_timeout(), None);
        claims.carry(at(3_000), one);
        assert_eq!(sent(&mut claims, 3_000), [(3_000, vec![claim(one, 0)])]);
    }

    #[test]
    fn claims_round_trip_and_malformed_ones_are_refused() {
        let claims: Vec<Claim> = ["10.1.2.3", "2001:db8::1"]
            .map(|address| Claim {
                address: address.parse().unwrap(),
                age: Duration::from_millis(258),
            })
            .to_vec();
        let body = emit(&claims);
        assert_eq!(parse(&body), Some(claims));
        assert_eq!(body[..7], [4, 1, 2, 10, 1, 2, 3]);
        for length in (0..body.len()).filter(|length| ![0, 7].contains(length)) {
            assert_eq!(parse(&body[..length]), None, "{length}");
        }
        assert_eq!(parse(&[5, 0, 0, 1, 2, 3, 4]), None);
    }
}
