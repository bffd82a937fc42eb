//! Acknowledgements of TCP that say that a segment came twice (D-SACK, RFC 2883): its sender has sent again what was
//! not lost.

use super::tcp_option;
use super::transport::{self, Segment};

const TCP_MIN: usize = 20;
const ACK: u8 = 0x10;
/// Option kind: selective acknowledgement.
const SACK: u8 = 5;
/// Bytes of a block's two numbers.
const BLOCK: usize = 8;

/// The numbers that came twice, from the first to before the other, if a whole IP packet is such an acknowledgement;
/// not one in fragments, or with extension headers.
pub fn dsack(packet: &[u8]) -> Option<(u32, u32)> {
    segment(packet).and_then(old_block)
}

/// Whether a whole IP packet is an acknowledgement and nothing else, whose loss the next one makes up
/// for: one that says that a segment came twice says so once.
pub fn is_plain_ack(packet: &[u8]) -> bool {
    Segment::parse(packet).is_some_and(|segment| segment.is_bare_ack()) && dsack(packet).is_none()
}

fn segment(packet: &[u8]) -> Option<&[u8]> {
    transport::payload(packet).filter(|&(protocol, _)| protocol == transport::TCP).map(|(_, of)| of)
}

/// The first block of a segment's SACK option, if it lies below what is acknowledged, or within the second.
fn old_block(segment: &[u8]) -> Option<(u32, u32)> {
    let header = segment.get(..usize::from(*segment.get(12)? >> 4) * 4)?;
    if header.len() <= TCP_MIN || header[13] & ACK == 0 {
        return None;
    }
    let number = |bytes: &[u8]| Some(u32::from_be_bytes(*bytes.first_chunk()?));
    let acknowledged = number(&header[8..])?;
    let options = &header[TCP_MIN..];
    let blocks = options.get(tcp_option::find(options, SACK)?)?;
    let edges = |block: &[u8]| Some((number(block)?, number(block.get(4..)?)?));
    let is_below = |a: u32, b: u32| a.wrapping_sub(b).cast_signed() < 0;
    let (left, right) = edges(blocks)?;
    if is_below(left, acknowledged) {
        return Some((left, right));
    }
    let (from, to) = edges(blocks.get(BLOCK..)?)?;
    (!is_below(left, from) && !is_below(to, right)).then_some((left, right))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::transport::TCP;
    use proptest::prelude::*;

    /// An acknowledgement of byte 1,000 with these blocks, behind a timestamp.
    fn acknowledgement(blocks: &[(u32, u32)], ipv6: bool) -> Vec<u8> {
        let mut options = vec![1, 1, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0];
        if !blocks.is_empty() {
            options.extend([1, 1, SACK, 2 + 8 * blocks.len() as u8]);
            let edges = blocks.iter().flat_map(|&(left, right)| [left, right]);
            options.extend(edges.flat_map(u32::to_be_bytes));
        }
        let mut packet = vec![0; if ipv6 { 40 } else { 20 }];
        (packet[0], packet[if ipv6 { 6 } else { 9 }]) = (if ipv6 { 0x60 } else { 0x45 }, TCP);
        let mut segment = vec![0; TCP_MIN];
        segment[8..12].copy_from_slice(&1_000u32.to_be_bytes());
        segment[12] = ((TCP_MIN + options.len()) as u8 / 4) << 4;
        segment[13] = ACK;
        packet.extend(segment);
        packet.extend(options);
        packet
    }

    #[test]
    fn acknowledgements_that_say_what_the_next_one_does_not_are_not_plain() {
        let of = |blocks: &[(u32, u32)]| is_plain_ack(&acknowledgement(blocks, false));
        assert!(of(&[]) && of(&[(2_000, 3_000)]));
        assert!(!of(&[(500, 900)]) && !of(&[(2_100, 2_200), (2_000, 3_000)]));
    }

    #[test]
    fn a_block_below_what_is_acknowledged_or_within_the_next_came_twice() {
        for ipv6 in [false, true] {
            let is = |blocks: &[(u32, u32)]| {
                dsack(&acknowledgement(blocks, ipv6)) == blocks.first().copied()
            };
            assert!(is(&[(500, 900)]) && is(&[(500, 900), (2_000, 3_000)]));
            assert!(is(&[(2_100, 2_200), (2_000, 3_000)]) && is(&[(2_000, 3_000), (2_000, 3_000)]));
            assert!(!is(&[(2_000, 3_000)]) && !is(&[(2_000, 3_000), (4_000, 5_000)]));
            assert_eq!(dsack(&acknowledgement(&[], ipv6)), None);
        }
        let mut fragment = acknowledgement(&[(500, 900)], false);
        fragment[6] = 0x20;
        assert_eq!(dsack(&fragment), None);
    }

    proptest! {
        #[test]
        fn reading_never_panics(bytes: Vec<u8>, at in 0..100usize) {
            dsack(&bytes);
            let mut packet = acknowledgement(&[(500, 900)], false);
            let cut = at.min(packet.len());
            packet.truncate(cut);
            packet.extend(bytes);
            dsack(&packet);
        }
    }
}
