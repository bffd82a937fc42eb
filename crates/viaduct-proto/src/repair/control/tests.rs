use super::*;

const TRAFFIC: Traffic = Traffic { pace: 20_000.0, wait: Duration::from_millis(25) };
const TICK: Duration = Duration::from_millis(25);

/// Controller with a receiver's totals.
struct World {
    controller: Controller,
    now: Instant,
    report: Report,
}

impl World {
    fn new() -> World {
        let now = Instant::ZERO;
        let controller = Controller::new(now, Limits { max_overhead: 0.25, max_rate: None });
        World { controller, now, report: Report::default() }
    }

    /// Runs for some seconds with `bursts` bursts of `length` packets in each tick. Returns the
    /// overhead.
    fn run(&mut self, seconds: u64, bursts: u64, length: u64) -> f64 {
        for _ in 0..seconds * 40 {
            self.now += TICK;
            self.report.random.packets += 500;
            self.report.random.bursts[bursts::bucket(length)] += bursts;
            self.controller.handle_report(self.now, self.report, TRAFFIC);
        }
        self.controller.overhead
    }
}

#[test]
fn a_clean_link_gets_no_repairs_and_an_onset_is_repaired_immediately() {
    let mut world = World::new();
    assert_eq!(world.controller.regime, Regime::Unknown);
    assert_eq!(world.run(100, 0, 1), 0.0);
    assert_eq!(world.controller.parameters(TRAFFIC), None);
    assert_eq!(world.controller.regime, Regime::Clean);
    let overhead = world.run(5, 5, 1);
    assert!((0.025..0.05).contains(&overhead), "1 % single: {overhead}");
    assert_eq!(world.controller.regime, Regime::Repairing);
    let parameters = world.controller.parameters(TRAFFIC).unwrap();
    assert!(
        (parameters.overhead() - overhead).abs() < 0.001 && parameters.window == 600,
        "{parameters}"
    );
}

#[test]
fn after_the_last_loss_the_overhead_falls_and_ends_after_a_minute() {
    let mut world = World::new();
    let steady = world.run(30, 5, 1);
    assert!(world.run(5, 0, 1) <= steady);
    assert!(world.run(25, 0, 1) < 0.006);
    assert!(world.run(25, 0, 1) > 0.0, "another loss would be repaired immediately");
    assert_eq!(world.run(10, 0, 1), 0.0);
}

#[test]
fn bursts_raise_the_overhead_up_to_its_limit() {
    let mut world = World::new();
    let single = world.run(20, 16, 1);
    let mut world = World::new();
    let bursts = world.run(20, 2, 8);
    assert!(bursts > 1.5 * single, "{bursts} against {single}");
    assert_eq!(world.run(20, 3, 64), 0.125, "the rest is reserved for requests");
    assert_eq!(world.controller.regime, Regime::Bounded);
}

#[test]
fn a_full_queue_gets_hardly_more_repairs_than_before() {
    let mut world = World::new();
    let before = world.run(20, 10, 1);
    world.report.queue_full = true;
    assert!(world.run(5, 40, 1) <= before);
    assert_eq!(world.controller.regime, Regime::Congested);
    world.report.queue_full = false;
    assert!(world.run(1, 40, 1) > before);
    let mut world = World::new();
    world.run(20, 0, 1);
    world.report.queue_full = true;
    let overhead = world.run(5, 5, 1);
    assert!((0.02..=PRIOR).contains(&overhead), "losses during a standing queue: {overhead}");
}

#[test]
fn a_few_losses_of_an_onset_raise_the_overhead() {
    let mut world = World::new();
    world.run(20, 0, 1);
    let mut losses = |bursts| {
        world.now += TICK;
        world.report.random.packets += 500;
        world.report.random.bursts[0] += bursts;
        world.controller.handle_report(world.now, world.report, TRAFFIC);
        world.controller.overhead
    };
    assert_eq!(losses(2), 0.0, "there may be no more losses");
    assert_eq!(losses(2), PRIOR);
    assert_eq!(losses(0), PRIOR);
    assert_eq!(losses(9), FIRST);
    let later: Vec<_> = (0..80).map(|_| losses(0)).collect();
    assert!(later[30] > 0.07 && later[40] < 0.01, "{later:?}");
}

#[test]
fn losses_are_repaired_while_their_cause_is_in_doubt() {
    let mut world = World::new();
    assert_eq!(world.run(20, 0, 1), 0.0);
    (world.report.queue_full, world.report.in_doubt) = (true, true);
    assert_eq!(world.run(1, 0, 1), PRIOR);
    world.report.in_doubt = false;
    assert_eq!(world.run(1, 0, 1), 0.0);
}

#[test]
fn repairs_are_reduced_only_while_a_queue_drops_packets() {
    let mut world = World::new();
    let before = world.run(20, 5, 1);
    let drop = |world: &mut World, times| {
        for _ in 0..times {
            world.report.congested += 10;
            world.now += TICK;
            world.controller.handle_report(world.now, world.report, TRAFFIC);
        }
        world.controller.overhead
    };
    let times = |millis| (millis / TICK.as_millis()) as usize;
    let soon = drop(&mut world, times(1_000));
    assert!(soon > 0.9 * before, "{soon} of {before}: the flows that fill the queue slow down");
    let later = drop(&mut world, times(1_500));
    assert!(later < 0.05 * before, "{later} of {before}");
    assert!(world.run(1, 5, 1) > 0.9 * before);
}

#[test]
fn visible_losses_raise_the_overhead_within_bounds_and_calm_lowers_it() {
    let mut world = World::new();
    let plain = world.run(20, 5, 1);
    for _ in 0..20 {
        world.report.visible += 1;
        world.run(1, 5, 1);
    }
    let raised = world.controller.overhead;
    assert!((1.2..1.6).contains(&(raised / plain)), "{raised} of {plain}");
    let calm = world.run(700, 5, 1);
    assert!((0.7..1.01).contains(&(calm / plain)), "{calm} of {plain}");
}

#[test]
fn a_restart_of_the_receiver_is_not_an_onset() {
    let mut world = World::new();
    let before = world.run(20, 5, 1);
    world.report.random = bursts::Counts::default();
    let after = world.run(2, 5, 1);
    assert!((after / before - 1.0).abs() < 0.2, "{after}, {before} before");
}
