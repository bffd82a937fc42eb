//! Selective acknowledgements of TCP: they report the highest segment that has arrived (SACK, RFC
//! 2018), and a duplicate segment (D-SACK, RFC 2883), which reveals a spurious retransmission.

use super::tcp_option;
use super::transport::{self, Segment, TCP_MIN, number};

const ACK: u8 = 0x10;
/// Option kind: selective acknowledgement.
const SACK: u8 = 5;
/// Length of a block, two sequence numbers, in bytes.
const BLOCK: usize = 8;

/// Fields of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// Number after the highest byte that has arrived, even if earlier ones are missing.
    pub highest: u32,
    /// Range of duplicate bytes: first number, and number after the last.
    pub twice: Option<(u32, u32)>,
}

/// Parses a complete IP packet; `None` if it is not an acknowledgement, is a fragment, or has
/// extension headers.
pub fn acknowledged(packet: &[u8]) -> Option<Acknowledged> {
    let (_, header) = transport::tcp_header(packet).filter(|(_, header)| header[13] & ACK != 0)?;
    let acknowledged = number(&header[8..])?;
    let options = &header[TCP_MIN..];
    let blocks = tcp_option::find(options, SACK).map_or(&[][..], |at| &options[at]);
    let mut blocks = blocks.chunks_exact(BLOCK).filter_map(edges);
    let (first, second) = (blocks.next(), blocks.next());
    let is_old = first.is_some_and(|first| is_old(first, second, acknowledged));
    // Blocks may have any edges. The result is never below the acknowledged number.
    let ahead = |number: u32| number.wrapping_sub(acknowledged).cast_signed();
    let highest = |highest, (_, right)| if ahead(right) > ahead(highest) { right } else { highest };
    let highest = first.into_iter().chain(second).chain(blocks).fold(acknowledged, highest);
    Some(Acknowledged { highest, twice: first.filter(|_| is_old) })
}

/// Returns whether a complete IP packet is a plain acknowledgement: if such a packet is lost, the
/// next one replaces it. An acknowledgement with a D-SACK is not plain, because a duplicate is
/// reported only once.
pub fn is_plain_ack(packet: &[u8]) -> bool {
    Segment::parse(packet).is_some_and(|segment| segment.is_bare_ack())
        && acknowledged(packet).is_none_or(|of| of.twice.is_none())
}

fn edges(block: &[u8]) -> Option<(u32, u32)> {
    Some((number(block)?, number(block.get(4..)?)?))
}

fn is_below(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() < 0
}

/// Returns whether the first block is a D-SACK: it begins below the acknowledged number, or is
/// within the second block.
fn is_old((left, right): (u32, u32), second: Option<(u32, u32)>, acknowledged: u32) -> bool {
    is_below(left, acknowledged)
        || second.is_some_and(|(from, to)| !is_below(left, from) && !is_below(to, right))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::transport::TCP;
    use proptest::prelude::*;

    /// An acknowledgement of byte 1,000 with these blocks, after a timestamp.
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
    fn acknowledgements_that_the_next_one_does_not_replace_are_not_plain() {
        let of = |blocks: &[(u32, u32)]| is_plain_ack(&acknowledgement(blocks, false));
        assert!(of(&[]) && of(&[(2_000, 3_000)]));
        assert!(!of(&[(500, 900)]) && !of(&[(2_100, 2_200), (2_000, 3_000)]));
    }

    #[test]
    fn a_block_below_the_acknowledgement_or_within_the_next_is_a_duplicate() {
        for ipv6 in [false, true] {
            let is = |blocks: &[(u32, u32)]| {
                let twice = acknowledged(&acknowledgement(blocks, ipv6)).unwrap().twice;
                twice.is_some() && twice == blocks.first().copied()
            };
            assert!(is(&[(500, 900)]) && is(&[(500, 900), (2_000, 3_000)]));
            assert!(is(&[(2_100, 2_200), (2_000, 3_000)]) && is(&[(2_000, 3_000), (2_000, 3_000)]));
            assert!(!is(&[(2_000, 3_000)]) && !is(&[(2_000, 3_000), (4_000, 5_000)]));
            let highest = |blocks: &[(u32, u32)]| {
                acknowledged(&acknowledgement(blocks, ipv6)).unwrap().highest
            };
            assert_eq!((highest(&[]), highest(&[(500, 900)])), (1_000, 1_000));
            assert_eq!(highest(&[(4_000, 5_000), (2_000, 3_000)]), 5_000);
        }
        let mut fragment = acknowledgement(&[(500, 900)], false);
        fragment[6] = 0x20;
        assert_eq!(acknowledged(&fragment), None);
    }

    proptest! {
        #[test]
        fn reading_never_panics(bytes: Vec<u8>, at in 0..100usize) {
            acknowledged(&bytes);
            let mut packet = acknowledgement(&[(500, 900)], false);
            let cut = at.min(packet.len());
            packet.truncate(cut);
            packet.extend(bytes);
            acknowledged(&packet);
        }
    }
}
