use super::*;
use crate::fec::testing::{Owned, Receiver, flush, packet, push};
use crate::fec::{Decoder as _, linear::Linear};
use crate::rng::Rng;

fn encoder(window: u16, repairs: u16, packets: u16) -> Encoder {
    Encoder::new(Parameters { window, repairs, packets }, 1).unwrap()
}

#[test]
fn repairs_come_evenly_and_cover_the_window() {
    let mut encoder = encoder(4, 2, 5);
    let mut fired = Vec::new();
    for seq in 1..=10 {
        fired.extend(push(&mut encoder, &[seq]).iter().map(|r| (seq, r.seqs())));
    }
    // A repair covers a whole number of intervals between repairs, and at least the window.
    let expected = [
        (3, vec![1, 2, 3]),
        (5, vec![1, 2, 3, 4, 5]),
        (8, vec![4, 5, 6, 7, 8]),
        (10, vec![6, 7, 8, 9, 10]),
    ];
    assert_eq!(fired, expected);
}

#[test]
fn a_flush_covers_the_last_packets_once() {
    let mut encoder = encoder(4, 1, 3);
    push(&mut encoder, &[1]);
    let covers: Vec<_> = flush(&mut encoder).iter().map(Owned::seqs).collect();
    assert_eq!(covers, [vec![1]]);
    assert_eq!(flush(&mut encoder), []);
}

#[test]
fn a_flush_recovers_a_burst_at_the_end() {
    let mut encoder = encoder(20, 3, 10);
    let mut receiver = Receiver::new(Linear::new(1 << 20));
    let sent: Vec<_> = (0..14u8).map(|n| vec![n; 100]).collect();
    for (seq, packet) in (1..).zip(&sent) {
        let fired = push(&mut encoder, packet);
        if seq < 12 {
            receiver.packet(seq, packet);
            for repair in &fired {
                receiver.repair(repair);
            }
        }
    }
    for repair in &flush(&mut encoder) {
        receiver.repair(repair);
    }
    assert_eq!(receiver.recovered.len(), 3);
    receiver.check(&sent);
}

#[test]
fn invalid_parameters_are_refused_and_gaps_cause_a_warning() {
    let check = |window, repairs, packets| Parameters { window, repairs, packets }.check();
    assert_eq!(check(0, 1, 1), Err(Error::NoWindow));
    assert_eq!(check(1, 0, 1), Err(Error::NoRepairs));
    assert_eq!(check(1, 1, 0), Err(Error::NoRate));
    assert_eq!(check(9, 1, 10), Ok(vec![Warning::WindowLeavesGaps { window: 9, gap: 10 }]));
    assert_eq!(check(100, 1, 10), Ok(vec![]));
}

/// Loses packets `from` to `from + burst - 1` and the repairs between them. Returns for each
/// lost packet the number of the last packet sent before its recovery.
fn recovered_at(encoder: &mut Encoder, from: Seq, burst: u64) -> Vec<Seq> {
    let mut rng = Rng::from_seed(burst);
    let mut receiver = Receiver::new(Linear::new(10 << 20));
    let (mut sent, mut at) = (Vec::new(), Vec::new());
    for seq in 1..=1000 {
        let packet = packet(&mut rng, 300);
        let lost = (from..from + burst).contains(&seq);
        if !lost {
            receiver.packet(seq, &packet);
        }
        for repair in push(encoder, &packet) {
            if !lost {
                receiver.repair(&repair);
            }
        }
        sent.push(packet);
        at.resize(receiver.recovered.len(), seq);
    }
    receiver.check(&sent);
    assert_eq!(receiver.decoder.memory(), 0);
    at
}

#[test]
fn a_single_loss_is_recovered_by_the_next_repair() {
    assert_eq!(recovered_at(&mut encoder(200, 1, 10), 501, 1), [510]);
    assert_eq!(recovered_at(&mut encoder(200, 1, 10), 510, 1), [520], "its repair was lost too");
}

#[test]
fn a_burst_is_recovered_in_time_proportional_to_its_length() {
    for burst in [2, 5, 10, 15, 18] {
        let at = recovered_at(&mut encoder(255, 1, 10), 501, burst);
        assert_eq!(at.len() as u64, burst, "all of a burst of {burst}");
        // One repair for each packet, and one more in the rare case that two are linearly
        // dependent.
        let last = 500 + burst + 10 * (burst + 1) + 10;
        assert!(at.iter().all(|&seq| seq <= last), "burst of {burst}: {at:?}, later than {last}");
    }
}

#[test]
fn random_losses_below_the_overhead_are_recovered() {
    let mut rng = Rng::from_seed(11);
    let mut encoder = encoder(250, 1, 10);
    let mut lose = |_| rng.chance(0.03);
    let decoder = Linear::new(10 << 20);
    let (lost, back) = crate::fec::testing::run(&mut encoder, decoder, 20_000, 40, &mut lose);
    assert!(lost > 500 && lost - back <= 2, "{back} of {lost}");
}

/// Loss process of a link: `loss` of all packets, in bursts of `burst`.
fn losses(loss: f64, burst: u64) -> impl FnMut() -> bool {
    let (mut rng, mut left) = (Rng::from_seed(7), 0);
    move || {
        if left == 0 && rng.chance(loss / burst as f64) {
            left = burst;
        }
        let lost = left > 0;
        left -= u64::from(lost);
        lost
    }
}

/// Unrecovered packets of 100,000, and 99th percentile of the recovery delay, in packets.
fn outcome(encoder: &mut Encoder, mut lost: impl FnMut() -> bool) -> (u64, u64) {
    let mut receiver = Receiver::new(Linear::new(64 << 20));
    let (mut missing, mut late) = (0, Vec::new());
    for seq in 1..=100_000u64 {
        let packet = seq.to_be_bytes();
        match lost() {
            true => missing += 1,
            false => receiver.packet(seq, &packet),
        }
        for repair in push(encoder, &packet) {
            if lost() {
                continue;
            }
            let before = receiver.recovered.len();
            receiver.repair(&repair);
            late.extend(receiver.recovered[before..].iter().map(|back| seq - back));
        }
        if seq % 256 == 0 {
            receiver.decoder.forget_below(seq.saturating_sub(2_500));
        }
    }
    late.sort_unstable();
    (missing - late.len() as u64, late[late.len() * 99 / 100])
}

#[test]
fn a_share_of_the_old_packets_is_enough() {
    // The bounds are results of a simulation in which every repair contains every packet of its
    // window (docs/codes.md).
    for (window, repairs, burst, left, late) in [
        (600, 28, 1, 2, 300),
        (1_000, 55, 8, 2, 850),
        (2_048, 80, 30, 30, 1_200),
        (240, 300, 30, 2, 220),
    ] {
        let parameters = Parameters { window, repairs, packets: 1_000 };
        let mut encoder = Encoder::new(parameters, 1).unwrap();
        let outcome = outcome(&mut encoder, losses(0.01, burst));
        assert!(outcome.0 <= left && outcome.1 <= late, "{parameters}: {outcome:?}");
    }
}

#[test]
fn parameters_may_change_at_any_packet() {
    let mut rng = Rng::from_seed(3);
    let mut encoder = encoder(100, 1, 10);
    let mut receiver = Receiver::new(Linear::new(10 << 20));
    let (mut sent, mut lost) = (Vec::new(), 0);
    for seq in 1..=20_000u64 {
        if rng.chance(0.01) {
            let (window, repairs) = (1 + rng.below(400) as u16, 10 + rng.below(90) as u16);
            encoder.change(Parameters { window, repairs, packets: 400 }).unwrap();
        }
        let packet = packet(&mut rng, 40);
        // Single losses, far apart: the next repair recovers them, whatever the parameters.
        if seq % 97 == 0 {
            lost += 1;
        } else {
            receiver.packet(seq, &packet);
        }
        push(&mut encoder, &packet).iter().for_each(|repair| {
            receiver.repair(repair);
        });
        sent.push(packet);
        receiver.decoder.forget_below(seq.saturating_sub(2_048));
    }
    assert!(lost - receiver.recovered.len() <= 2, "{} of {lost}", receiver.recovered.len());
    receiver.check(&sent);
}

#[test]
fn requested_combinations_recover_packets_that_have_left_the_sums() {
    let mut rng = Rng::from_seed(4);
    let mut encoder = encoder(500, 1, 400);
    let mut receiver = Receiver::new(Linear::new(10 << 20));
    let sent: Vec<_> = (0..300).map(|_| packet(&mut rng, 100)).collect();
    for (seq, packet) in (1..).zip(&sent) {
        push(&mut encoder, packet);
        if !(100..107).contains(&seq) {
            receiver.packet(seq, packet);
        }
    }
    let mut fired = Vec::new();
    encoder.combine(90, 120, 7, &mut |repair| fired.push(Owned::of(repair)));
    assert!(fired.iter().all(|repair| repair.seqs() == (90..=120).collect::<Vec<_>>()));
    fired.iter().for_each(|repair| {
        receiver.repair(repair);
    });
    assert_eq!(receiver.recovered.len(), 7);
    receiver.check(&sent);
    encoder.combine(1, 9_999, 1, &mut |repair| assert_eq!(repair.cover.count, 300));
    encoder.combine(301, 400, 1, &mut |_| panic!("no packets are kept"));
}

#[test]
fn a_pause_ends_with_a_change() {
    let mut encoder = encoder(20, 1, 2);
    let two = |encoder: &mut Encoder| (0..2).map(|_| push(encoder, b"x").len()).sum::<usize>();
    assert_eq!(two(&mut encoder), 1);
    encoder.pause();
    assert_eq!((0..50).map(|_| two(&mut encoder)).sum::<usize>(), 0);
    let mut fired = 0;
    encoder.combine(90, 95, 3, &mut |_| fired += 1);
    assert_eq!(fired, 3, "requested repairs are sent");
    encoder.change(Parameters { window: 20, repairs: 1, packets: 2 }).unwrap();
    let covers: Vec<_> =
        push(&mut encoder, b"x").into_iter().chain(push(&mut encoder, b"y")).collect();
    assert_eq!(covers.iter().map(Owned::seqs).collect::<Vec<_>>(), [vec![103, 104]]);
}

#[test]
fn repairs_cover_only_packets_after_the_last_but_one_restart() {
    let mut encoder = encoder(40, 1, 4);
    let mut next = 0;
    let mut run = |encoder: &mut Encoder, packets: u8| -> Vec<Seq> {
        let seqs = (0..packets).flat_map(|_| {
            next += 1;
            push(encoder, &[next]).iter().flat_map(Owned::seqs).collect::<Vec<_>>()
        });
        seqs.collect()
    };
    run(&mut encoder, 40);
    encoder.restart();
    assert!(
        run(&mut encoder, 10).iter().any(|seq| *seq <= 40),
        "packets from before the restart are still covered"
    );
    encoder.restart();
    let covered = run(&mut encoder, 40);
    assert_eq!(covered.iter().min(), Some(&41), "packets lost meanwhile are recovered");
    assert_eq!(covered.iter().max(), Some(&88), "a repair is emitted after every 4 packets");
}
