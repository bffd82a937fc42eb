//! The queue of the link, as one-way delays show it.
//!
//! A packet's one-way delay less the least of the last half minute is what it waited in queues. A
//! loss beside packets that waited nearly as long as any is a full queue's, and no repair may hide it
//! from its sender.
//!
//! ```text
//!   delay   ┌ peak ─────────/|────────/|── high from here: 0.8 of it
//!           │             /  |      /  |
//!           └ least ────/────|────/────|──────▶ time
//! ```
//!
//! A peak need not be a full queue, though: any flow that sends in bursts has one. So packets are
//! counted that waited for long and those that did not, and losses beside either. Where the former
//! are not much more often lost, it is by chance.
//!
//! The least delay may be stale: a path that has become longer looks like a queue that never empties. Queues grow
//! packet by packet, though, and paths change at once; a step that stays is taken for the path's.

use std::collections::VecDeque;

use crate::time::{Duration, Instant};

/// Time for which the least delay and the peak are remembered.
const MEMORY: Duration = Duration::from_secs(30);
/// Parts that it is remembered in.
const PARTS: u32 = 30;
/// Share of the peak from which on a queue is full.
const FULL: f64 = 0.8;
/// Times as often as beside others that losses come beside packets that waited for long, from which
/// on a queue is full; standard errors of their number that they have to be above that, and more.
const OFTEN: f64 = 2.0;
const SURE: f64 = 2.0;
const MORE: f64 = 1.5;
/// Losses beside packets that did not wait for long after which others are known to come by chance.
const ENOUGH: f64 = 2.0;
/// Packets that count as having waited little, and losses beside them, before any are known.
const PRIOR: f64 = 50.0;
const PRIOR_LOSSES: f64 = 0.2;
/// Time after which half of what was counted is forgotten.
const HALF_LIFE: Duration = Duration::from_secs(15);
/// Growth of the peak with which what waited for long has not.
const GROWN: f64 = 1.1;
/// Least wait in a queue that is long.
const STANDING: Micros = 20_000;
/// Shorter queues are noise.
const MIN_PEAK: Micros = 5_000;
/// Least step of a path's delay that is told from noise.
const MIN_STEP: Micros = 5_000;
/// Packets that left further apart may have had a queue grow between them.
const NEIGHBOURS: Micros = 2_000;
/// Time for which delays have to stay above a step.
const STAYS: Duration = Duration::from_millis(500);

/// A delay in microseconds, or a difference of two.
pub type Micros = i64;

/// Delays of the packets that arrive from one peer.
#[derive(Debug, Default)]
pub struct Queue {
    /// Clocks' difference at the first packet: delays count from there.
    base: Option<u32>,
    least: Extremes,
    peak: Extremes,
    /// When the last packet was sent, and its delay.
    last: Option<(u32, Micros)>,
    step: Option<Step>,
    waits: Micros,
    long: Fates,
    short: Fates,
    /// The peak by which they are told apart, and when they were last halved.
    bound: Micros,
    halved: Option<Instant>,
}

/// Why a packet was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// By chance.
    Chance,
    /// In what may be a full queue; the next losses will tell.
    Doubtful,
    /// In a full queue.
    Congestion,
}

/// Packets, and losses beside them; several in a row are one.
#[derive(Clone, Copy, Debug, Default)]
struct Fates {
    packets: f64,
    losses: f64,
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
    /// Takes an arrival: when it was sent, in microseconds of the peer's clock, and when it came. What it waited in
    /// queues.
    pub fn arrive(&mut self, now: Instant, sent: u32) -> Micros {
        let difference = micros(now).wrapping_sub(sent);
        let base = *self.base.get_or_insert(difference);
        let delay = Micros::from(difference.wrapping_sub(base).cast_signed());
        self.look_for_step(now, sent, delay);
        self.last = Some((sent, delay));
        let least = self.least.add(now, delay, Micros::min);
        self.waits = delay - least;
        let peak = self.peak.add(now, self.waits, Micros::max);
        self.count(now, peak);
        self.waits
    }

    /// What the newest arrival waited.
    pub fn waits(&self) -> Micros {
        self.waits
    }

    /// Whether the queue is long now, nearly as long as it ever is: it may be full.
    pub fn is_standing(&self) -> bool {
        self.waits >= STANDING && self.is_long(self.waits)
    }

    /// Judges a loss, or several in a row, beside packets that waited so long.
    pub fn lose(&mut self, waits: Micros) -> Verdict {
        let is_long = self.is_long(waits);
        let fates = if is_long { &mut self.long } else { &mut self.short };
        fates.losses += 1.0;
        match () {
            _ if !is_long || self.short.losses >= ENOUGH && !self.is_told() => Verdict::Chance,
            _ if self.is_told() => Verdict::Congestion,
            _ => Verdict::Doubtful,
        }
    }

    /// Whether a packet waited nearly as long as any.
    fn is_long(&self, waits: Micros) -> bool {
        let peak = self.peak.value(Micros::max).unwrap_or(0);
        peak >= MIN_PEAK && waits as f64 >= FULL * peak as f64
    }

    /// Whether packets that waited for long are lost more often than others.
    fn is_told(&self) -> bool {
        let short = (self.short.losses + PRIOR_LOSSES) / (self.short.packets + PRIOR);
        let by_chance = OFTEN * short * self.long.packets;
        self.long.losses >= by_chance + SURE * by_chance.sqrt() + MORE
    }

    fn count(&mut self, now: Instant, peak: Micros) {
        if peak as f64 > GROWN * self.bound as f64 {
            // What waited for long has not, by what is known now. Losses beside it tell nothing: the
            // queue may have been about to be full.
            self.short.packets += self.long.packets;
            self.long = Fates::default();
            self.bound = peak;
        } else if peak < self.bound / 2 {
            self.bound = peak;
        }
        let halved = *self.halved.get_or_insert(now);
        if now.since(halved) >= HALF_LIFE {
            for fates in [&mut self.long, &mut self.short] {
                (fates.packets, fates.losses) = (fates.packets / 2.0, fates.losses / 2.0);
            }
            self.halved = Some(now);
        }
        let is_long = self.is_long(self.waits);
        let fates = if is_long { &mut self.long } else { &mut self.short };
        fates.packets += 1.0;
    }

    fn look_for_step(&mut self, now: Instant, sent: u32, delay: Micros) {
        if let Some(step) = &mut self.step {
            step.least = step.least.min(delay);
            let height = step.least - step.before;
            if height < MIN_STEP {
                self.step = None;
            } else if now.since(step.since) >= STAYS {
                // What was remembered is of another path.
                self.least = Extremes::default();
                self.peak = Extremes::default();
                (self.long, self.short, self.bound) = Default::default();
                self.step = None;
            }
        } else if let Some((at, before)) = self.last
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

/// The least or the greatest of the last half minute, a second each.
#[derive(Debug, Default)]
struct Extremes {
    parts: VecDeque<(Instant, Micros)>,
}

impl Extremes {
    /// Adds a value; the extreme, which `pick` picks of two.
    fn add(&mut self, now: Instant, value: Micros, pick: fn(Micros, Micros) -> Micros) -> Micros {
        match self.parts.back_mut() {
            Some((since, extreme)) if now.since(*since) < MEMORY / PARTS => {
                *extreme = pick(*extreme, value)
            }
            _ => self.parts.push_back((now, value)),
        }
        while self.parts.front().is_some_and(|&(since, _)| now.since(since) > MEMORY) {
            self.parts.pop_front();
        }
        self.value(pick).unwrap_or(value)
    }

    fn value(&self, pick: fn(Micros, Micros) -> Micros) -> Option<Micros> {
        self.parts.iter().map(|&(_, value)| value).reduce(pick)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path whose clock is off, and its queue.
    struct World {
        queue: Queue,
        now: Instant,
    }

    impl World {
        fn new() -> World {
            World { queue: Queue::default(), now: Instant::ZERO + Duration::from_secs(1) }
        }

        /// Packets for so long, each after this many microseconds, of these delays by the time passed.
        fn run(&mut self, millis: u64, delay: impl Fn(f64) -> f64) -> Vec<bool> {
            let begun = self.now;
            let mut full = Vec::new();
            while self.now.since(begun) < Duration::from_millis(millis) {
                self.now += Duration::from_micros(100);
                let delay = delay(self.now.since(begun).as_secs_f64()) as u32;
                let sent = micros(self.now).wrapping_sub(delay).wrapping_add(3_000_000_000);
                let waits = self.queue.arrive(self.now, sent);
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
        assert!((0.25..0.33).contains(&share), "{share}");
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
        let mut world = World::new();
        for _ in 0..20 {
            // 100 parts in a million, 3 ms in half a minute.
            let full = world.run(30_000, |at| 1e9 + 100.0 * at);
            assert!(!full.contains(&true));
        }
    }

    /// Packets whose delays are a saw, for a while, of which those are lost that `lost` says, by what
    /// they would wait as a share of the peak; how many losses were taken for a full queue's, of all.
    fn judge(seconds: u64, mut lost: impl FnMut(u64, f64) -> bool) -> (usize, usize) {
        let (mut world, mut told, mut all, mut n) = (World::new(), 0, 0, 0);
        let (mut before, mut verdict) = (false, Verdict::Chance);
        for at in 0..seconds * 10_000 {
            let height = 0.2 + 0.8 * (at as f64 / 20_000.0).fract();
            world.now += Duration::from_micros(100);
            n += 1;
            let now = lost(n, height);
            if now {
                all += 1;
                if !before {
                    verdict = world.queue.lose(world.queue.waits());
                }
                told += usize::from(verdict == Verdict::Congestion);
            } else {
                let sent = micros(world.now).wrapping_sub(50_000 + (40_000.0 * height) as u32);
                world.queue.arrive(world.now, sent);
            }
            before = now;
        }
        (told, all)
    }

    #[test]
    fn losses_at_the_peak_are_a_full_queues_unless_they_come_elsewhere_too() {
        let (told, all) = judge(60, |n, height| height > 0.98 && n % 7 == 0);
        assert!(told * 50 > all * 49, "{told} of {all}");
        let (told, all) = judge(60, |n, _| n % 101 == 0);
        assert!(told * 1_000 < all, "{told} of {all}");
        let (told, all) = judge(60, |n, _| n % 3_000 < 30);
        assert!(told * 100 < all, "{told} of {all}");
        let (told, all) = judge(60, |n, height| n % 101 == 0 || height > 0.98 && n % 2 == 0);
        assert!(told * 10 > all * 5, "{told} of {all}");
    }
}
