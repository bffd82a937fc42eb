//! SACK proofs: which packets of an epoch have arrived, in a form that cannot hide a loss (2.2).
//!
//! ```text
//!  proof    ranges, a number | each: packets lost before it, a number | packets in it, a number
//!           | sum 8
//! ```
//!
//! A *number* has a variable length ([`wire`](super::wire)). The first range is relative to the
//! base of the epoch, and the last range ends with the request's own packet. The sum is the xor of
//! the nonces in all ranges. To verify it, the server computes two words of a keyed hash for a
//! range of any length. The paper has one sum for each range. A single sum is as secure: if a
//! client lacks the nonce of one of the named packets, it knows nothing about the sum. The epoch's
//! parameters already reflect losses before the base, so the proof omits these (2.4).

use super::bytes::{Reader, put_varint};
use super::nonce::Nonces;
use super::plan::Run;

/// Maximum number of gaps in a proof, so that the proof fits in a packet. A client with more gaps
/// restarts. Many gaps occur when the first slow start loses every second packet of a window.
pub const MAX_GAPS: usize = 480;

/// A range of consecutive packets that have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Number of the first packet.
    pub first: u64,
    /// Number of the last packet.
    pub last: u64,
    /// Xor of the packets' nonces.
    pub sum: u64,
}

/// Losses that a proof shows, at most [`MAX_GAPS`]. Without a loss nothing is allocated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gaps(Vec<Run>);

impl Gaps {
    /// The losses, ascending.
    pub fn runs(&self) -> &[Run] {
        &self.0
    }

    /// The losses between `base` and the last range; `None` if there are more than [`MAX_GAPS`], or
    /// if a gap has 2^32 packets or more.
    pub fn between(base: u64, ranges: &[Range]) -> Option<Gaps> {
        let mut gaps = Gaps::default();
        let mut next = base;
        for range in ranges {
            gaps.note(next, range.first)?;
            next = range.last + 1;
        }
        Some(gaps)
    }

    /// Records the packets `first..end` as lost, if there are any.
    fn note(&mut self, first: u64, end: u64) -> Option<()> {
        if end > first {
            let count = u32::try_from(end - first).ok()?;
            (self.0.len() < MAX_GAPS).then(|| self.0.push(Run { first, count }))?;
        }
        Some(())
    }
}

/// A parsed proof.
#[derive(Clone, Copy, Debug, Default)]
pub struct Proof<'a> {
    ranges: &'a [u8],
    count: usize,
    sum: u64,
}

/// Reason why a proof is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unproven {
    /// The ranges do not lead from the base to the request's packet, or have too many gaps.
    #[error("the proof does not end with packet {0}, whose continuation the request returns")]
    Ends(u64),
    /// The sum is not the xor of the nonces.
    #[error(
        "the proof's sum does not match the nonces of the packets that it names from {first} to \
         {last}: one of them was not received"
    )]
    Sum {
        /// First packet that the proof names.
        first: u64,
        /// Last packet that the proof names.
        last: u64,
    },
}

impl<'a> Proof<'a> {
    /// Reads a proof from `reader`; `None` if it is malformed.
    pub(super) fn read(reader: &mut Reader<'a>) -> Option<Self> {
        let count = usize::try_from(reader.varint()?).ok()?;
        if count == 0 || count > MAX_GAPS + 1 {
            return None;
        }
        let before = reader.0;
        for i in 0..count {
            let (lost, packets) = (reader.varint()?, reader.varint()?);
            let apart = i == 0 || lost > 0;
            if !apart || packets == 0 || lost > u32::MAX.into() || packets > 1 << 40 {
                return None;
            }
        }
        let ranges = &before[..before.len() - reader.0.len()];
        Some(Proof { ranges, count, sum: reader.u64()? })
    }

    /// Verifies the proof for the request of packet `number` in the epoch that begins with `base`,
    /// and returns the losses. Errors: [`Unproven`].
    pub fn check(&self, base: u64, number: u64, nonces: &mut Nonces) -> Result<Gaps, Unproven> {
        let mut reader = Reader(self.ranges);
        let (mut next, mut sum, mut gaps) = (base, 0, Gaps::default());
        for _ in 0..self.count {
            let (first, last) = next_range(&mut reader, next)
                .filter(|(_, last)| *last <= number)
                .ok_or(Unproven::Ends(number))?;
            sum ^= nonces.sum(first, last);
            gaps.note(next, first).ok_or(Unproven::Ends(number))?;
            next = last + 1;
        }
        if next != number + 1 {
            return Err(Unproven::Ends(number));
        }
        let first =
            gaps.runs().first().filter(|gap| gap.first == base).map_or(base, |gap| gap.last() + 1);
        if sum == self.sum { Ok(gaps) } else { Err(Unproven::Sum { first, last: number }) }
    }
}

/// First and last packet of the next range.
fn next_range(reader: &mut Reader, next: u64) -> Option<(u64, u64)> {
    let first = next.checked_add(reader.varint()?)?;
    let last = first.checked_add(reader.varint()?)?.checked_sub(1)?;
    Some((first, last))
}

/// Appends the proof that `ranges` (ascending, not adjacent) of the epoch at `base` have arrived.
pub fn emit(base: u64, ranges: &[Range], out: &mut Vec<u8>) {
    put_varint(out, ranges.len() as u64);
    let mut next = base;
    for range in ranges {
        put_varint(out, range.first - next);
        put_varint(out, range.last - range.first + 1);
        next = range.last + 1;
    }
    let sum = ranges.iter().fold(0, |sum, range| sum ^ range.sum);
    out.extend_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trickles::keys::KeyRing;

    fn check(ranges: &[Range], number: u64) -> Result<Gaps, Unproven> {
        let ring = KeyRing::new(1, &[1; 32]);
        let mut bytes = Vec::new();
        emit(10, ranges, &mut bytes);
        let proof = Proof::read(&mut Reader(&bytes)).unwrap();
        proof.check(10, number, &mut ring.newest().nonces(5))
    }

    fn range(first: u64, last: u64) -> Range {
        let ring = KeyRing::new(1, &[1; 32]);
        Range { first, last, sum: ring.newest().nonces(5).sum(first, last) }
    }

    #[test]
    fn gaps_are_the_packets_between_the_ranges() {
        let gaps = check(&[range(12, 20), range(24, 24), range(26, 40)], 40).unwrap();
        let lost = [(10, 2), (21, 3), (25, 1)].map(|(first, count)| Run { first, count });
        assert_eq!(gaps.runs(), lost);
        assert_eq!(check(&[range(10, 40)], 40).unwrap().runs(), []);
    }

    #[test]
    fn a_loss_cannot_be_hidden() {
        let (a, b) = (range(10, 20), range(22, 40));
        let hidden = Range { first: 10, last: 40, sum: a.sum ^ b.sum };
        assert_eq!(check(&[hidden], 40), Err(Unproven::Sum { first: 10, last: 40 }));
        // The nonce of the retransmission does not hide it either.
        let ring = KeyRing::new(1, &[1; 32]);
        let again = ring.newest().nonces_again(5).of(21);
        let hidden = Range { sum: hidden.sum ^ again, ..hidden };
        assert!(check(&[hidden], 40).is_err());
    }

    #[test]
    fn a_proof_ends_with_the_requests_packet() {
        assert_eq!(check(&[range(10, 39)], 40), Err(Unproven::Ends(40)));
        assert_eq!(check(&[range(10, 41)], 40), Err(Unproven::Ends(40)));
    }
}
