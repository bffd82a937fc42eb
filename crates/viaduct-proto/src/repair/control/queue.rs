//! The queue of the link, as one-way delays show it.
//!
//! A packet's one-way delay less the least of the last minutes is what it waited in queues. A loss
//! beside packets that waited nearly as long as any is a full queue's, and no repair may hide it from
//! its sender.
//!
//! ```text
//!   delay   ┌ peak ─────────/|────────/|── long from here: 0.8 of it
//!           │             /  |      /  |
//!           └ least ────/────|────/────|──────▶ time
//! ```
//!
//! A peak need not be a full queue, though: any flow that sends in bursts has one. So losses count as
//! a full queue's where they are more frequent at long delays than at others ([`super::histogram`]).
//!
//! The least delay may be stale: a path that has become longer looks like a queue that never empties,
//! as that of one flow of cubic may be for minutes. Queues grow packet by packet, though, and paths
//! change at once; a step that stays is taken for the path's. Clocks that drift apart change the delay
//! too, but slowly: as much as they may is taken off while no queue is known to be full.

use std::collections::VecDeque;

use super::histogram::{Histogram, Verdict};
use crate::fec::Seq;
use crate::time::{Duration, Instant};

/// Time for which the least delay is remembered, in parts of so long.
const MEMORY: Duration = Duration::from_secs(300);
const PART: Duration = Duration::from_secs(10);
/// Drift of two clocks that is reckoned with: microseconds a second.
const DRIFT: f64 = 100.0;
/// Time without a packet after which the path may be another.
const PAUSE: Duration = Duration::from_secs(30);
/// Time for which it matters that a queue was full.
const RECENT: Duration = Duration::from_secs(30);
/// Time after which half of the delays is forgotten.
const HALF_LIFE: Duration = Duration::from_secs(8);
/// A queue that stays as long as it ever is, and at which packets are lost, is full.
const PRIOR: f64 = 0.25;
/// Times as often as at short delays that losses may come at long ones by chance: a flow that fills a queue slowly
/// overfills it by few packets.
const OFTEN: f64 = 1.1;
/// Losses of a packet from which on a queue was surely full: its delay then is as long as it gets, though no packet may
/// wait that long for a while.
const FULL: f64 = 0.1;
/// Least wait in a queue that is long.
const STANDING: Micros = 20_000;
/// Shorter queues are noise.
const MIN_PEAK: Micros = 5_000;
/// Least step of a path's delay that is told from noise.
const MIN_STEP: Micros = 5_000;
/// Packets that left further apart, or with others between them, may have had a queue grow meanwhile.
const NEIGHBOURS: Micros = 2_000;
/// Time for which delays have to stay above a step.
const STAYS: Duration = Duration::from_millis(500);

/// A delay in microseconds, or a difference of two.
pub type Micros = i64;

/// Delays of the packets that arrive from one peer.
#[derive(Debug)]
pub struct Queue {
    /// Clocks' difference at the first packet: delays count from there.
    base: Option<u32>,
    least: Least,
    /// The least delay at the last packet, and what was taken off by then for the clocks' drift.
    floor: Micros,
    drift: (Instant, Duration),
    /// The last packet, when it was sent, and its delay.
    last: Option<(Seq, u32, Micros)>,
    step: Option<Step>,
    waits: Micros,
    delays: Histogram,
    /// When a loss was last a full queue's.
    full: Option<Instant>,
    /// Peak when a queue was last full for sure.
    longest: Option<(Instant, Micros)>,
}

impl Default for Queue {
    fn default() -> Self {
        Queue {
            base: None,
            least: Least::default(),
            floor: 0,
            drift: (Instant::ZERO, Duration::ZERO),
            last: None,
            step: None,
            waits: 0,
            full: None,
            longest: None,
            delays: Histogram::new(HALF_LIFE, PRIOR, OFTEN),
        }
    }
}

/// A step upwards that may be the path's.
#[derive(Clone, Copy, Debug)]
struct Step {
    since: Instant,
    /// Delay before, and the least since.
    before: Micros,
    least: Micros,
}

impl Queue {
    /// Takes packet `seq`, which was sent at `sent`, in microseconds of the peer's clock, and has arrived now.
    /// The time that it waited in queues.
    pub fn arrive(&mut self, now: Instant, seq: Seq, sent: u32) -> Micros {
        let difference = micros(now).wrapping_sub(sent);
        let base = *self.base.get_or_insert(difference);
        let delay = Micros::from(difference.wrapping_sub(base).cast_signed()) - self.drift(now);
        self.look_for_step(now, (seq, sent, delay));
        self.last = Some((seq, sent, delay));
        self.longest = self.longest.filter(|(at, _)| now.since(*at) < RECENT);
        let least = self.least.add(now, delay);
        if least - self.floor >= MIN_STEP {
            // What was remembered is of another path.
            self.delays.clear();
            self.longest = None;
        }
        self.floor = least;
        self.waits = delay - least;
        self.delays.arrive(now, self.waits);
        self.waits
    }

    /// How much longer a delay may seem to be by now, as clocks drift.
    fn drift(&mut self, now: Instant) -> Micros {
        let (at, total) = self.drift;
        let since = if self.was_full(now) { Duration::ZERO } else { now.since(at) };
        self.drift = (now, total + since);
        (DRIFT * self.drift.1.as_secs_f64()) as Micros
    }

    /// What the newest arrival waited.
    pub fn waits(&self) -> Micros {
        self.waits
    }

    /// Whether a loss was a full queue's lately.
    pub fn was_full(&self, now: Instant) -> bool {
        self.full.is_some_and(|at| now.since(at) < RECENT)
    }

    /// Whether the queue is long now, nearly as long as it ever is: it may be full.
    pub fn is_standing(&self) -> bool {
        self.waits >= STANDING && self.is_long(self.waits)
    }

    /// Judges a loss, or several in a row, beside packets that waited so long.
    pub fn lose(&mut self, now: Instant, waits: Micros) -> Verdict {
        // A link that has become faster has a queue that is full at a shorter delay.
        let is_heavy = self.delays.loss(waits) >= FULL;
        let peak = if is_heavy { self.delays.peak() } else { self.peak() };
        let verdict = self.delays.lose(waits, peak);
        if peak < MIN_PEAK {
            return Verdict::Chance;
        }
        if verdict == Verdict::Congestion {
            self.full = Some(now);
            if is_heavy {
                self.longest = Some((now, peak));
            }
        }
        verdict
    }

    /// About the longest that packets have waited lately, and when the queue was full.
    fn peak(&self) -> Micros {
        self.delays.peak().max(self.longest.map_or(0, |(_, peak)| peak))
    }

    /// Whether a packet waited nearly as long as any.
    fn is_long(&self, waits: Micros) -> bool {
        let peak = self.peak();
        peak >= MIN_PEAK && Histogram::is_high(waits, peak)
    }

    fn look_for_step(&mut self, now: Instant, (seq, sent, delay): (Seq, u32, Micros)) {
        if let Some(step) = &mut self.step {
            step.least = step.least.min(delay);
            let height = step.least - step.before;
            if height < MIN_STEP {
                self.step = None;
            } else if now.since(step.since) >= STAYS {
                self.least = Least::default();
                self.step = None;
            }
        } else if let Some((last, at, before)) = self.last
            && seq.checked_sub(1) == Some(last)
            && Micros::from(sent.wrapping_sub(at).cast_signed()) <= NEIGHBOURS
            && delay - before >= MIN_STEP
        {
            self.step = Some(Step { since: now, before, least: delay });
        }
    }
}

/// Microseconds of this clock, low 32 bits.
pub fn micros(now: Instant) -> u32 {
    (now.as_nanos() / 1_000) as u32
}

/// The least delay of the last minutes, in parts: when each began, and its least.
#[derive(Debug, Default)]
struct Least {
    parts: VecDeque<(Instant, Micros)>,
}

impl Least {
    /// Adds a delay; the least.
    fn add(&mut self, now: Instant, delay: Micros) -> Micros {
        match self.parts.back_mut() {
            Some((since, least)) if now.since(*since) < PART => *least = delay.min(*least),
            Some((since, _)) if now.since(*since) >= PAUSE => self.parts = [(now, delay)].into(),
            _ => self.parts.push_back((now, delay)),
        }
        while self.parts.front().is_some_and(|&(since, _)| now.since(since) > MEMORY) {
            self.parts.pop_front();
        }
        self.parts.iter().map(|&(_, least)| least).min().unwrap_or(delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path whose clock is off, and its queue.
    struct World {
        queue: Queue,
        now: Instant,
        seq: Seq,
    }

    impl World {
        fn new() -> World {
            World { queue: Queue::default(), now: Instant::ZERO + Duration::from_secs(1), seq: 0 }
        }

        /// Packets for so long, each after this many microseconds, of these delays by the time passed.
        fn run(&mut self, millis: u64, delay: impl Fn(f64) -> f64) -> Vec<bool> {
            let begun = self.now;
            let mut full = Vec::new();
            while self.now.since(begun) < Duration::from_millis(millis) {
                self.now += Duration::from_micros(100);
                let delay = delay(self.now.since(begun).as_secs_f64()) as u32;
                let sent = micros(self.now).wrapping_sub(delay).wrapping_add(3_000_000_000);
                self.seq += 1;
                let waits = self.queue.arrive(self.now, self.seq, sent);
                full.push(self.queue.is_long(waits));
            }
            full
        }
    }

    #[test]
    fn the_top_of_a_saw_is_full_and_the_rest_is_not() {
        let mut world = World::new();
        let saw = |at: f64| 50_000.0 + 100_000.0 * (0.3 + 0.7 * (at / 5.0).fract());
        // It fills packet by packet.
        world.run(1_000, |at| 50_000.0 + 30_000.0 * at);
        world.run(10_000, saw);
        let full = world.run(10_000, saw);
        let share = full.iter().filter(|full| **full).count() as f64 / full.len() as f64;
        assert!((0.25..0.35).contains(&share), "{share}");
        assert!(!world.run(1_000, |_| 60_000.0).contains(&true));
    }

    #[test]
    fn jitter_of_an_idle_link_is_no_queue() {
        let mut world = World::new();
        let full = world.run(20_000, |at| 50_000.0 + 2_000.0 * (at * 997.0).sin().abs());
        assert!(!full.contains(&true));
    }

    #[test]
    fn a_longer_path_is_no_full_queue_but_one_that_fills_is() {
        let mut world = World::new();
        world.run(5_000, |_| 50_000.0);
        world.run(600, |_| 80_000.0);
        assert!(!world.run(10_000, |_| 80_000.0).contains(&true), "the path's");
        let mut world = World::new();
        world.run(5_000, |_| 50_000.0);
        world.run(1_000, |at| 50_000.0 + 100_000.0 * at);
        assert!(
            !world.run(10_000, |_| 150_000.0).contains(&false),
            "a tenth too much fills it in a second"
        );
    }

    #[test]
    fn the_peers_clock_may_wrap_and_drift() {
        for drift in [-100.0, 100.0] {
            let mut world = World::new();
            // 60 ms in ten minutes.
            let full = world.run(600_000, |at| 1e9 + drift * at);
            assert!(!full.contains(&true), "{drift}");
            assert!(world.queue.waits() < 2_000, "{drift}");
        }
    }

    #[test]
    fn a_queue_that_never_empties_is_one_for_minutes() {
        let mut world = World::new();
        world.run(1_000, |at| 50_000.0 + 40_000.0 * at);
        let full = world.run(240_000, |at| 90_000.0 + 60_000.0 * (at / 14.0).fract());
        let share = full.iter().filter(|full| **full).count() as f64 / full.len() as f64;
        assert!((0.25..0.45).contains(&share), "{share}");
        // As it is never full, clocks may have drifted by 24 ms of its 49.
        assert!((22_000..27_000).contains(&world.queue.waits()), "{}", world.queue.waits());
    }

    #[test]
    fn after_a_pause_the_path_may_be_another() {
        let mut world = World::new();
        world.run(5_000, |_| 50_000.0);
        world.now += PAUSE + PART;
        assert!(!world.run(5_000, |_| 120_000.0).contains(&true));
    }

    /// Packets of so long a time, whose delays are a share of 40 ms by the time passed, of which those
    /// are lost that `lost` says; how many losses were taken for a full queue's, of all.
    fn judge(
        world: &mut World,
        seconds: u64,
        height: impl Fn(f64) -> f64,
        mut lost: impl FnMut(u64, f64) -> bool,
    ) -> (usize, usize) {
        let (mut told, mut all) = (0, 0);
        let (mut before, mut verdict) = (false, Verdict::Chance);
        for at in 0..seconds * 10_000 {
            let height = height(at as f64 / 10_000.0);
            world.now += Duration::from_micros(100);
            world.seq += 1;
            let now = lost(at, height);
            if now {
                all += 1;
                if !before {
                    verdict = world.queue.lose(world.now, world.queue.waits());
                }
                told += usize::from(verdict == Verdict::Congestion);
            } else {
                let sent = micros(world.now).wrapping_sub(50_000 + (40_000.0 * height) as u32);
                world.queue.arrive(world.now, world.seq, sent);
            }
            before = now;
        }
        (told, all)
    }

    fn saw(at: f64) -> f64 {
        0.2 + 0.8 * (at / 2.0).fract()
    }

    #[test]
    fn losses_at_the_peak_are_a_full_queues_unless_they_come_elsewhere_too() {
        let full = |n: u64, height: f64| height > 0.98 && n.is_multiple_of(7);
        let (told, all) = judge(&mut World::new(), 60, saw, full);
        assert!(told * 50 > all * 49, "{told} of {all}");
        for every in [20, 101, 1_009] {
            let (told, all) = judge(&mut World::new(), 60, saw, |n, _| n.is_multiple_of(every));
            assert!(told * 1_000 < all, "{told} of {all}");
        }
        let (told, all) = judge(&mut World::new(), 60, saw, |n, _| n % 3_000 < 30);
        assert!(told * 100 < all, "{told} of {all}");
        let both = |n: u64, height: f64| n.is_multiple_of(101) || full(n, height);
        let (told, all) = judge(&mut World::new(), 60, saw, both);
        assert!(told * 100 > all * 15, "{told} of {all}");
    }

    #[test]
    fn losses_below_the_peak_are_not_the_full_queues() {
        let mut world = World::new();
        let at_random = |n: u64| n.is_multiple_of(101);
        let full = |n: u64, height: f64| height > 0.98 && n.is_multiple_of(5);
        judge(&mut world, 60, saw, |n, height| at_random(n) || full(n, height));
        let (told, all) = judge(&mut world, 60, |at| saw(at) * 0.93, |n, _| at_random(n));
        assert!(told * 50 < all, "{told} of {all}");
    }

    #[test]
    fn losses_that_begin_beside_a_queue_that_was_longer_when_it_was_full_are_not_its() {
        let mut world = World::new();
        let fills = |at: f64| (at / 2.0).powi(4).min(1.0);
        judge(&mut world, 3, fills, |n, height| height == 1.0 && n.is_multiple_of(2));
        judge(&mut world, 15, |_| 0.5, |_, _| false);
        let (told, all) = judge(&mut world, 10, |_| 0.5, |n, _| n.is_multiple_of(101));
        assert!(told * 50 < all, "{told} of {all}");
    }

    #[test]
    fn a_queue_that_grows_is_not_full_and_one_that_stays_is() {
        // As a slow start fills it.
        let grows = |at: f64| (at / 2.0).powi(4);
        let (told, _) = judge(&mut World::new(), 2, grows, |n, _| n.is_multiple_of(101));
        assert_eq!(told, 0);
        let fills = |at: f64| (at / 2.0).powi(4).min(0.5);
        let (told, all) =
            judge(&mut World::new(), 2, fills, |n, height| height == 0.5 && n.is_multiple_of(2));
        assert!(told + 15 >= all, "{told} of {all}");
        // A sender that exceeds its link, for minutes.
        let mut world = World::new();
        judge(&mut world, 1, |at| at, |_, _| false);
        let (told, all) = judge(&mut world, 240, |_| 1.0, |n, _| n.is_multiple_of(11));
        assert!(told + 100 >= all, "{told} of {all}");
    }

    #[test]
    fn drops_of_a_flow_that_stays_near_the_peak_are_told() {
        let cubic = |at: f64| 1.0 - 0.6 * (1.0 - (at / 6.0).fract()).powi(3);
        let drops = |n: u64, height: f64| height > 0.999 && n.is_multiple_of(20);
        let mut world = World::new();
        judge(&mut world, 60, cubic, drops);
        let (told, all) = judge(&mut world, 60, cubic, drops);
        assert!(told * 2 > all, "{told} of {all}");
    }
}
