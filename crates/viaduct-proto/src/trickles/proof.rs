//! SACK proofs: which packets of a piece have arrived, said so that nobody can hide a loss (2.2).
//!
//! ```text
//!  proof    ranges, a number | each: packets lost before it, a number | packets in it, a number | sum 8
//! ```
//!
//! The first range counts from the base of the piece, the last ends with the request's own packet.
//! The sum is that of the nonces in the range: two words of a keyed hash check it, whatever its
//! length. What was lost before the base is reflected in the piece, so the proof omits it (2.4).

use super::bytes::{Reader, put_varint};
use super::nonce::Nonces;
use super::plan::Run;

/// Most gaps in a proof, so that it fits a packet; who has more restarts.
pub const MOST_GAPS: usize = 96;

/// Packets that have arrived, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Number of the first.
    pub first: u64,
    /// Number of the last.
    pub last: u64,
    /// Their nonces, xored together.
    pub sum: u64,
}

/// The losses that a proof tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gaps {
    runs: [Run; MOST_GAPS],
    count: usize,
}

impl Default for Gaps {
    fn default() -> Self {
        Gaps { runs: [Run::default(); MOST_GAPS], count: 0 }
    }
}

impl Gaps {
    /// The losses, ascending.
    pub fn runs(&self) -> &[Run] {
        &self.runs[..self.count]
    }

    /// The losses between ranges that begin at `base`; None if there are too many.
    pub fn between(base: u64, ranges: &[Range]) -> Option<Gaps> {
        let mut gaps = Gaps::default();
        let mut next = base;
        for range in ranges {
            gaps.note(next, range.first)?;
            next = range.last + 1;
        }
        Some(gaps)
    }

    /// The packets from `first` to below `end` were lost, if there are any.
    fn note(&mut self, first: u64, end: u64) -> Option<()> {
        if end > first {
            let count = u32::try_from(end - first).ok()?;
            *self.runs.get_mut(self.count)? = Run { first, count };
            self.count += 1;
        }
        Some(())
    }
}

/// A proof as it came.
#[derive(Clone, Copy, Debug, Default)]
pub struct Proof<'a> {
    ranges: &'a [u8],
    count: usize,
}

/// A proof that proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unproven {
    /// Its ranges do not lead from the base to the request's packet.
    #[error("the proof does not end with packet {0}, which the request stands for")]
    Ends(u64),
    /// A sum is not that of its nonces.
    #[error(
        "the nonces of packets {first} to {last} have another sum: one of them was not received"
    )]
    Sum {
        /// First of the range.
        first: u64,
        /// Last of the range.
        last: u64,
    },
}

impl<'a> Proof<'a> {
    /// Takes a proof off `reader`; None if it is none.
    pub(super) fn read(reader: &mut Reader<'a>) -> Option<Self> {
        let count = usize::try_from(reader.varint()?).ok()?;
        if count == 0 || count > MOST_GAPS + 1 {
            return None;
        }
        let before = reader.0;
        for i in 0..count {
            let (lost, packets) = (reader.varint()?, reader.varint()?);
            let _sum = reader.u64()?;
            let apart = i == 0 || lost > 0;
            if !apart || packets == 0 || lost > u32::MAX.into() || packets > 1 << 40 {
                return None;
            }
        }
        Some(Proof { ranges: &before[..before.len() - reader.0.len()], count })
    }

    /// Checks it for the request of packet `number` in the piece that begins with `base`, and says
    /// what was lost.
    ///
    /// # Errors
    /// [`Unproven`].
    pub fn check(&self, base: u64, number: u64, nonces: &mut Nonces) -> Result<Gaps, Unproven> {
        let mut reader = Reader(self.ranges);
        let (mut next, mut gaps) = (base, Gaps::default());
        for _ in 0..self.count {
            let range = next_range(&mut reader, next)
                .filter(|range| range.last <= number)
                .ok_or(Unproven::Ends(number))?;
            let Range { first, last, sum } = range;
            if nonces.sum(first, last) != sum {
                return Err(Unproven::Sum { first, last });
            }
            gaps.note(next, first).ok_or(Unproven::Ends(number))?;
            next = last + 1;
        }
        if next == number + 1 { Ok(gaps) } else { Err(Unproven::Ends(number)) }
    }
}

fn next_range(reader: &mut Reader, next: u64) -> Option<Range> {
    let first = next.checked_add(reader.varint()?)?;
    let last = first.checked_add(reader.varint()?)?.checked_sub(1)?;
    Some(Range { first, last, sum: reader.u64()? })
}

/// Appends the proof that `ranges` (ascending, apart) of the piece from `base` have arrived.
pub fn emit(base: u64, ranges: &[Range], out: &mut Vec<u8>) {
    put_varint(out, ranges.len() as u64);
    let mut next = base;
    for range in ranges {
        put_varint(out, range.first - next);
        put_varint(out, range.last - range.first + 1);
        out.extend_from_slice(&range.sum.to_be_bytes());
        next = range.last + 1;
    }
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
    fn gaps_are_what_lies_between() {
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
        // Nor by the nonce of the packet that was sent again.
        let ring = KeyRing::new(1, &[1; 32]);
        let again = ring.newest().nonces_again(5).of(21);
        let hidden = Range { sum: hidden.sum ^ again, ..hidden };
        assert!(check(&[hidden], 40).is_err());
    }

    #[test]
    fn it_ends_with_the_requests_packet() {
        assert_eq!(check(&[range(10, 39)], 40), Err(Unproven::Ends(40)));
        assert_eq!(check(&[range(10, 41)], 40), Err(Unproven::Ends(40)));
    }
}
