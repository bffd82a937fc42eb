//! Sets of prefixes as ranges of addresses, and the code that searches them for an address.
//!
//! ```text
//!   ranges   10.1.0.0 - 10.1.255.255      10.3.0.0 - 10.3.127.255
//!   cuts     0.0.0.0 no │ 10.1.0.0 yes │ 10.2.0.0 no │ 10.3.0.0 yes │ 10.3.128.0 no
//!   code     at least 10.2.0.0? ─▶ at least 10.3.128.0? ... : the cuts are halved at each test
//! ```
//!
//! An IPv6 address is searched word by word; a cut may lead to a search in the next word.

use std::net::IpAddr;

use super::FilterError;
use super::asm::{Asm, Label, Test};

/// Max cuts whose tests share one jump to each result. Each of these tests is close enough to the
/// jump to reach it by a short jump.
const NEAR: usize = 100;

/// Addresses of both families. The bits of an IPv4 address are the highest 32.
#[derive(Clone, Debug, Default)]
pub(super) struct PrefixSet {
    v4: Ranges,
    v6: Ranges,
}

/// First and last address of each range. The ranges ascend, and neither overlap nor adjoin.
type Ranges = Vec<(u128, u128)>;

/// Result for the values of a word from one cut to the next.
#[derive(Clone, Debug, PartialEq)]
enum Cut {
    Hit,
    Miss,
    /// The next word decides, by these ranges.
    Next(Ranges),
}

impl PrefixSet {
    pub(super) fn new(prefixes: &[(IpAddr, u8)]) -> Result<PrefixSet, FilterError> {
        let mut set = PrefixSet::default();
        for &(address, length) in prefixes {
            let (ranges, bits, most) = match address {
                IpAddr::V4(v4) => (&mut set.v4, u128::from(v4.to_bits()) << 96, 32),
                IpAddr::V6(v6) => (&mut set.v6, v6.to_bits(), 128),
            };
            if length > most {
                return Err(FilterError::Length { address, length });
            }
            let host = u128::MAX.checked_shr(length.into()).unwrap_or(0);
            ranges.push((bits & !host, bits | host));
        }
        set.v4 = merged(set.v4);
        set.v6 = merged(set.v6);
        Ok(set)
    }

    /// Returns the number of ranges.
    pub(super) fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    /// Returns a set that contains all addresses of this set in half as many ranges of each family,
    /// but at least one. The ranges that are closest to each other are joined.
    pub(super) fn coarser(&self) -> PrefixSet {
        PrefixSet { v4: halved(&self.v4), v6: halved(&self.v6) }
    }

    /// Emits a jump to `hit` if the IPv4 address at X is in the set, otherwise to `miss`.
    pub(super) fn test_v4(&self, asm: &mut Asm, hit: Label, miss: Label) {
        search(asm, &self.v4, 0, (hit, miss));
    }

    /// Emits a jump to `hit` if the IPv6 address at X is in the set, otherwise to `miss`.
    pub(super) fn test_v6(&self, asm: &mut Asm, hit: Label, miss: Label) {
        search(asm, &self.v6, 0, (hit, miss));
    }
}

/// Joins ranges that overlap or adjoin.
fn merged(mut ranges: Ranges) -> Ranges {
    ranges.sort_unstable();
    ranges.dedup_by(|next, last| {
        let joins = next.0 <= last.1.saturating_add(1);
        if joins {
            last.1 = last.1.max(next.1);
        }
        joins
    });
    ranges
}

/// Joins each range to the previous range if the gap between them is in the smaller half of all
/// gaps.
fn halved(ranges: &Ranges) -> Ranges {
    let distance = |n: usize| ranges[n].0 - ranges[n - 1].1;
    let mut order: Vec<usize> = (1..ranges.len()).collect();
    order.sort_by_key(|n| distance(*n));
    let mut kept = order.split_off(ranges.len().div_ceil(2).min(order.len()));
    kept.push(0);
    kept.sort_unstable();
    let ends = kept.iter().skip(1).copied().chain([ranges.len()]);
    let joined = kept.iter().zip(ends).map(|(from, to)| &ranges[*from..to]);
    joined.filter_map(|all| Some((all.first()?.0, all.last()?.1))).collect()
}

/// Emits a search for the address at X in `ranges`, which agree in all words before `word`.
fn search(asm: &mut Asm, ranges: &[(u128, u128)], word: u32, (hit, miss): (Label, Label)) {
    let cuts = cuts(ranges, word);
    if let [(_, only)] = &cuts[..]
        && !matches!(only, Cut::Next(_))
    {
        return asm.goto(if *only == Cut::Hit { hit } else { miss });
    }
    asm.load_word_at_x(4 * word);
    let mut later = Vec::new();
    halve(asm, &cuts, (hit, miss), &mut later);
    for (label, ranges) in later {
        asm.place(label);
        search(asm, &ranges, word + 1, (hit, miss));
    }
}

/// Emits the tests that find the cut of A. Adds the searches of the next word, with their labels,
/// to `later`; the caller emits them.
fn halve(
    asm: &mut Asm,
    cuts: &[(u32, Cut)],
    (hit, miss): (Label, Label),
    later: &mut Vec<(Label, Ranges)>,
) {
    if cuts.len() > NEAR {
        let (below, above) = cuts.split_at(cuts.len() / 2);
        let [left, right] = [(); 2].map(|()| asm.label());
        asm.branch(Test::AtLeast(above[0].0), right, left);
        asm.place(left);
        halve(asm, below, (hit, miss), later);
        asm.place(right);
        return halve(asm, above, (hit, miss), later);
    }
    let [near_hit, near_miss] = [(); 2].map(|()| asm.label());
    let targets = cuts.iter().map(|(first, cut)| match cut {
        Cut::Hit => (*first, near_hit),
        Cut::Miss => (*first, near_miss),
        Cut::Next(ranges) => {
            let label = asm.label();
            later.push((label, ranges.clone()));
            (*first, label)
        }
    });
    let targets: Vec<_> = targets.collect();
    test(asm, &targets);
    asm.place(near_hit);
    asm.goto(hit);
    asm.place(near_miss);
    asm.goto(miss);
}

/// Emits tests that jump to the target of the last entry that is not above A.
fn test(asm: &mut Asm, targets: &[(u32, Label)]) {
    if let [(_, only)] = targets {
        return asm.goto(*only);
    }
    let (below, above) = targets.split_at(targets.len() / 2);
    let [left, right] = [below, above].map(|side| match side {
        [(_, only)] => *only,
        _ => asm.label(),
    });
    asm.branch(Test::AtLeast(above[0].0), right, left);
    for (side, label) in [(below, left), (above, right)] {
        if side.len() > 1 {
            asm.place(label);
            test(asm, side);
        }
    }
}

/// Returns the values of a word at which the result changes, ascending from 0, with the results.
fn cuts(ranges: &[(u128, u128)], word: u32) -> Vec<(u32, Cut)> {
    let shift = 96 - 32 * word;
    let low = (1_u128 << shift) - 1;
    let value = |address: u128| (address >> shift) as u32;
    let mut parts: Vec<(u32, u32, Cut)> = Vec::new();
    let next_word =
        |at: u32, range: (u128, u128), parts: &mut Vec<(u32, u32, Cut)>| match parts.last_mut() {
            Some((first, _, Cut::Next(ranges))) if *first == at => ranges.push(range),
            _ => parts.push((at, at, Cut::Next(vec![range]))),
        };
    for &(first, last) in ranges {
        let (mut from, mut to) = (u64::from(value(first)), u64::from(value(last)) + 1);
        let (begins_inside, ends_inside) = (first & low != 0, last & low != low);
        if from + 1 == to && (begins_inside || ends_inside) {
            next_word(value(first), (first, last), &mut parts);
            continue;
        }
        if begins_inside {
            next_word(value(first), (first, first | low), &mut parts);
            from += 1;
        }
        to -= u64::from(ends_inside);
        if from < to {
            parts.push((from as u32, (to - 1) as u32, Cut::Hit));
        }
        if ends_inside {
            next_word(value(last), (last & !low, last), &mut parts);
        }
    }
    let (mut cuts, mut end) = (Vec::new(), Some(0));
    for (first, last, cut) in parts {
        if end != Some(first) {
            cuts.extend(end.map(|end| (end, Cut::Miss)));
        }
        cuts.push((first, cut));
        end = last.checked_add(1);
    }
    cuts.extend(end.map(|end| (end, Cut::Miss)));
    cuts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(prefixes: &[(&str, u8)]) -> PrefixSet {
        let parsed: Vec<_> = prefixes.iter().map(|(ip, n)| (ip.parse().unwrap(), *n)).collect();
        PrefixSet::new(&parsed).unwrap()
    }

    /// First and last address of each range.
    fn v4(set: &PrefixSet) -> Vec<(u32, u32)> {
        set.v4.iter().map(|(first, last)| ((first >> 96) as u32, (last >> 96) as u32)).collect()
    }

    #[test]
    fn prefixes_that_overlap_or_adjoin_become_one_range() {
        let some = set(&[("10.1.128.0", 17), ("10.1.0.0", 17), ("10.1.7.0", 24), ("10.3.0.9", 32)]);
        let at = |ip: [u8; 4]| u32::from_be_bytes(ip);
        let expected =
            [(at([10, 1, 0, 0]), at([10, 1, 255, 255])), (at([10, 3, 0, 9]), at([10, 3, 0, 9]))];
        assert_eq!(v4(&some), expected);
        assert_eq!(v4(&set(&[("1.2.3.4", 0), ("255.255.255.255", 32)])), [(0, u32::MAX)]);
        let v6 = set(&[("fd00:1:2::", 48), ("fd00::", 16), ("fd01::", 16), ("fe00::1", 128)]);
        let one = (0xfe00 << 112) | 1;
        assert_eq!(v6.v6, [(0xfd00 << 112, (0xfd02 << 112) - 1), (one, one)]);
    }

    #[test]
    fn a_coarser_set_joins_the_closest_ranges() {
        let some = set(&[("10.0.0.0", 24), ("10.0.2.0", 24), ("10.9.0.0", 16), ("10.0.4.0", 24)]);
        let coarser = some.coarser();
        let at = |ip: [u8; 4]| u32::from_be_bytes(ip);
        let expected =
            [(at([10, 0, 0, 0]), at([10, 0, 4, 255])), (at([10, 9, 0, 0]), at([10, 9, 255, 255]))];
        assert_eq!(v4(&coarser), expected);
        assert_eq!((coarser.coarser().len(), coarser.coarser().coarser().len()), (1, 1));
    }

    #[test]
    fn a_length_beyond_the_address_is_refused() {
        let wrong = PrefixSet::new(&[("10.0.0.0".parse().unwrap(), 33)]).unwrap_err();
        assert_eq!(wrong.to_string(), "10.0.0.0/33: a prefix length of at most 32 is expected");
    }
}
