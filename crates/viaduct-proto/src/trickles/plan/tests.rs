//! Complete windows with losses: the packets in the answers to all requests of a window.

use super::*;
use crate::rng::Rng;
use crate::trickles::epoch::Acks;

fn epoch(start: u16, ssthresh: u16, delayed: bool) -> Epoch {
    Epoch { base: 101, start, ssthresh, acks: Acks { delayed, by_request: false } }
}

/// The gaps below `number` in an epoch that has lost the packets `lost`.
fn gaps(base: u64, number: u64, lost: &[u64]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for n in base..number {
        if !lost.contains(&n) {
            continue;
        }
        match runs.last_mut() {
            Some(run) if run.last() + 1 == n => run.count += 1,
            _ => runs.push(Run { first: n, count: 1 }),
        }
    }
    runs
}

/// All packets in the answers to the requests of one window, if the packets `lost` are lost:
/// (again, grouped, fresh).
fn window(epoch: Epoch, lost: &[u64], burst: usize) -> (Vec<u64>, Vec<u64>, Vec<u64>) {
    let last = epoch.sent(lost[0] - 1);
    let (mut again, mut grouped, mut fresh) = (vec![], vec![], vec![]);
    for n in lost[0]..=last {
        if lost.contains(&n) || !epoch.is_point(n) {
            continue;
        }
        let plan = step(epoch, n, &gaps(epoch.base, n, lost), burst).unwrap();
        again.extend_from_slice(plan.again.numbers());
        grouped.extend(plan.grouped.numbers());
        fresh.extend(plan.fresh.numbers());
    }
    (again, grouped, fresh)
}

#[test]
fn without_loss_every_packet_is_sent_once() {
    for delayed in [false, true] {
        let epoch = epoch(4, 16, delayed);
        let mut next = begin(epoch).fresh.end;
        for n in (epoch.base..2_000).filter(|&n| epoch.is_point(n)) {
            let plan = step(epoch, n, &[], 3).unwrap();
            assert_eq!(plan.fresh.first, next);
            next = plan.fresh.end;
        }
    }
}

#[test]
fn one_loss_of_eight_halves_the_window() {
    // 101 is lost. 101 to 108 are in flight, and the requests of the last four begin the next
    // epoch.
    let (again, grouped, fresh) = window(epoch(8, 8, false), &[101], 3);
    assert_eq!((again, grouped), (vec![101], vec![109]), "the repair takes one of the four places");
    assert_eq!(fresh, [110, 111, 112]);
    let plan = step(epoch(8, 8, false), 105, &[Run { first: 101, count: 1 }], 3).unwrap();
    assert_eq!((plan.epoch.base, plan.epoch.start, plan.epoch.ssthresh), (109, 4, 4));
}

#[test]
fn packets_of_lost_survivors_are_grouped_in_the_next_answer() {
    let (again, grouped, fresh) = window(epoch(8, 8, false), &[101, 106, 107], 3);
    assert_eq!(again, [101, 106, 107]);
    // Survivor 105 causes no packet with data, because 101 is retransmitted instead.
    assert_eq!((grouped, fresh), (vec![109, 110, 111], vec![112]));
}

#[test]
fn a_long_run_of_losses_is_repaired_by_several_answers() {
    let lost: Vec<u64> = (101..=108).collect();
    let (again, ..) = window(epoch(20, 20, false), &lost, 3);
    assert_eq!(again, lost);
}

#[test]
fn a_request_beyond_the_loss_is_refused() {
    let refused = step(epoch(8, 8, false), 109, &[Run { first: 101, count: 1 }], 3);
    assert_eq!(refused, Err(Inconsistent::BeyondLoss { number: 109, first: 101 }));
}

#[test]
fn losses_at_the_end_of_an_epoch_are_repaired_in_the_next_epoch() {
    let next = Epoch { base: 109, start: 4, ssthresh: 4, acks: epoch(8, 8, false).acks };
    // 107 and 108 were lost; the answers to their requests would have been 111 and 112.
    let plan = tail(next, 109, Tail { lost: 2, unanswered: 2 }, 3).unwrap();
    assert_eq!(plan.again.numbers(), [107, 108]);
    assert_eq!(plan.grouped, Span::new(111, 113));
    assert!(tail(next, 111, Tail { lost: 2, unanswered: 2 }, 3).is_err());
}

/// Random windows with random losses: no packet is retransmitted twice, there are never more
/// survivors than newCwnd, and all survivors are sent unless the end of the window is lost.
#[test]
fn any_losses_leave_half_a_window() {
    let mut rng = Rng::from_seed(11);
    for _ in 0..20_000 {
        let epoch = epoch(2 + rng.below(60) as u16, rng.below(80) as u16, rng.chance(0.5));
        let first = epoch.base + rng.below(200);
        let (last, survivors) = loss_of(epoch, first);
        let rate = rng.unit() * 0.6;
        let mut lost = vec![first];
        lost.extend((first + 1..=last).filter(|_| rng.chance(rate)));
        let (again, grouped, fresh) = window(epoch, &lost, MAX_BURST);

        let answered = (first + 1..=last).rev().find(|n| !lost.contains(n) && epoch.is_point(*n));
        let expected: Vec<u64> = lost.iter().copied().filter(|&n| Some(n) < answered).collect();
        // Losses beyond the limit may be left for the last request.
        let left = expected.len().saturating_sub(again.len());
        assert!(left == 0 || expected.len() > MAX_BURST, "{left} of {lost:?} are left");
        assert_eq!(again, expected[..again.len()], "{epoch:?} loses {lost:?}");

        // Repairs and packets with new data are half a window in total.
        if answered == Some(last) {
            let sent = again.len() + fresh.len();
            assert!(sent <= again.len().max(survivors as usize), "{epoch:?} loses {lost:?}");
        }
        let mut born = [grouped, fresh].concat();
        born.sort_unstable();
        let reached = answered.map_or(last, |n| (n + survivors).max(last));
        assert_eq!(born, (last + 1..=reached).collect::<Vec<_>>(), "{epoch:?} loses {lost:?}");

        // The first survivor reports the rest.
        if let Some(answered) = answered.filter(|&n| n < last && !born.is_empty()) {
            let next = after_recovery(epoch, last, survivors);
            let ends = Tail {
                lost: (lost.iter().rev().zip((0..=last).rev()).take_while(|(a, b)| **a == *b))
                    .count() as u32,
                unanswered: (last - answered) as u32,
            };
            let made_up = tail(next, born[0], ends, MAX_BURST).unwrap();
            assert_eq!(made_up.grouped, Span::new(answered + survivors + 1, last + survivors + 1));
        }
    }
}
