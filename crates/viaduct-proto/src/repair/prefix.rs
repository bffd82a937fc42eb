//! Prefix of each packet in a symbol: its identity, and the fields that routers change.
//!
//! ```text
//!   identity 8 | ttl 1 | tos 1 | check 1 | packet, normalised       (lengths in bytes)
//! ```
//!
//! A rebuilt packet is correct if its bytes hash to the identity in its prefix. If the check
//! matches, TTL and TOS in the prefix are those that the sender's gateway saw. For packets that
//! have arrived, the receiver infers the TTL and TOS at the sender's gateway from the received
//! values. If the inference is wrong, packets that are rebuilt with the help of such a packet also
//! get a wrong TTL and TOS.

use super::identity::Identity;
use super::section::PREFIX;
use crate::wire::ip::MutableFields;

pub(super) fn emit(identity: Identity, fields: MutableFields) -> [u8; PREFIX] {
    let mut prefix = [0; PREFIX];
    prefix[..8].copy_from_slice(&identity.0.to_be_bytes());
    [prefix[8], prefix[9], prefix[10]] = [fields.ttl, fields.tos, check(identity, fields)];
    prefix
}

/// Splits a symbol into identity, mutable fields (`None` if their check does not match), and
/// packet.
pub(super) fn parse(symbol: &[u8]) -> Option<(Identity, Option<MutableFields>, &[u8])> {
    let (prefix, packet) = symbol.split_first_chunk::<PREFIX>()?;
    let &[ref identity @ .., ttl, tos, told]: &[u8; PREFIX] = prefix;
    let (identity, fields) = (Identity(u64::from_be_bytes(*identity)), MutableFields { ttl, tos });
    Some((identity, (check(identity, fields) == told).then_some(fields), packet))
}

/// Check byte of the mutable fields. The function is not linear: combinations of errors would pass
/// a linear check.
fn check(identity: Identity, fields: MutableFields) -> u8 {
    let mixed = identity.0
        ^ u64::from(u16::from_be_bytes([fields.ttl, fields.tos]))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 56) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_round_trips_and_errors_are_detected() {
        let (identity, fields) =
            (Identity(0x0123_4567_89ab_cdef), MutableFields { ttl: 63, tos: 0x2e });
        let symbol = [&emit(identity, fields)[..], b"packet"].concat();
        assert_eq!(parse(&symbol), Some((identity, Some(fields), &b"packet"[..])));
        let unnoticed =
            (0..=255u8).flat_map(|ttl| (0..=255u8).map(move |tos| MutableFields { ttl, tos }));
        let unnoticed = unnoticed
            .filter(|&other| other != fields && check(identity, other) == check(identity, fields));
        assert!((150..400).contains(&unnoticed.count()), "one in 256");
        assert_eq!(parse(&symbol[..PREFIX - 1]), None);
    }
}
