//! Outcomes of the codes with losses of several kinds.

use super::*;
use crate::rng::Rng;

const RTT: Duration = Duration::from_millis(100);

/// Outcome of the second of two periods of ten seconds, at 16,700 packets a second; `lost`
/// selects the lost packets.
fn run(mut lost: impl FnMut(&mut Rng, u64) -> bool) -> [Outcome; TRIED.len()] {
    let (mut shadows, mut rng) = (Shadows::new(RTT), Rng::from_seed(7));
    let mut before = shadows.outcomes();
    for n in 0..334_000 {
        if n == 167_000 {
            before = shadows.outcomes();
        }
        let fate = if lost(&mut rng, n) { Fate::Lost } else { Fate::Arrived };
        shadows.step(Instant::ZERO + Duration::from_micros(60) * n as u32, fate);
    }
    let after = shadows.outcomes();
    std::array::from_fn(|n| Outcome {
        packets: after[n].packets - before[n].packets,
        lost: after[n].lost - before[n].lost,
        recovered: after[n].recovered - before[n].recovered,
        in_time: after[n].in_time - before[n].in_time,
        repairs: after[n].repairs - before[n].repairs,
    })
}

fn share(part: u64, of: u64) -> f64 {
    part as f64 / of.max(1) as f64
}

#[test]
fn every_code_recovers_single_losses_and_auto_is_cheapest() {
    let of = run(|rng, _| rng.chance(0.01));
    let recovered = of.map(|of| share(of.recovered, of.lost));
    assert!(recovered.iter().all(|share| *share > 0.99), "{recovered:?}");
    let cost = of.map(|of| share(of.repairs, of.packets));
    assert!(cost[0] < 0.06 && cost[1..].iter().all(|cost| *cost > 0.25), "{cost:?}");
    assert!(share(of[0].in_time, of[0].recovered) > 0.95, "{of:?}");
}

#[test]
fn bursts_beyond_their_reach_defeat_fixed_codes() {
    let of = run(|_, n| n % 6_000 < 60);
    let recovered = of.map(|of| share(of.recovered, of.lost));
    assert!(recovered[0] > 0.9 && recovered[2] < 0.2, "{recovered:?}");
}

#[test]
fn auto_sends_no_repairs_on_a_clean_link() {
    let of = run(|_, _| false);
    assert_eq!((of[0].lost, of[0].repairs), (0, 0));
}
