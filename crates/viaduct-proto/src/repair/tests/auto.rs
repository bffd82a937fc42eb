//! Repairs that adapt to the losses, end to end.

use super::*;
use control::{Limits, Regime};

fn world() -> World {
    World::of(&Coding::Auto(Limits { max_overhead: 0.25, max_rate: None }.into()))
}

impl World {
    /// Repair bytes for each data byte since the last call.
    fn overhead(&self, before: &mut stats::SenderStats) -> f64 {
        let now = self.a_stats().sender;
        let bytes = now.repair_bytes - before.repair_bytes;
        let share = bytes as f64 / (now.bytes - before.bytes) as f64;
        *before = now;
        share
    }

    fn control(&self) -> control::State {
        self.a.facts(self.now)["site-2"].control.unwrap()
    }
}

#[test]
fn a_clean_link_costs_only_names() {
    let mut world = world();
    assert_eq!(world.stream(5_000, |_, _| false, 0.0), 0);
    let sender = world.a_stats().sender;
    // Repairs are sent until the loss rate is known.
    assert!((200..700).contains(&sender.repairs), "{sender:?}");
    assert!(sender.manifests > 0, "{sender:?}");
    let state = world.control();
    assert_eq!((state.regime, state.overhead), (Regime::Clean, 0.0));
}

#[test]
fn single_losses_are_recovered_at_little_cost_which_ends_with_the_losses() {
    let mut world = world();
    world.stream(5_000, |_, _| false, 0.0);
    let mut before = world.a_stats().sender;
    let lost = |rng: &mut Rng, _| rng.chance(0.01);
    // At the onset, packets that no repair covers are recovered on request.
    assert_eq!(world.stream(2_000, lost, 0.01), 0);
    assert!(world.a_stats().sender.answered > 0);
    let onset = world.overhead(&mut before);
    assert_eq!(world.stream(20_000, lost, 0.01), 0);
    let steady = world.overhead(&mut before);
    let link = world.b_stats().receiver.link;
    assert!(link.lost > 150 && link.recovered == link.lost, "{link:?}");
    // The overhead is high because packets are few: only ten pass in the time for which flows can
    // wait, and a loss must be repaired in that time.
    assert!(steady < 0.5, "{onset} {steady}");
    world.stream(20_000, |_, _| false, 0.0);
    world.run(Duration::from_secs(60), |_, _| false);
    world.overhead(&mut before);
    world.stream(1_000, |_, _| false, 0.0);
    let after = world.overhead(&mut before);
    assert_eq!((world.control().regime, world.control().overhead), (Regime::Clean, 0.0));
    // A manifest is sent for every five packets of 630 bytes.
    assert!(after < 0.04, "{after}");
}

#[test]
fn bursts_are_recovered() {
    let mut world = world();
    let lost = |_: &mut Rng, i: usize| i % 800 < 8;
    world.stream(3_000, lost, 0.0);
    let before = world.b_stats().receiver.link;
    let gone = world.stream(20_000, lost, 0.01);
    assert!(gone < 3, "{gone} {:?}", world.b_stats());
    let link = world.b_stats().receiver.link;
    assert!(link.lost - before.lost >= 200, "{link:?}");
    assert!(world.control().overhead > 0.02, "{:?}", world.control());
}

#[test]
fn names_alone_measure_the_link() {
    let mut world = World::of(&Coding::Observe);
    world.stream(5_000, |_, i| i % 100 == 7, 0.0);
    let (sender, receiver) = (world.a_stats().sender, world.b_stats().receiver);
    assert_eq!((sender.repairs, receiver.recovered), (0, 0));
    assert_eq!((receiver.link.lost, receiver.random), (50, 50));
}
