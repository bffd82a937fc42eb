//! Shares of a window, and flows that compete for a bottleneck.

use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn the_level_divides_all_of_the_window_and_no_more(
        mut wants in proptest::collection::vec(0..1_000_000u64, 1..50),
        all in 1_000.0..1_000_000.0f64,
    ) {
        wants.sort_unstable();
        let level = level(&wants, all);
        let dealt: f64 = wants.iter().map(|&want| (want as f64).min(level)).sum();
        let wanted: f64 = wants.iter().map(|&want| want as f64).sum();
        prop_assert!((dealt - wanted.min(all)).abs() < 1.0, "{} of {} {}", dealt, wanted, all);
    }

    /// Invariants under any sequence of events: the sum in flight is at most the largest
    /// window plus a floor for each flow, the accounting is exact, and no flow starves.
    #[test]
    fn flows_together_keep_to_the_window(
        steps in proptest::collection::vec((0..5u64, 0..6u8, 0..100_000usize), 1..300),
    ) {
        let mut all = Ensemble::new();
        let mut kernels: BTreeMap<u64, Measure> = BTreeMap::new();
        let (mut now, mut widest) = (Instant::ZERO, 0.0f64);
        for (id, what, amount) in steps {
            now += Duration::from_millis(3);
            let there = kernels.contains_key(&id);
            match what {
                0 if !there => {
                    all.join(id);
                    let rtt = Duration::from_millis(40);
                    let of =
                        Measure { rtt, shortest: rtt, segment: 1000, ..Measure::default() };
                    kernels.insert(id, of);
                }
                1 if there => {
                    all.leave(id, now);
                    kernels.remove(&id);
                }
                _ => {}
            }
            let Some(kernel) = kernels.get_mut(&id) else { continue };
            if what == 3 {
                let acked = kernel.held.min(amount as u64);
                kernel.held -= acked;
                kernel.acked += acked;
            }
            kernel.again += u64::from(what == 4);
            all.report(id, *kernel, amount, now);
            widest = widest.max(all.window.bytes);
            let may = all.may_send(id).min(amount);
            prop_assert!(kernel.held > 0 || amount == 0 || may > 0, "the flow starves");
            all.sent(id, may);
            kernel.held += may as u64;
            let held: u64 = kernels.values().map(|of| of.held).sum();
            prop_assert_eq!(held, all.held);
            let floors = 5.0 * FLOOR * f64::from(SEGMENT);
            prop_assert!(held as f64 <= widest + floors, "{} of {}", held, widest);
        }
    }
}

/// Simulates a bottleneck of `rate` bytes a millisecond with a queue of `queue` bytes, 20 ms from
/// each end, and `groups` of flows, each of which shares one window. All flows always have data.
/// Returns the bytes of each flow that arrived in the second half.
fn compete(groups: &[usize], rate: f64, queue: f64, millis: u64) -> Vec<Vec<f64>> {
    let mut worlds: Vec<_> = groups.iter().map(|&count| Group::new(count)).collect();
    let mut backlog = 0.0f64;
    let mut turn = 0usize;
    for ms in 0..millis {
        let now = Instant::ZERO + Duration::from_millis(ms);
        backlog = (backlog - rate).max(0.0);
        let order: Vec<(usize, usize)> =
            groups.iter().enumerate().flat_map(|(g, &n)| (0..n).map(move |f| (g, f))).collect();
        for n in 0..order.len() {
            let (group, flow) = order[(n + turn) % order.len()];
            worlds[group].step(flow, now, ms, (&mut backlog, queue), rate, millis / 2);
        }
        turn += 7;
    }
    worlds.into_iter().map(|world| world.passed).collect()
}

struct Group {
    all: Ensemble,
    kernels: Vec<Measure>,
    /// Packets in flight: time, bytes, and whether they were lost.
    wires: Vec<std::collections::VecDeque<(u64, u64, bool)>>,
    passed: Vec<f64>,
}

impl Group {
    fn new(count: usize) -> Group {
        let mut all = Ensemble::new();
        let rtt = Duration::from_millis(40);
        let fresh = Measure { rtt, shortest: rtt, segment: 1000, ..Measure::default() };
        (0..count as u64).for_each(|id| all.join(id));
        (0..count as u64).for_each(|id| all.report(id, fresh, 1 << 20, Instant::ZERO));
        let wires = vec![std::collections::VecDeque::new(); count];
        Group { all, kernels: vec![fresh; count], wires, passed: vec![0.0; count] }
    }

    fn step(
        &mut self,
        flow: usize,
        now: Instant,
        ms: u64,
        (backlog, queue): (&mut f64, f64),
        rate: f64,
        from: u64,
    ) {
        let kernel = &mut self.kernels[flow];
        while let Some(&(at, bytes, lost)) = self.wires[flow].front()
            && at <= ms
        {
            self.wires[flow].pop_front();
            if lost {
                kernel.again += 1;
                self.wires[flow].push_back((ms + 40, bytes, false));
                continue;
            }
            kernel.held -= bytes;
            kernel.acked += bytes;
            if ms >= from {
                self.passed[flow] += bytes as f64;
            }
        }
        kernel.rtt = Duration::from_millis(40 + (*backlog / rate) as u64);
        self.all.report(flow as u64, *kernel, 1 << 20, now);
        let mut may = self.all.may_send(flow as u64) / 1000;
        while may > 0 {
            may -= 1;
            self.all.sent(flow as u64, 1000);
            kernel.held += 1000;
            let lost = *backlog + 1000.0 > queue;
            *backlog += if lost { 0.0 } else { 1000.0 };
            let at = ms + 40 + (*backlog / rate) as u64;
            self.wires[flow].push_back((at, 1000, lost));
        }
    }
}

#[test]
fn four_flows_with_one_window_take_the_share_of_one_and_divide_it_evenly() {
    let found = compete(&[4, 1], 2500.0, 100_000.0, 60_000);
    let sum = |flows: &[f64]| flows.iter().sum::<f64>();
    let share = sum(&found[0]) / (sum(&found[0]) + sum(&found[1]));
    assert!((0.35..0.65).contains(&share), "{share}");
    let squares: f64 = found[0].iter().map(|bytes| bytes * bytes).sum();
    let jain = sum(&found[0]).powi(2) / (4.0 * squares);
    assert!(jain > 0.95, "{jain}");
    let used = (sum(&found[0]) + sum(&found[1])) / (2500.0 * 30_000.0);
    assert!(used > 0.85, "{used} of the link");
}

#[test]
fn a_partial_segment_is_sent_if_no_data_follows_it() {
    let mut all = Ensemble::new();
    all.join(1);
    let rtt = Duration::from_millis(40);
    let of = Measure { rtt, shortest: rtt, segment: 1000, ..Measure::default() };
    // The initial window is ten segments of 1448 bytes.
    all.report(1, of, 1 << 20, Instant::ZERO);
    assert_eq!(all.may_send(1), 14_000);
    all.report(1, of, 14_300, Instant::ZERO);
    assert!(all.may_send(1) >= 14_300);
}

#[test]
fn the_estimate_of_a_path_outlasts_its_flows() {
    let mut all = Ensemble::new();
    all.join(1);
    let rtt = Duration::from_millis(40);
    let mut of = Measure { rtt, shortest: rtt, segment: 1000, held: 9_000, ..Measure::default() };
    all.report(1, of, 0, Instant::ZERO);
    of.acked = 9_000;
    all.report(1, of, 0, Instant::ZERO + rtt);
    let learnt = all.window.bytes;
    assert!(learnt > 20_000.0);
    all.leave(1, Instant::ZERO + rtt);
    assert_eq!((all.held, all.idle(Instant::ZERO + 2 * rtt)), (0, Some(rtt)));
    all.join(2);
    all.report(2, Measure { held: 0, acked: 0, ..of }, 50_000, Instant::ZERO + 3 * rtt);
    assert_eq!(all.may_send(2), (learnt / 1000.0) as usize * 1000);
}
