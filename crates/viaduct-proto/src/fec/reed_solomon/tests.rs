use proptest::prelude::*;

use super::*;
use crate::fec::linear::Linear;
use crate::fec::testing::{Owned, Receiver, flush, packet, push};
use crate::rng::Rng;

fn encoder(r: u8, c: u8, interleave: u16) -> Encoder {
    Encoder::new(Parameters { r, c, interleave }, 1).unwrap()
}

#[test]
fn a_block_fires_all_its_repairs_with_its_last_packet() {
    let mut encoder = encoder(3, 2, 2);
    let fired: Vec<_> = (1..=6).map(|n| push(&mut encoder, &[n]).len()).collect();
    assert_eq!(fired, [0, 0, 0, 0, 2, 2]);
    let rows: Vec<_> = (1..=6).flat_map(|n| push(&mut encoder, &[n])).map(|r| r.row).collect();
    let (zero, one) = (Row::ReedSolomon { row: 0 }, Row::ReedSolomon { row: 1 });
    assert_eq!(rows, [zero, one, zero, one]);
}

#[test]
fn the_first_repair_is_the_exclusive_or() {
    let mut encoder = encoder(3, 3, 1);
    let packets: [&[u8]; 3] = [b"abcd", b"xy", b"123"];
    let repairs: Vec<_> = packets.iter().flat_map(|packet| push(&mut encoder, packet)).collect();
    let xor = |at: usize| packets.iter().fold(0, |sum, p| sum ^ p.get(at).unwrap_or(&0));
    assert_eq!(repairs[0].body, (0..4).map(xor).collect::<Vec<_>>());
    assert_eq!(repairs[0].len_code, [0, 4 ^ 2 ^ 3]);
}

#[test]
fn invalid_parameters_are_refused() {
    let check = |r, c, interleave| Parameters { r, c, interleave }.check();
    assert_eq!(check(0, 1, 1), Err(Error::NoSources));
    assert_eq!(check(1, 0, 1), Err(Error::NoRepairs));
    assert_eq!(check(1, 1, 0), Err(Error::NoInterleave));
    assert_eq!(check(200, 57, 1), Err(Error::BlockTooLong { r: 200, c: 57 }));
    assert_eq!(check(200, 56, 1), Ok(vec![]));
    let dearer = Warning::MoreRepairsThanPackets { repairs: 3, packets: 2 };
    assert_eq!(check(2, 3, 1), Ok(vec![dearer]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Any r of the r + c packets of a block are enough, short blocks included.
    #[test]
    fn any_c_losses_are_recovered(
        r in 1u8..40, c in 1u8..12, interleave in 1u16..6, short in 0usize..40, seed: u64,
    ) {
        let mut rng = Rng::from_seed(seed);
        let count = (usize::from(r) * usize::from(interleave)).saturating_sub(short).max(1);
        let sent: Vec<_> = (0..count).map(|_| packet(&mut rng, 200)).collect();
        let mut encoder = encoder(r, c, interleave);
        let repairs = sent.iter().flat_map(|packet| push(&mut encoder, packet));
        let mut repairs: Vec<_> = repairs.collect();
        repairs.extend(flush(&mut encoder));
        let mut receiver = Receiver::new(Linear::new(10 << 20));
        let mut losses = vec![u64::from(c); usize::from(interleave)];
        let mut lost = 0;
        for (seq, packet) in (1..).zip(&sent) {
            let left = &mut losses[seq as usize % usize::from(interleave)];
            if *left > 0 && rng.chance(0.5) {
                (*left, lost) = (*left - 1, lost + 1);
            } else {
                receiver.packet(seq, packet);
            }
        }
        // The rest of the losses that the block tolerates are losses of repairs.
        for repair in &repairs {
            let left = &mut losses[repair.cover.first as usize % usize::from(interleave)];
            if *left > 0 {
                *left -= 1;
            } else {
                receiver.repair(repair);
            }
        }
        prop_assert_eq!(receiver.recovered.len(), lost);
        receiver.check(&sent);
    }

    #[test]
    fn every_packet_is_covered_once(
        r in 1u8..20, interleave in 1u16..8, count in 1u64..200,
    ) {
        let mut encoder = encoder(r, 1, interleave);
        let mut repairs: Vec<_> = (0..count).flat_map(|n| push(&mut encoder, &[n as u8])).collect();
        repairs.extend(flush(&mut encoder));
        let mut covered: Vec<_> = repairs.iter().flat_map(Owned::seqs).collect();
        covered.sort_unstable();
        prop_assert_eq!(covered, (1..=count).collect::<Vec<_>>());
    }
}

#[test]
fn the_largest_block_works() {
    let mut rng = Rng::from_seed(3);
    let sent: Vec<_> = (0..128).map(|_| packet(&mut rng, 50)).collect();
    let mut encoder = encoder(128, 128, 1);
    let repairs: Vec<_> = sent.iter().flat_map(|packet| push(&mut encoder, packet)).collect();
    let mut receiver = Receiver::new(Linear::new(10 << 20));
    for repair in &repairs {
        receiver.repair(repair);
    }
    assert_eq!(receiver.recovered.len(), 128, "all packets from repairs alone");
    receiver.check(&sent);
}
