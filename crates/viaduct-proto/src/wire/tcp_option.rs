//! TCP options: lookup and modification.

use std::ops::Range;

use super::ip::internet_checksum;

/// Option kind: end of the list.
const END: u8 = 0;
/// Option kind: padding (no-operation).
const PADDING: u8 = 1;
/// Length of an option before its value, in bytes.
const HEAD: usize = 2;
/// Offset of the checksum in the TCP header.
const CHECKSUM: usize = 16;

/// Range of the value of the first option of this kind, within the options.
pub(super) fn find(options: &[u8], kind: u8) -> Option<Range<usize>> {
    let mut at = 0;
    loop {
        match *options.get(at)? {
            END => return None,
            PADDING => at += 1,
            of => {
                let end = at + usize::from(*options.get(at + 1)?).max(HEAD);
                if of == kind {
                    return (end <= options.len()).then_some(at + HEAD..end);
                }
                at = end;
            }
        }
    }
}

/// Overwrites bytes of the TCP header at `tcp`, beginning at offset `at` in the packet, and updates
/// the checksum (RFC 1624).
pub(super) fn set(packet: &mut [u8], tcp: usize, at: usize, value: &[u8]) {
    // The bytes may begin or end at an odd offset: the checksum needs whole words from the TCP
    // header's start.
    let first = at - (at - tcp) % 2;
    let end = at + value.len() + (at + value.len() - tcp) % 2;
    let words = first..end.min(packet.len());
    let before = internet_checksum(&packet[words.clone()]);
    packet[at..at + value.len()].copy_from_slice(value);
    let after = internet_checksum(&packet[words]);
    let place = tcp + CHECKSUM;
    let sum = u16::from_be_bytes([packet[place], packet[place + 1]]);
    // `internet_checksum` returns complements, so this adds ~old + new to the complement of the
    // sum.
    let folded = u32::from(!sum) + u32::from(before) + u32::from(!after);
    let folded = (folded & 0xffff) + (folded >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    packet[place..place + 2].copy_from_slice(&(!(folded as u16)).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_option_is_found_after_others_unless_it_is_truncated() {
        let options = [1, 2, 4, 5, 6, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];
        assert_eq!((find(&options, 2), find(&options, 8)), (Some(3..5), Some(8..16)));
        assert_eq!((find(&options, 5), find(&options[..15], 8)), (None, None));
        assert_eq!(find(&[0, 2, 4, 5, 6], 2), None);
    }

    proptest! {
        #[test]
        fn finding_never_panics(options: Vec<u8>, kind: u8) {
            if let Some(range) = find(&options, kind) {
                prop_assert!(range.end <= options.len());
            }
        }

        #[test]
        fn a_correct_checksum_stays_correct(
            mut packet in prop::collection::vec(any::<u8>(), 44..80),
            odd: bool, at in 20..36usize, value: [u8; 4],
        ) {
            let tcp = usize::from(odd);
            packet[tcp + CHECKSUM..tcp + CHECKSUM + 2].fill(0);
            let sum = internet_checksum(&packet[tcp..]);
            packet[tcp + CHECKSUM..tcp + CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
            set(&mut packet, tcp, tcp + at, &value);
            prop_assert_eq!(&packet[tcp + at..tcp + at + 4], &value);
            prop_assert_eq!(internet_checksum(&packet[tcp..]), 0);
        }
    }
}
