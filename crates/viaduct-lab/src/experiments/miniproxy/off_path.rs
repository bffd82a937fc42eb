//! Figure 5: an off-path proxy, which makes the total path longer and each half shorter than
//! the direct path.

use super::downloads::{hop, measure};
use super::model::{Expected, expected};
use crate::experiments::prelude::*;
use crate::topology::Detour;

/// Delay from the client to the server in milliseconds, one way.
const ONE_WAY: f64 = 50.0;
/// Delays in milliseconds, one way, from the direct path to the proxy: each half of the path
/// through the proxy exceeds half of the direct path by this delay.
const ASIDE: [f64; 6] = [0.0, 2.5, 5.0, 7.5, 10.0, 12.5];
/// Maximum relative deviation of the measurements from the model.
const TOLERANCE: f64 = 0.05;
/// Checked sizes in KB: of one, two and three flights.
const CHECKED: [usize; 3] = [10, 25, 50];

pub(in crate::experiments) const ABOUT: About = About {
    name: "miniproxy/off-path",
    title: "Time to complete a transfer through a proxy off the direct path",
    figure: "Miniproxy, Figure 5",
    finding: "Flows of two round trips or more still complete sooner through a proxy than without \
              one, even if the proxy makes the path's round trip 50 ms longer.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let sizes: &[usize] = run.choose(&[10, 25, 50, 100, 200], &CHECKED);
    let asides: &[f64] = run.choose(&ASIDE, &[0.0, 12.5]);
    let times = run.choose(15, 5);
    run.param("link", "100 Mb/s, 100 ms round trip without the detour");
    run.param("proxy", "explicit: addressed by an option in the SYN, which it forwards early");
    run.param("downloads_each", times);
    run.congestion_control("cubic");
    run.steps((asides.len() + 1) * sizes.len());
    let none = one_world(run, None, sizes, times)?;
    for (n, &kb) in sizes.iter().enumerate() {
        let points = asides.iter().map(|aside| (half(*aside), none[n].whole));
        run.plot_points(&plot(kb), "no proxy", points);
    }
    for &aside in asides {
        let found = one_world(run, Some(aside), sizes, times)?;
        for (n, &kb) in sizes.iter().enumerate() {
            let plot = plot(kb);
            let model = expected(&[half(aside); 2], kb * 1000);
            run.plot_point(&plot, "measured", (half(aside), found[n].whole));
            run.plot_point(&plot, "model", (half(aside), model.whole));
            if CHECKED.contains(&kb) && (aside == asides[0] || aside == ASIDE[5]) {
                checks(run, &format!("halves of {} ms, {kb} KB", half(aside)), found[n], model);
            }
        }
        if aside == ASIDE[5] {
            // According to the equations, two flights take as long as without a proxy, and three
            // flights take 0.94 of the time without one.
            let ratio = found[2].whole / none[2].whole;
            run.at_most("50 KB on the longest path, relative to no proxy", ratio, 0.98);
        }
    }
    Ok(())
}

fn plot(kb: usize) -> Plot {
    Plot::line(&format!("{kb} KB, by the length of either half"), ("half", "ms"), ("time", "ms"))
}

fn half(aside: f64) -> f64 {
    ONE_WAY / 2.0 + aside
}

fn checks(run: &mut Run, name: &str, found: Expected, model: Expected) {
    let near = Bound::Within(1.0 - TOLERANCE, 1.0 + TOLERANCE);
    run.check(
        &format!("{name}: first byte, relative to the model"),
        found.first_byte / model.first_byte,
        near,
    );
    run.check(
        &format!("{name}: last byte, relative to the model"),
        found.whole / model.whole,
        near,
    );
}

/// Measures downloads of each size, directly or through a proxy at this distance.
fn one_world(
    run: &mut Run,
    aside: Option<f64>,
    sizes: &[usize],
    times: usize,
) -> Result<Vec<Expected>> {
    let (half, side) = (hop(ONE_WAY / 2.0), hop(aside.unwrap_or_default()));
    let world = Detour::build(&half, &side, run.seed(), run.journal())?;
    for host in [&world.client, &world.server, &world.aside] {
        host.set_congestion_control("cubic")?;
    }
    let name = aside.map_or("no proxy".to_owned(), |aside| format!("{aside} ms aside"));
    // Dropped before the world that they run in.
    let _proxies = match aside {
        None => Vec::new(),
        Some(_) => {
            let at = world.aside.v4().into();
            vec![Proxy::explicit(&world.aside, at, None)?, Proxy::steer(&world.client, at)?]
        }
    };
    let mut found = Vec::new();
    for &kb in sizes {
        run.step(&format!("{name}, {kb} KB"))?;
        found.push(measure(&world.client, &world.server, kb * 1000, times, run.seed())?);
    }
    Ok(found)
}
