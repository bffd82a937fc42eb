//! Figure 12: delivery latency of each message of a stream.

use super::stream::Scene;
use crate::experiments::prelude::*;

/// Delay of the link in ms, one way.
const DELAY: f64 = 50.0;

const LOSS: f64 = 0.01;

pub(in crate::experiments) const ABOUT: About = About {
    name: "maelstrom/delivery-trace",
    title: "Delivery latency of each message",
    figure: "Maelstrom, Figure 12",
    finding: "Single losses cause spikes in TCP's delivery latency that last for many messages; \
              with Maelstrom there are hardly any.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let scene = Scene { streams: 1, duration: Duration::from_secs(run.choose(120, 30)) };
    scene.describe(run);
    run.param("one_way_ms", DELAY);
    run.param("loss_percent", LOSS * 100.0);
    run.steps(2);
    let plot = Plot::scatter("Delivery latency", ("message", ""), ("latency", "ms"));
    let mut world = Scene::world(run, DELAY as u32, LOSS)?;
    let (plain, protected) = scene.play_both(run, &mut world, "")?;
    let (plain, protected) = (plain.latencies(), protected.latencies());
    for (name, latencies) in [("plain kernel", &plain), ("with gateways", &protected)] {
        let points = latencies.iter().enumerate().map(|(n, latency)| (n as f64, *latency));
        run.plot_points(&plot, name, points);
    }
    let share = delayed(&protected) / delayed(&plain);
    run.param("plain_delayed", delayed(&plain));
    run.param("protected_delayed", delayed(&protected));
    run.at_most("messages late by an RTT, protected relative to plain", share, 0.2);
    Ok(())
}

/// Counts the messages whose latency exceeded the link's delay by more than a round trip.
fn delayed(latencies: &[f64]) -> f64 {
    latencies.iter().filter(|latency| **latency > 3.0 * DELAY).count() as f64
}
