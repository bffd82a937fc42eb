//! Choice of hops. Measured in virtual time: distance of the chosen routes from the best ones,
//! stability of the choice, and distribution of the load. Measured with real programs
//! ([`overlay`]): the same distance, and the time until a failed hop is avoided.
//!
//! ```text
//!   64 nodes on a plane, a fifth of the paths detours; one node chooses hops towards 40 servers
//!   8 equal hops in one place, between 40 nodes and 20 servers each
//!   8 nodes in namespaces, each with an overlay node and a proxy; a client at one, 5 servers
//! ```

mod overlay;

use viaduct_proto::placement::score::{Preference, Segment};
use viaduct_proto::placement::world::World as Places;
use viaduct_proto::placement::{Config, Mesh, Placement, Route};
use viaduct_proto::time::Instant as VirtualTime;

use crate::experiments::prelude::*;

const NODES: usize = 64;
const SERVERS: usize = 40;
/// Maximum ratio of a route's time to that of the best route, for the route to count as near.
const NEAR: f64 = 1.05;
const MIN_NEAR: f64 = 0.95;
/// Maximum relative error of a simulated measurement of a round trip.
const JITTER: f64 = 0.1;
const MAX_SWITCHES_PER_MINUTE: f64 = 1.0;
/// Number of equal hops.
const EQUAL: usize = 8;
/// Number of nodes that share the equal hops.
const SHARERS: u64 = 40;
/// Number of servers to which each of these nodes sends flows.
const SHARED_SERVERS: usize = 20;
/// Load of one flow on a hop.
const FLOW: f64 = 0.01;
const MAX_OVER_FAIR: f64 = 1.3;
/// Maximum seconds until a failed hop is avoided.
const AVOIDED: f64 = 2.0;

pub(in crate::experiments) const ABOUT: About = About {
    name: "scale/hops",
    title: "Choice of hops by measurements: near-optimal, stable, evenly loaded",
    figure: "Miniproxy, sections 3, 4 and 7 (beyond its figures)",
    finding: "Proxies at the right places save up to 37.5 % of the time to the first byte, even \
              with detours; the paper leaves their placement to a future orchestration.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let (seeds, minutes) = run.choose((50, 60), (10, 10));
    let (matrices, rounds) = run.choose((10, 40), (1, 20));
    run.param("nodes", NODES);
    run.param("servers", SERVERS);
    run.param("matrices", seeds);
    run.param("minutes_of_jitter", minutes);
    run.param("matrices in namespaces", matrices);
    run.param("flows to each server in namespaces", rounds);
    run.steps(seeds + 2 + matrices);
    nearness(run, seeds)?;
    run.step("jitter")?;
    stability(run, minutes)?;
    run.step("equal hops")?;
    shares(run, minutes);
    real(run, matrices, rounds)
}

fn at(seconds: f64) -> VirtualTime {
    VirtualTime::ZERO + Duration::from_secs_f64(seconds)
}

/// Creates a placement that knows the round trips from all nodes of `places`.
fn informed(places: &Places, seed: u64) -> Placement {
    let config = Config { explore_every: None, ..Config::default() };
    let mut placement = Placement::new(config, seed);
    placement.replace(places.mesh(|| 1.0, None));
    places.inform(at(0.0), &mut placement);
    placement
}

/// Compares the chosen routes with the best ones.
fn nearness(run: &mut Run, seeds: usize) -> Result<()> {
    let (mut over_best, mut over_direct) = (Vec::new(), Vec::new());
    for n in 0..seeds as u64 {
        run.step(&format!("matrix {}", n + 1))?;
        let seed = run.seed() + n;
        let places = Places::new(seed, NODES, SERVERS);
        let mut placement = informed(&places, seed);
        for server in 0..SERVERS {
            let route = placement.choose(at(1.0), Places::server(server), Preference::FirstByte);
            let own = places.first_byte_ms(route, server);
            over_best.push(own / places.best_ms(server));
            over_direct.push(own / places.first_byte_ms(Route::Direct, server));
        }
    }
    let share = plot_ratios(run, "Time to the first byte", &over_best, &over_direct);
    run.at_least("share of routes within 5 % of the best", share, MIN_NEAR);
    Ok(())
}

/// Counts changes of routes while round trips are measured with jitter, and looks for routes
/// through a hop that has failed.
fn stability(run: &mut Run, minutes: u32) -> Result<()> {
    let places = Places::new(run.seed(), NODES, SERVERS);
    let mut placement = informed(&places, run.seed());
    let mut rng = Rng::from_seed(run.seed());
    let mut noise = || 1.0 - JITTER + 2.0 * JITTER * rng.unit();
    let (mut routes, mut switches) = ([Route::Direct; SERVERS], [0; SERVERS]);
    for second in 0..60 * minutes {
        placement.update(places.mesh(&mut noise, None));
        for server in 0..SERVERS {
            let route =
                placement.choose(at(second.into()), Places::server(server), Preference::FirstByte);
            switches[server] += u32::from(second > 0 && route != routes[server]);
            routes[server] = route;
        }
    }
    let most = switches.into_iter().max().unwrap_or_default();
    let rate = f64::from(most) / f64::from(minutes);
    run.at_most("route changes per minute, maximum", rate, MAX_SWITCHES_PER_MINUTE);
    let dead = routes.iter().flat_map(|route| route.hops()).next();
    ensure!(dead.is_some(), "no route uses a hop");
    placement.update(places.mesh(|| 1.0, dead));
    let uses_dead = |server: &usize| {
        let route = placement.choose(
            at((60 * minutes).into()),
            Places::server(*server),
            Preference::FirstByte,
        );
        route.hops().any(|hop| Some(hop) == dead)
    };
    let through = (0..SERVERS).filter(uses_dead).count();
    run.at_most("routes through a hop that is known to be down", through as f64, 0.0);
    Ok(())
}

/// Lets many nodes choose among equal hops, whose loads the nodes learn once a second. Checks the
/// loads at the end.
fn shares(run: &mut Run, minutes: u32) {
    let hops = 1..=EQUAL;
    let placement = |seed| {
        let mut placement = Placement::new(Config::default(), seed);
        for server in (0..SHARED_SERVERS).map(Places::server) {
            placement.handle_finished(at(0.0), 0, server, 100.0);
            hops.clone().for_each(|hop| placement.handle_finished(at(0.0), hop, server, 50.0));
        }
        placement
    };
    let mut all: Vec<Placement> = (0..SHARERS).map(|n| placement(run.seed() + n)).collect();
    let mut loads = [0.0; EQUAL + 1];
    let plot = Plot::line("Load of equal hops", ("time", "s"), ("load, relative to the mean", ""));
    for second in 0..60 * minutes {
        let mut next = [0.0; EQUAL + 1];
        for placement in &mut all {
            let mut mesh = Mesh::new(EQUAL);
            for hop in hops.clone() {
                mesh.set_path(0, hop, Some(Segment { rtt_ms: 50.0, loss: 0.0 }));
                mesh.set_load(hop, loads[hop]);
            }
            placement.update(mesh);
            for server in (0..SHARED_SERVERS).map(Places::server) {
                let route = placement.choose(at(second.into()), server, Preference::FirstByte);
                route.hops().for_each(|hop| next[hop] += FLOW);
            }
        }
        loads = next;
        if second % 30 == 0 {
            run.plot_point(&plot, "the most loaded", (second.into(), over_fair(&loads)));
        }
    }
    run.at_most(
        "load of the most loaded of equal hops, relative to the mean",
        over_fair(&loads),
        MAX_OVER_FAIR,
    );
}

/// Measures the choice of real programs.
fn real(run: &mut Run, matrices: usize, rounds: usize) -> Result<()> {
    let (mut over_best, mut over_direct, mut avoided) = (Vec::new(), Vec::new(), Vec::new());
    let mut failed = 0;
    let seeds = (run.seed()..).filter(|seed| overlay::is_useful(*seed)).take(matrices);
    for (n, seed) in (1..).zip(seeds) {
        run.step(&format!("namespaces, matrix {n}"))?;
        let found = overlay::measure(seed, rounds, run.journal())?;
        over_best.extend(found.over_best);
        over_direct.extend(found.over_direct);
        avoided.extend(found.avoided_after);
        failed += found.failed;
    }
    let share = plot_ratios(run, "Time to the first byte, measured", &over_best, &over_direct);
    run.at_least("in namespaces: share of flows within 5 % of the best", share, MIN_NEAR);
    ensure!(!avoided.is_empty(), "no flow used a hop");
    let last = avoided.into_iter().fold(0.0, f64::max);
    run.at_most("in namespaces: from the failure of a hop to the last late flow, s", last, AVOIDED);
    run.at_most("in namespaces: flows that failed", failed as f64, 0.0);
    Ok(())
}

/// Plots times to the first byte relative to those of the best and of the direct routes. Returns
/// the share of times that are near those of the best routes.
fn plot_ratios(run: &mut Run, title: &str, over_best: &[f64], over_direct: &[f64]) -> f64 {
    let plot = Plot::histogram(title, ("", ""), ("ratio", ""));
    let quantiles = [("median", 0.5), ("95th percentile", 0.95), ("largest", 1.0)];
    for (name, ratios) in
        [("relative to the best", over_best), ("relative to the direct path", over_direct)]
    {
        run.plot_bars(&plot, name, quantiles.map(|(of, q)| (of, quantile(ratios, q))));
    }
    let near = over_best.iter().filter(|ratio| **ratio <= NEAR).count();
    near as f64 / over_best.len() as f64
}

/// Returns the ratio of the largest load to the mean; infinite if no flow uses a hop.
fn over_fair(loads: &[f64; EQUAL + 1]) -> f64 {
    let fair = loads.iter().sum::<f64>() / EQUAL as f64;
    let largest = loads.iter().copied().fold(0.0, f64::max);
    if fair == 0.0 { f64::INFINITY } else { largest / fair }
}
