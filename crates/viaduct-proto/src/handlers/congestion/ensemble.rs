//! Flows to one destination, which share one window by max-min fairness.
//!
//! ```text
//!   flow 1  ██████████        level: bytes in flight that each flow may have. A flow that wants
//!   flow 2  ██████████ ····   less leaves the rest to the others; the sum is the window
//!   flow 3  ███
//! ```

use std::collections::BTreeMap;

use super::window::{Path, Window};
use crate::flow::Measure;
use crate::time::{Duration, Instant};

/// Segments that every flow may have in flight, however many flows there are, so that none
/// starves.
const FLOOR: f64 = 2.0;
/// Minimum interval between computations of the level.
const LEVEL: Duration = Duration::from_millis(1);
/// Number of flows up to which each is checked as often as possible.
const CROWD: usize = 16;
/// Segment size until a connection has reported one, in bytes.
const SEGMENT: u32 = 1448;

/// A flow of the ensemble.
#[derive(Clone, Copy, Debug, Default)]
struct Member {
    /// Last measurement, and bytes sent since.
    measure: Measure,
    since: u64,
    /// Bytes that wait to be sent.
    waiting: u64,
    /// Until this many bytes are acknowledged, retransmissions are of losses before the last
    /// reduction.
    recovers: u64,
}

/// All flows to one destination.
#[derive(Debug)]
pub(super) struct Ensemble {
    window: Window,
    members: BTreeMap<u64, Member>,
    /// Sum of the bytes that the flows' connections hold.
    held: u64,
    level: f64,
    leveled: Option<Instant>,
    /// Time at which the last flow left.
    left: Option<Instant>,
    path: Path,
}

impl Ensemble {
    /// Ensemble without flows.
    pub(super) fn new() -> Ensemble {
        let segment = f64::from(SEGMENT);
        Ensemble {
            window: Window::new(segment),
            members: BTreeMap::new(),
            held: 0,
            level: 0.0,
            leveled: None,
            left: None,
            path: Path { rtt: Duration::ZERO, shortest: Duration::ZERO, segment },
        }
    }

    /// Adds a flow.
    pub(super) fn join(&mut self, id: u64) {
        self.members.insert(id, Member::default());
        (self.leveled, self.left) = (None, None);
    }

    /// Removes a flow.
    pub(super) fn leave(&mut self, id: u64, now: Instant) {
        if let Some(member) = self.members.remove(&id) {
            self.held -= member.held();
        }
        self.leveled = None;
        if self.members.is_empty() {
            self.left = Some(now);
        }
    }

    /// Time since the last flow left; `None` while there are flows.
    pub(super) fn idle(&self, now: Instant) -> Option<Duration> {
        self.left.map(|left| now.since(left))
    }

    /// Handles a flow's measurement and the number of its bytes that wait.
    pub(super) fn report(&mut self, id: u64, measure: Measure, waiting: usize, now: Instant) {
        let Some(member) = self.members.get_mut(&id) else { return };
        let (before, known) = (member.measure, member.measure.rtt > Duration::ZERO);
        let lost = known && measure.again > before.again && measure.acked >= member.recovers;
        if lost {
            member.recovers = measure.acked + measure.held - measure.unsent.min(measure.held);
        }
        self.held -= member.held();
        (member.measure, member.since, member.waiting) = (measure, 0, waiting as u64);
        self.held += member.held();
        if measure.rtt > Duration::ZERO {
            let segment = if measure.segment > 0 { measure.segment } else { SEGMENT };
            self.path.segment = segment.into();
            self.path.rtt = measure.rtt;
            let shortest = match self.path.shortest {
                Duration::ZERO => measure.shortest,
                shortest => shortest.min(measure.shortest),
            };
            self.path.shortest = shortest;
        }
        let acked = measure.acked.saturating_sub(before.acked);
        if lost {
            self.window.lost(now, self.path);
        } else if acked > 0 && known {
            let on_the_way = self.on_the_way() + acked as f64;
            self.window.acked(now, acked as f64, on_the_way, self.path);
        }
        self.take_level(now);
    }

    /// Bytes that a flow may send now: whole segments, or all that waits. A window that grows
    /// by bytes would otherwise be sent in small packets (RFC 1122, 4.2.3.4), and a full queue
    /// may drop each of those as it drops a whole one.
    pub(super) fn may_send(&self, id: u64) -> usize {
        let Some(member) = self.members.get(&id) else { return usize::MAX };
        let least = FLOOR * self.path.segment - member.held() as f64;
        if member.is_full(self.path.segment) {
            return least.max(0.0) as usize;
        }
        let own = self.level - member.sent() as f64;
        let all = self.window.bytes() - self.on_the_way();
        let may = own.min(all).max(least).max(0.0);
        let segment = self.path.segment;
        if may >= member.waiting as f64 {
            may as usize
        } else {
            ((may / segment).floor() * segment) as usize
        }
    }

    /// Accounts for bytes that the flow has sent.
    pub(super) fn sent(&mut self, id: u64, bytes: usize) {
        if let Some(member) = self.members.get_mut(&id) {
            member.since += bytes as u64;
            member.waiting = member.waiting.saturating_sub(bytes as u64);
            self.held += bytes as u64;
        }
    }

    /// Interval until the next check. Data released late and in bursts finds a full queue,
    /// while competing flows, clocked by their acknowledgements, find room. The interval is
    /// therefore short, unless there are many flows.
    pub(super) fn tick(&self) -> Duration {
        let crowd = u32::try_from(self.members.len().div_ceil(CROWD)).unwrap_or(u32::MAX);
        let tick = (self.path.rtt / 64).max(Duration::from_millis(1));
        tick.saturating_mul(crowd).min(Duration::from_millis(25))
    }

    /// Summary for people.
    pub(super) fn text(&self) -> String {
        format!(
            "{} flows share {:.0} kB, {:.0} kB of it on the way; {} losses, round trip {:.1} ms",
            self.members.len(),
            self.window.bytes() / 1e3,
            self.on_the_way() / 1e3,
            self.window.losses(),
            self.path.rtt.as_secs_f64() * 1e3,
        )
    }

    fn on_the_way(&self) -> f64 {
        let unsent = self.members.values().map(|member| member.measure.unsent).sum::<u64>();
        self.held.saturating_sub(unsent) as f64
    }

    /// Computes the level: flows that want less get what they want, and all others get the
    /// level.
    fn take_level(&mut self, now: Instant) {
        if self.leveled.is_some_and(|at| now.since(at) < LEVEL) {
            return;
        }
        self.leveled = Some(now);
        let segment = self.path.segment;
        let mut wants: Vec<u64> = self.members.values().map(|of| of.wants(segment)).collect();
        wants.sort_unstable();
        self.level = level(&wants, self.window.bytes());
    }
}

impl Member {
    fn held(&self) -> u64 {
        self.measure.held + self.since
    }

    /// Bytes in flight, or about to be.
    fn sent(&self) -> u64 {
        self.held().saturating_sub(self.measure.unsent)
    }

    /// Returns whether the connection's own window is the limit, for instance after a loss.
    /// Such a flow leaves the rest of its share to the others.
    fn is_full(&self, segment: f64) -> bool {
        self.measure.unsent as f64 >= segment
    }

    fn wants(&self, segment: f64) -> u64 {
        if self.is_full(segment) { self.sent() } else { self.sent() + self.waiting }
    }
}

/// Max-min fair level: the share of `all` for each flow such that nothing remains while a flow
/// wants more. `wants` must be sorted.
fn level(wants: &[u64], all: f64) -> f64 {
    let mut left = all;
    for (n, &want) in wants.iter().enumerate() {
        let each = left / (wants.len() - n) as f64;
        if want as f64 > each {
            return each;
        }
        left -= want as f64;
    }
    // No flow is limited; each may use the rest.
    wants.last().map_or(all, |&most| most as f64 + left)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_level_deals_all_and_no_more(
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
        fn together_they_keep_to_the_window(
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
                widest = widest.max(all.window.bytes());
                let may = all.may_send(id).min(amount);
                prop_assert!(kernel.held > 0 || amount == 0 || may > 0, "it starves");
                all.sent(id, may);
                kernel.held += may as u64;
                let held: u64 = kernels.values().map(|of| of.held).sum();
                prop_assert_eq!(held, all.held);
                let floors = 5.0 * FLOOR * f64::from(SEGMENT);
                prop_assert!(held as f64 <= widest + floors, "{} of {}", held, widest);
            }
        }
    }

    /// Simulates a bottleneck of `rate` bytes a millisecond with a queue of `queue` bytes, 20
    /// ms from each end, and `groups` of flows that share a window each. All flows always have
    /// data. Returns the bytes of each flow that arrived in the second half.
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
    fn four_that_share_take_what_one_takes_and_share_it_alike() {
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
    fn parts_of_segments_go_when_nothing_waits_behind_them() {
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
    fn the_estimate_of_a_path_outlives_its_flows() {
        let mut all = Ensemble::new();
        all.join(1);
        let rtt = Duration::from_millis(40);
        let mut of =
            Measure { rtt, shortest: rtt, segment: 1000, held: 9_000, ..Measure::default() };
        all.report(1, of, 0, Instant::ZERO);
        of.acked = 9_000;
        all.report(1, of, 0, Instant::ZERO + rtt);
        let learnt = all.window.bytes();
        assert!(learnt > 20_000.0);
        all.leave(1, Instant::ZERO + rtt);
        assert_eq!((all.held, all.idle(Instant::ZERO + 2 * rtt)), (0, Some(rtt)));
        all.join(2);
        all.report(2, Measure { held: 0, acked: 0, ..of }, 50_000, Instant::ZERO + 3 * rtt);
        assert_eq!(all.may_send(2), (learnt / 1000.0) as usize * 1000);
    }
}
