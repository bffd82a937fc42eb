//! Minimal sets of prefixes, and the code that tests an address against them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::FilterError;
use super::asm::{Asm, Label, Test};

/// Prefixes of both families, none of which contains another.
#[derive(Debug, Default)]
pub(super) struct PrefixSet {
    /// First and last address of each range. The ranges ascend, and neither overlap nor adjoin.
    v4: Vec<(u32, u32)>,
    /// Network and length, ascending.
    v6: Vec<(u128, u8)>,
}

impl PrefixSet {
    pub(super) fn new(prefixes: &[(IpAddr, u8)]) -> Result<PrefixSet, FilterError> {
        let mut set = PrefixSet::default();
        for &(address, length) in prefixes {
            match address {
                IpAddr::V4(v4) if length <= 32 => set.v4.push(range(v4, length)),
                IpAddr::V6(v6) if length <= 128 => set.v6.push((network(v6, length), length)),
                _ => return Err(FilterError::Length { address, length }),
            }
        }
        set.v4.sort_unstable();
        set.v4.dedup_by(|next, last| {
            let joins = next.0 <= last.1.saturating_add(1);
            if joins {
                last.1 = last.1.max(next.1);
            }
            joins
        });
        set.v6.sort_unstable();
        set.v6.dedup_by(|next, last| next.0 & mask(last.1) == last.0);
        Ok(set)
    }

    /// Emits a jump to `hit` if the IPv4 address at X is in the set, else to `miss`.
    pub(super) fn test_v4(&self, asm: &mut Asm, hit: Label, miss: Label) {
        asm.load_word_at_x(0);
        // If the targets are within reach of a short jump, a range needs only two instructions.
        for ranges in self.v4.chunks(100) {
            let [near_hit, near_miss, on] = [(); 3].map(|()| asm.label());
            for &(first, last) in ranges {
                // An address below this range and above the previous one is in no range, as the
                // ranges ascend.
                asm.jump_unless(Test::AtLeast(first), near_miss);
                let next = asm.label();
                asm.branch(Test::Above(last), next, near_hit);
                asm.place(next);
            }
            asm.goto(on);
            asm.place(near_hit);
            asm.goto(hit);
            asm.place(near_miss);
            asm.goto(miss);
            asm.place(on);
        }
        asm.goto(miss);
    }

    /// Emits a jump to `hit` if the IPv6 address at X is in the set, else to `miss`.
    pub(super) fn test_v6(&self, asm: &mut Asm, hit: Label, miss: Label) {
        for &(network, length) in &self.v6 {
            let next = asm.label();
            for word in 0..u32::from(length).div_ceil(32) {
                let shift = 96 - 32 * word;
                let mask = (mask(length) >> shift) as u32;
                asm.load_word_at_x(4 * word);
                if mask != u32::MAX {
                    asm.and(mask);
                }
                asm.jump_unless(Test::Equal((network >> shift) as u32), next);
            }
            asm.goto(hit);
            asm.place(next);
        }
        asm.goto(miss);
    }
}

fn range(address: Ipv4Addr, length: u8) -> (u32, u32) {
    let host = u32::MAX.checked_shr(length.into()).unwrap_or(0);
    (address.to_bits() & !host, address.to_bits() | host)
}

fn network(address: Ipv6Addr, length: u8) -> u128 {
    address.to_bits() & mask(length)
}

fn mask(length: u8) -> u128 {
    !u128::MAX.checked_shr(length.into()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(prefixes: &[(&str, u8)]) -> PrefixSet {
        let parsed: Vec<_> = prefixes.iter().map(|(ip, n)| (ip.parse().unwrap(), *n)).collect();
        PrefixSet::new(&parsed).unwrap()
    }

    #[test]
    fn what_overlaps_or_touches_becomes_one() {
        let v4 = set(&[("10.1.128.0", 17), ("10.1.0.0", 17), ("10.1.7.0", 24), ("10.3.0.9", 32)]);
        let at = |ip: [u8; 4]| u32::from_be_bytes(ip);
        let expected =
            [(at([10, 1, 0, 0]), at([10, 1, 255, 255])), (at([10, 3, 0, 9]), at([10, 3, 0, 9]))];
        assert_eq!(v4.v4, expected);
        assert_eq!(set(&[("1.2.3.4", 0), ("255.255.255.255", 32)]).v4, [(0, u32::MAX)]);
        let v6 = set(&[("fd00:1:2::", 48), ("fd00::", 16), ("fe00::1", 128)]);
        assert_eq!(v6.v6, [(0xfd00 << 112, 16), ((0xfe00 << 112) | 1, 128)]);
    }

    #[test]
    fn a_length_beyond_the_address_is_refused() {
        let wrong = PrefixSet::new(&[("10.0.0.0".parse().unwrap(), 33)]).unwrap_err();
        assert_eq!(wrong.to_string(), "10.0.0.0/33: a prefix length of at most 32 is expected");
    }
}
