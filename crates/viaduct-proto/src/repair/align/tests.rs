use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::rng::Rng;

#[test]
fn tags_in_order_are_matched_and_others_are_missing_or_skipped() {
    let mut aligner = Aligner::default();
    for tag in [0x41, 0x07, 0x9e, 0x55, 0xe0, 0x12] {
        assert_eq!(aligner.arrive(tag), None);
    }
    let mut named = Vec::new();
    aligner.name(10, &[0x41, 0x07, 0xc3, 0x9e, 0x55, 0x12], &mut named);
    let arrived = |seq, arrival| (seq, Named::Arrived(arrival));
    let expected = [
        arrived(10, 0),
        arrived(11, 1),
        (12, Named::Missing),
        arrived(13, 2),
        arrived(14, 3),
        arrived(15, 5),
    ];
    assert_eq!(named, expected);
    assert_eq!(aligner.arrive(0xc3), None, "late, or the next packet");
    named.clear();
    aligner.name(16, &[0xe0, 0x77], &mut named);
    let expected = [arrived(16, 4), (17, Named::Missing)];
    assert_eq!(named, expected, "the first was named later than it arrived");
    named.clear();
    assert_eq!(aligner.arrive(0x88), None);
    aligner.name(18, &[0x88], &mut named);
    assert_eq!(named, [arrived(18, 7), arrived(12, 6)]);
}

#[test]
fn names_that_come_before_their_packets_wait_for_them() {
    let (mut aligner, mut named) = (Aligner::default(), Vec::new());
    aligner.name(1, &[7, 8, 9], &mut named);
    assert!(named.iter().all(|(_, of)| *of == Named::Missing));
    assert_eq!([7, 8, 9].map(|tag| aligner.arrive(tag)), [Some(1), Some(2), Some(3)]);
}

#[test]
fn many_manifests_in_a_row_may_be_lost() {
    let (mut aligner, mut rng, mut named) = (Aligner::default(), Rng::from_seed(1), Vec::new());
    let tags: Vec<_> = (0..3_000).map(|_| rng.next_u64() as Tag).collect();
    for (_, &tag) in tags.iter().enumerate().filter(|(n, _)| n % 50 != 7) {
        aligner.arrive(tag);
    }
    aligner.name(1, &tags[..64], &mut named);
    named.clear();
    aligner.name(2_801, &tags[2_800..2_864], &mut named);
    let missing: Vec<_> = named.iter().filter(|(_, of)| *of == Named::Missing).collect();
    assert_eq!(missing, [&(2_808, Named::Missing), &(2_858, Named::Missing)]);
}

#[test]
fn lost_names_may_arrive_late() {
    let (mut aligner, mut rng, mut named) = (Aligner::default(), Rng::from_seed(2), Vec::new());
    let tags: Vec<_> = (0..300).map(|_| rng.next_u64() as Tag).collect();
    let is_lost = |n: usize| n % 50 == 7 || (150..160).contains(&n);
    tags.iter().enumerate().filter(|(n, _)| !is_lost(*n)).for_each(|(_, &tag)| {
        aligner.arrive(tag);
    });
    aligner.name(1, &tags[..100], &mut named);
    aligner.name(201, &tags[200..], &mut named);
    named.clear();
    aligner.name(101, &tags[100..200], &mut named);
    let missing = named.iter().filter(|(_, of)| *of == Named::Missing).map(|(seq, _)| *seq - 1);
    let expected = (100..200).filter(|n| is_lost(*n)).map(|n| n as u64);
    assert_eq!(missing.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    assert_eq!(named.len(), 100);
}

#[test]
fn packets_are_matched_if_a_queue_drops_every_other_packet_and_names() {
    let (mut aligner, mut rng, mut named) = (Aligner::default(), Rng::from_seed(3), Vec::new());
    let tags: Vec<_> = (0..6_400).map(|_| rng.next_u64() as Tag).collect();
    let is_lost = |n: u64| n >= 640 && n % 2 == 1;
    let (mut wrong, mut late) = (0, Vec::new());
    for (n, names) in tags.chunks(64).enumerate() {
        let first = 64 * n as u64;
        for (seq, &tag) in (first..).zip(names).filter(|(seq, _)| !is_lost(*seq)) {
            assert_eq!(aligner.arrive(tag), None, "{seq}");
        }
        if n > 10 && n % 2 == 1 {
            late.push((first, names));
        } else {
            aligner.name(first, names, &mut named);
        }
        // Lost names are requested, and arrive a round trip later.
        if n % 8 == 0 {
            late.drain(..).for_each(|(first, names)| aligner.name(first, names, &mut named));
        }
        let is_wrong = |(seq, of): &(u64, Named)| (*of == Named::Missing) != is_lost(*seq);
        wrong += named.drain(..).filter(is_wrong).count();
    }
    assert!(wrong <= 20, "{wrong}");
}

#[test]
fn names_of_forgotten_packets_count_no_loss() {
    let (mut aligner, mut rng, mut named) = (Aligner::default(), Rng::from_seed(4), Vec::new());
    let tags: Vec<_> = (0..40_000).map(|_| rng.next_u64() as Tag).collect();
    let mut arrived = tags.iter().enumerate().filter(|(n, _)| n % 100 != 7).peekable();
    let names = |aligner: &mut Aligner, n: usize, named: &mut Vec<_>| {
        aligner.name(n as u64, &tags[n..n + 32], named);
    };
    // The names arrive long after the packets, too late to be of use.
    for n in (0..19_200).step_by(32) {
        arrived.by_ref().take(if n == 0 { 9_000 } else { 32 }).for_each(|(_, &tag)| {
            aligner.arrive(tag);
        });
        names(&mut aligner, n, &mut named);
    }
    assert!(named.iter().all(|(_, of)| *of != Named::Missing), "{} results", named.len());
    // The sender catches up.
    let next = arrived.peek().map_or(0, |(n, _)| *n).next_multiple_of(32);
    named.clear();
    for n in (next..next + 6_400).step_by(32) {
        names(&mut aligner, n, &mut named);
        while let Some((_, &tag)) = arrived.next_if(|(at, _)| *at < n + 64) {
            aligner.arrive(tag);
        }
    }
    let missing = named.iter().filter(|(_, of)| *of == Named::Missing);
    let right = missing.clone().filter(|(seq, _)| seq % 100 == 7).count();
    assert!(right >= 60 && missing.count() - right <= 2, "{right} of 64");
}

#[test]
fn state_is_bounded() {
    let (mut aligner, mut rng) = (Aligner::default(), Rng::from_seed(1));
    for seq in 0..20_000 {
        aligner.arrive(rng.next_u64() as Tag);
        if rng.chance(0.3) {
            let tags: Vec<_> = (0..64).map(|_| rng.next_u64() as Tag).collect();
            aligner.name(seq * 64, &tags, &mut Vec::new());
        }
        assert!(aligner.ahead.len() <= MAX_AHEAD);
        assert!(aligner.skipped.len() <= MAX_ASIDE && aligner.missing.len() <= MAX_ASIDE);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// The result is compared with the known packet of each arrival.
    #[test]
    fn nearly_all_packets_are_identified(
        seed: u64, loss in 0.0..0.2f64, late in 0.0..0.05f64,
        foreign in 0.0..0.02f64, unnamed in 0.0..0.05f64,
    ) {
        let mut rng = Rng::from_seed(seed);
        let (mut tags, mut sent) = (Vec::new(), Vec::new());
        for seq in 1..=4_000u64 {
            let tag = rng.next_u64() as Tag;
            tags.push(tag);
            let place = 10 * seq + if rng.chance(late) { 10 * rng.below(20) + 5 } else { 0 };
            if !rng.chance(loss) {
                sent.push((place, tag, Some(seq)));
            }
            if rng.chance(foreign) {
                sent.push((10 * seq + 1, rng.next_u64() as Tag, None));
            }
        }
        sent.sort_unstable();
        let mut aligner = Aligner::default();
        let (mut truth, mut matched) = (HashMap::new(), HashMap::new());
        let (mut sent, mut named) = (sent.into_iter().peekable(), Vec::new());
        let (all, mut repeats) = (tags.clone(), false);
        for (n, tags) in tags.chunks(33).enumerate() {
            let first = 1 + 33 * n as u64;
            // Names arrive after most of their packets.
            let now = 10 * (first + 33 + rng.below(20));
            while let Some((_, tag, seq)) = sent.next_if(|&(place, ..)| place < now) {
                let arrival = aligner.next_arrival();
                if let Some(seq) = seq {
                    truth.insert(seq, arrival);
                }
                if let Some(seq) = aligner.arrive(tag) {
                    matched.insert(seq, arrival);
                }
            }
            // Lost names are repeated once, before the next names.
            if std::mem::replace(&mut repeats, rng.chance(unnamed)) {
                let before = first - 33;
                aligner.name(before, &all[before as usize - 1..first as usize - 1], &mut named);
            }
            if !repeats {
                aligner.name(first, tags, &mut named);
            }
            for (seq, of) in named.drain(..) {
                match of {
                    Named::Arrived(arrival) => drop(matched.insert(seq, arrival)),
                    Named::Missing => {}
                }
            }
        }
        let wrong = (1..=3_900u64).filter(|seq| truth.get(seq) != matched.get(seq)).count();
        prop_assert!(wrong <= 4, "{wrong} wrong at loss {loss}, late {late}, foreign {foreign}");
    }
}
