//! Queues of simulated paths, and the losses during them.

use super::*;

/// Path from a peer whose clock differs, and the path's queue.
struct World {
    queue: Queue,
    now: Instant,
    seq: Seq,
    /// Interval of packets.
    every: Duration,
}

impl World {
    fn new() -> World {
        let (now, every) = (Instant::ZERO + Duration::from_secs(1), Duration::from_micros(100));
        World { queue: Queue::default(), now, seq: 0, every }
    }

    /// Sends packets for `millis` milliseconds, with the delay that `delay` gives for the elapsed
    /// seconds. Returns for each packet whether the queue is full.
    fn run(&mut self, millis: u64, delay: impl Fn(f64) -> f64) -> Vec<bool> {
        let begun = self.now;
        let mut full = Vec::new();
        while self.now.since(begun) < Duration::from_millis(millis) {
            self.now += self.every;
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
fn only_the_top_of_a_sawtooth_is_a_full_queue() {
    let mut world = World::new();
    let saw = |at: f64| 50_000.0 + 100_000.0 * (0.3 + 0.7 * (at / 5.0).fract());
    // The queue fills packet by packet.
    world.run(1_000, |at| 50_000.0 + 30_000.0 * at);
    world.run(10_000, saw);
    let full = world.run(10_000, saw);
    let share = full.iter().filter(|full| **full).count() as f64 / full.len() as f64;
    assert!((0.25..0.35).contains(&share), "{share}");
    assert!(!world.run(1_000, |_| 60_000.0).contains(&true));
}

#[test]
fn jitter_of_an_idle_link_is_not_a_queue() {
    let mut world = World::new();
    let full = world.run(20_000, |at| 50_000.0 + 2_000.0 * (at * 997.0).sin().abs());
    assert!(!full.contains(&true));
}

#[test]
fn a_longer_path_is_not_a_full_queue_but_a_queue_that_fills_is() {
    let mut world = World::new();
    world.run(5_000, |_| 50_000.0);
    world.run(600, |_| 80_000.0);
    assert!(!world.run(10_000, |_| 80_000.0).contains(&true), "the path's delay");
    // Packets are lost at the change.
    world.seq += 30;
    world.run(600, |_| 120_000.0);
    assert!(!world.run(10_000, |_| 120_000.0).contains(&true), "the path's delay");
    // The same with few packets.
    world.every = Duration::from_millis(10);
    world.run(600, |_| 150_000.0);
    assert!(!world.run(10_000, |_| 150_000.0).contains(&true), "the path's delay");
    let mut world = World::new();
    world.run(5_000, |_| 50_000.0);
    world.run(1_000, |at| 50_000.0 + 100_000.0 * at);
    assert!(
        !world.run(10_000, |_| 150_000.0).contains(&false),
        "an excess of a tenth fills the queue in a second"
    );
}

#[test]
fn the_peers_clock_may_wrap_and_drift() {
    for drift in [-100.0, 100.0] {
        let mut world = World { every: Duration::from_millis(1), ..World::new() };
        // A drift of 60 ms in ten minutes.
        let full = world.run(600_000, |at| 1e9 + drift * at);
        assert!(!full.contains(&true), "{drift}");
        assert!(world.queue.waits < 2_000, "{drift}");
    }
}

#[test]
fn a_queue_that_never_empties_is_recognised_for_minutes() {
    let mut world = World::new();
    world.run(1_000, |at| 50_000.0 + 40_000.0 * at);
    let full = world.run(240_000, |at| 90_000.0 + 60_000.0 * (at / 14.0).fract());
    let share = full.iter().filter(|full| **full).count() as f64 / full.len() as f64;
    assert!((0.25..0.45).contains(&share), "{share}");
    // The queue is never full, so 24 of its 49 ms may be clock drift.
    assert!((22_000..27_000).contains(&world.queue.waits), "{}", world.queue.waits);
}

#[test]
fn after_a_pause_the_path_may_have_changed() {
    let mut world = World::new();
    world.run(5_000, |_| 50_000.0);
    world.now += PAUSE + PART;
    assert!(!world.run(5_000, |_| 120_000.0).contains(&true));
}

/// Sends packets for `seconds` seconds. The delay at each time is the fraction `height` of 40 ms;
/// `lost` selects the lost packets. Returns the number of losses attributed to a full queue, and
/// the number of all losses.
fn judge(
    world: &mut World,
    seconds: u64,
    height: impl Fn(f64) -> f64,
    mut lost: impl FnMut(u64, f64) -> bool,
) -> (usize, usize) {
    let (mut attributed, mut all) = (0, 0);
    let (mut before, mut verdict) = (false, Verdict::Chance);
    for at in 0..seconds * 10_000 {
        let height = height(at as f64 / 10_000.0);
        world.now += Duration::from_micros(100);
        world.seq += 1;
        let now = lost(at, height);
        if now {
            all += 1;
            if !before {
                verdict = world.queue.lose(world.now, world.queue.waits);
            }
            attributed += usize::from(verdict == Verdict::Congestion);
        } else {
            let sent = micros(world.now).wrapping_sub(50_000 + (40_000.0 * height) as u32);
            world.queue.arrive(world.now, world.seq, sent);
        }
        before = now;
    }
    (attributed, all)
}

fn saw(at: f64) -> f64 {
    0.2 + 0.8 * (at / 2.0).fract()
}

#[test]
fn losses_are_attributed_to_a_full_queue_if_they_occur_only_at_the_peak() {
    let full = |n: u64, height: f64| height > 0.98 && n.is_multiple_of(7);
    let (attributed, all) = judge(&mut World::new(), 60, saw, full);
    assert!(attributed * 50 > all * 49, "{attributed} of {all}");
    for every in [20, 101, 1_009] {
        let (attributed, all) = judge(&mut World::new(), 60, saw, |n, _| n.is_multiple_of(every));
        assert!(attributed * 1_000 < all, "{attributed} of {all}");
    }
    let (attributed, all) = judge(&mut World::new(), 60, saw, |n, _| n % 3_000 < 30);
    assert!(attributed * 100 < all, "{attributed} of {all}");
    let both = |n: u64, height: f64| n.is_multiple_of(101) || full(n, height);
    let (attributed, all) = judge(&mut World::new(), 60, saw, both);
    assert!(attributed * 100 > all * 15, "{attributed} of {all}");
}

#[test]
fn losses_below_the_peak_are_not_attributed_to_the_full_queue() {
    let mut world = World::new();
    let at_random = |n: u64| n.is_multiple_of(101);
    let full = |n: u64, height: f64| height > 0.98 && n.is_multiple_of(5);
    judge(&mut world, 60, saw, |n, height| at_random(n) || full(n, height));
    let (attributed, all) = judge(&mut world, 60, |at| saw(at) * 0.93, |n, _| at_random(n));
    assert!(attributed * 50 < all, "{attributed} of {all}");
}

#[test]
fn losses_at_a_queue_that_was_longer_when_it_was_full_are_random() {
    let mut world = World::new();
    let fills = |at: f64| (at / 2.0).powi(4).min(1.0);
    judge(&mut world, 3, fills, |n, height| height == 1.0 && n.is_multiple_of(2));
    judge(&mut world, 15, |_| 0.5, |_, _| false);
    let (attributed, all) = judge(&mut world, 10, |_| 0.5, |n, _| n.is_multiple_of(101));
    assert!(attributed * 50 < all, "{attributed} of {all}");
}

#[test]
fn a_queue_that_grows_is_not_full_and_a_queue_that_stays_long_is() {
    // A queue that a slow start fills.
    let grows = |at: f64| (at / 2.0).powi(4);
    let (attributed, _) = judge(&mut World::new(), 2, grows, |n, _| n.is_multiple_of(101));
    assert_eq!(attributed, 0);
    let fills = |at: f64| (at / 2.0).powi(4).min(0.5);
    let (attributed, all) =
        judge(&mut World::new(), 2, fills, |n, height| height == 0.5 && n.is_multiple_of(2));
    assert!(attributed + 15 >= all, "{attributed} of {all}");
    // A sender that exceeds its link for minutes.
    let mut world = World::new();
    judge(&mut world, 1, |at| at, |_, _| false);
    let (attributed, all) = judge(&mut world, 240, |_| 1.0, |n, _| n.is_multiple_of(11));
    assert!(attributed + 100 >= all, "{attributed} of {all}");
}

#[test]
fn drops_of_a_flow_that_stays_near_the_peak_are_recognised() {
    let cubic = |at: f64| 1.0 - 0.6 * (1.0 - (at / 6.0).fract()).powi(3);
    let drops = |n: u64, height: f64| height > 0.999 && n.is_multiple_of(20);
    let mut world = World::new();
    judge(&mut world, 60, cubic, drops);
    let (attributed, all) = judge(&mut world, 60, cubic, drops);
    assert!(attributed * 2 > all, "{attributed} of {all}");
}
