use proptest::prelude::*;

use super::*;
use crate::fec::coefficient::coefficient;
use crate::fec::sum::Sum;
use crate::fec::testing::{Owned, Receiver, Store};
use crate::fec::{Cover, Draw, Row};
use crate::rng::Rng;

/// Repair of `row` over packets; `sent[0]` is packet 1.
fn repair(row: Row, cover: Cover, sent: &[Vec<u8>]) -> Owned {
    let mut sum = Sum::default();
    for (position, seq) in (0..).zip(cover.seqs()) {
        sum.add_packet(&sent[seq as usize - 1], coefficient(row, cover, position));
    }
    Owned { cover, row, len_code: sum.len_code, body: sum.bytes().to_vec() }
}

fn window(seed: u16, first: Seq, count: u16) -> (Row, Cover) {
    (Row::Window(Draw { seed, dense: count, density: 0 }), Cover { first, stride: 1, count })
}

fn packets(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|n| vec![n as u8; n % 7 + 1]).collect()
}

#[test]
fn solvable_packets_are_recovered_while_the_others_wait() {
    let sent = packets(6);
    let mut receiver = Receiver::new(Linear::new(100_000));
    let mut take = |seed, first, count| {
        let (row, cover) = window(seed, first, count);
        let verdict = receiver.repair(&repair(row, cover, &sent));
        (verdict, receiver.recovered.clone())
    };
    assert_eq!(take(1, 1, 5), (Verdict::Stored, vec![]));
    assert_eq!(take(2, 2, 2), (Verdict::Stored, vec![]));
    assert_eq!(take(3, 2, 2), (Verdict::Used, vec![2, 3]), "1, 4 and 5 still wait");
    assert_eq!(take(4, 4, 1), (Verdict::Used, vec![2, 3, 4]));
    assert_eq!(take(5, 5, 1), (Verdict::Used, vec![2, 3, 4, 1, 5]));
    receiver.check(&sent);
    assert_eq!(receiver.decoder.memory(), 0);
}

#[test]
fn a_repeated_repair_is_useless() {
    let sent = packets(4);
    let mut receiver = Receiver::new(Linear::new(100_000));
    let (row, cover) = window(1, 1, 4);
    let repair = repair(row, cover, &sent);
    assert_eq!(receiver.repair(&repair), Verdict::Stored);
    assert_eq!(receiver.repair(&repair), Verdict::Useless);
}

#[test]
fn late_packets_are_substituted() {
    let sent = packets(4);
    for late in 1..=3 {
        let mut receiver = Receiver::new(Linear::new(100_000));
        for seed in [1, 2] {
            let (row, cover) = window(seed, 1, 3);
            assert_eq!(receiver.repair(&repair(row, cover, &sent)), Verdict::Stored);
        }
        receiver.packet(late, &sent[late as usize - 1]);
        assert_eq!(receiver.recovered.len(), 2, "packet {late} came late");
        receiver.check(&sent);
        assert_eq!(receiver.decoder.memory(), 0);
    }
}

#[test]
fn memory_is_bounded() {
    let sent: Vec<_> = (0..2000).map(|n| vec![n as u8; 1000]).collect();
    let mut receiver = Receiver::new(Linear::new(20_000));
    for first in (1..1990).step_by(2) {
        let (row, cover) = window(first as u16, first, 2);
        receiver.repair(&repair(row, cover, &sent));
        assert!(receiver.decoder.memory() <= 20_000);
    }
    assert!(receiver.decoder.equations.len() < 95);
    receiver.packet(1, &sent[0]);
    receiver.packet(1989, &sent[1988]);
    assert_eq!(receiver.recovered, [1990], "the newest is recovered, the oldest is not");
}

#[test]
fn old_equations_are_forgotten() {
    let sent = packets(20);
    let mut receiver = Receiver::new(Linear::new(100_000));
    for first in [1, 9] {
        let (row, cover) = window(1, first, 2);
        receiver.repair(&repair(row, cover, &sent));
    }
    receiver.decoder.forget_below(10);
    receiver.packet(1, &sent[0]);
    receiver.packet(9, &sent[8]);
    assert_eq!(receiver.recovered, [10]);
}

#[test]
fn impossible_repairs_are_refused() {
    let sent = packets(4);
    let (row, cover) = window(1, 1, 2);
    let fine = repair(row, cover, &sent);
    let with = |change: fn(&mut Owned)| {
        let mut repair = fine.clone();
        change(&mut repair);
        Receiver::new(Linear::new(10_000)).repair(&repair)
    };
    assert_eq!(with(|_| ()), Verdict::Stored);
    assert_eq!(with(|r| r.cover.count = 0), Verdict::Refused);
    assert_eq!(with(|r| r.cover.stride = 0), Verdict::Refused);
    assert_eq!(with(|r| r.cover.first = 0), Verdict::Refused);
    assert_eq!(with(|r| r.cover.first = Seq::MAX), Verdict::Refused);
    assert_eq!(with(|r| r.row = Row::ReedSolomon { row: 254 }), Verdict::Refused, "no such row");
    assert_eq!(with(|r| r.body = vec![0; 20_000]), Verdict::Refused, "beyond the bound");
}

/// Repair of two packets, `distance` apart.
fn pair(seed: u16, first: Seq, distance: u16, sent: &[Vec<u8>]) -> Owned {
    let (row, cover) = window(seed, first, 2);
    repair(row, Cover { stride: distance, ..cover }, sent)
}

#[test]
fn equations_whose_packets_are_far_apart_are_held_within_limits() {
    let sent = packets(100_000);
    let mut receiver = Receiver::new(Linear::new(1 << 20));
    assert_eq!(receiver.repair(&pair(1, 1, u16::MAX, &sent)), Verdict::Stored);
    // The first equation would cover 1 to 65,537.
    assert_eq!(receiver.repair(&pair(2, 1 << 16, 1, &sent)), Verdict::Stored);
    assert_eq!(receiver.decoder.equations.keys().collect::<Vec<_>>(), [&(1 << 16)]);
    // With this one it covers 65,536 to 95,537.
    assert_eq!(receiver.repair(&pair(3, 65_537, 30_000, &sent)), Verdict::Stored);
    receiver.packet(95_537, &sent[95_536]);
    assert_eq!(receiver.recovered, [65_536, 65_537]);
    receiver.check(&sent);
    assert_eq!(receiver.decoder.memory(), 0);
}

#[test]
fn an_equation_that_has_become_short_takes_little_memory() {
    let sent = packets(70_000);
    let mut receiver = Receiver::new(Linear::new(1 << 20));
    receiver.repair(&pair(1, 1, 60_000, &sent));
    let (row, cover) = window(2, 60_001, 3);
    receiver.repair(&repair(row, cover, &sent));
    assert!(receiver.decoder.memory() > 60_000, "1, 60,002 and 60,003 are in one equation");
    receiver.packet(1, &sent[0]);
    assert!(receiver.decoder.memory() < 2_000);
    receiver.packet(60_003, &sent[60_002]);
    assert_eq!(receiver.recovered, [60_001, 60_002]);
    receiver.check(&sent);
    assert_eq!(receiver.decoder.memory(), 0);
}

#[test]
fn the_highest_numbers_are_recovered() {
    let (row, cover) = window(1, Seq::MAX - 2, 2);
    let mut decoder = Linear::new(10_000);
    let repair = Repair { cover, row, len_code: [0; 2], body: &[1] };
    let mut recovered = Recovered::default();
    let verdict = decoder.repair(repair, &Store::default(), &mut recovered);
    assert_eq!(verdict, Verdict::Stored);
}

/// Returns which unknown packets the equations determine, by brute-force Gaussian elimination of
/// all equations.
fn determined(mut rows: Vec<Vec<u8>>, unknown: usize) -> Vec<bool> {
    use crate::fec::kernel::gf::{inverse, mul};
    let mut done = 0;
    for column in 0..unknown {
        let Some(pivot) = (done..rows.len()).find(|&row| rows[row][column] != 0) else { continue };
        rows.swap(done, pivot);
        let scale = inverse(rows[done][column]);
        rows[done].iter_mut().for_each(|x| *x = mul(*x, scale));
        let pivot = rows[done].clone();
        for (index, row) in rows.iter_mut().enumerate() {
            let factor = row[column];
            if index != done && factor != 0 {
                row.iter_mut().zip(&pivot).for_each(|(x, y)| *x ^= mul(factor, *y));
            }
        }
        done += 1;
    }
    let alone = |column: usize| {
        rows.iter().any(|row| row[column] != 0 && row.iter().filter(|x| **x != 0).count() == 1)
    };
    (0..unknown).map(alone).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// After every event, the known packets are exactly those that have arrived or are determined.
    #[test]
    fn every_determined_packet_is_recovered_immediately(
        seed: u64,
        total in 2usize..14,
        events in prop::collection::vec((any::<u16>(), 0u8..4), 1..40),
    ) {
        let mut rng = Rng::from_seed(seed);
        let sent = packets(total);
        let mut receiver = Receiver::new(Linear::new(1 << 20));
        let mut rows = Vec::new();
        for (number, kind) in events {
            let first = 1 + rng.below(total as u64);
            let stride = 1 + rng.below(3) as u16;
            let most = (total as u64 - first) / u64::from(stride) + 1;
            let cover = Cover { first, stride, count: 1 + rng.below(most) as u16 };
            let row = match kind {
                0 => {
                    if receiver.store.0.contains_key(&first) { continue }
                    receiver.packet(first, &sent[first as usize - 1]);
                    let mut row = vec![0; total];
                    row[first as usize - 1] = 1;
                    rows.push(row);
                    None
                }
                1 => Some(Row::Xor { layer: 0 }),
                2 => Some(Row::ReedSolomon { row: number as u8 % 200 }),
                _ => Some(Row::Window(Draw { seed: number, dense: 1 + number % 7, density: 100 })),
            };
            if let Some(row) = row {
                receiver.repair(&repair(row, cover, &sent));
                let mut equation = vec![0; total];
                for (position, seq) in (0..).zip(cover.seqs()) {
                    equation[seq as usize - 1] = coefficient(row, cover, position);
                }
                rows.push(equation);
            }
            let has = |seq| receiver.store.0.contains_key(&seq);
            let known: Vec<_> = (1..=total as Seq).map(has).collect();
            prop_assert_eq!(known, determined(rows.clone(), total));
        }
        receiver.check(&sent);
    }
}
