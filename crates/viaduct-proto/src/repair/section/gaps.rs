//! Encoding of the gaps between send times: half a byte each if they are short, as most are.
//!
//! ```text
//!   below 15      | gap |
//!   15 to 255     | 15 | upper half of the gap | lower half of the gap |
//! ```
//!
//! The upper half of a byte comes first; an unused last half is 0.

/// Half byte that precedes a gap of a full byte.
const LONG: u8 = 15;

/// Iterator over the gaps, in the order in which they were sent.
#[derive(Clone, Debug)]
pub(super) struct Gaps<'a> {
    bytes: &'a [u8],
    /// Index of the next half byte.
    at: usize,
    left: usize,
}

impl<'a> Gaps<'a> {
    /// Iterates over the first `count` gaps in `bytes`.
    pub(super) fn new(bytes: &'a [u8], count: usize) -> Self {
        Gaps { bytes, at: 0, left: count }
    }

    fn half(&mut self) -> Option<u8> {
        let byte = self.bytes.get(self.at / 2)?;
        let half = if self.at.is_multiple_of(2) { byte >> 4 } else { byte & 15 };
        self.at += 1;
        Some(half)
    }
}

impl Iterator for Gaps<'_> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        self.left = self.left.checked_sub(1)?;
        match self.half()? {
            LONG => Some(self.half()? << 4 | self.half()?),
            short => Some(short),
        }
    }
}

/// Removes the bytes of `count` gaps from the start of `rest`; `None` if `rest` is too short.
pub(super) fn take<'a>(rest: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let mut gaps = Gaps::new(rest, count);
    if gaps.by_ref().count() < count {
        return None;
    }
    let (taken, tail) = rest.split_at_checked(gaps.at.div_ceil(2))?;
    *rest = tail;
    Some(taken)
}

/// Length of the encoded gaps in bytes.
pub(super) fn len(gaps: impl Iterator<Item = u8>) -> usize {
    gaps.map(|gap| if gap < LONG { 1 } else { 3 }).sum::<usize>().div_ceil(2)
}

pub(super) fn emit(gaps: impl Iterator<Item = u8>, out: &mut Vec<u8>) {
    let mut upper = None;
    let mut push = |half: u8| match upper.take() {
        None => upper = Some(half),
        Some(upper) => out.push(upper << 4 | half),
    };
    for gap in gaps {
        if gap < LONG {
            push(gap);
        } else {
            [LONG, gap >> 4, gap & 15].into_iter().for_each(&mut push);
        }
    }
    out.extend(upper.map(|half| half << 4));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn short_gaps_take_half_a_byte() {
        let mut out = Vec::new();
        emit([1, 14, 15, 0, 255].into_iter(), &mut out);
        assert_eq!(out, [0x1e, 0xf0, 0xf0, 0xff, 0xf0]);
        assert_eq!(take(&mut &out[..4], 5), None);
    }

    proptest! {
        #[test]
        fn gaps_round_trip(
            gaps in prop::collection::vec(prop_oneof![0..16u8, any::<u8>()], 0..99)
        ) {
            let mut out = Vec::new();
            emit(gaps.iter().copied(), &mut out);
            prop_assert_eq!(out.len(), len(gaps.iter().copied()));
            out.push(7);
            let mut rest = &out[..];
            let taken = take(&mut rest, gaps.len()).expect("no gap is missing");
            prop_assert_eq!(rest, [7]);
            prop_assert_eq!(Gaps::new(taken, gaps.len()).collect::<Vec<_>>(), gaps);
        }
    }
}
