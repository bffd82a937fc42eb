//! Placement in virtual time: compared with an oracle, with noise, with failures, and with many
//! nodes that choose at the same time.

use super::score::{Preference, Segment};
use super::world::World;
use super::*;

const NODES: usize = 64;
const SERVERS: usize = 40;

fn at(seconds: f64) -> Instant {
    Instant::ZERO + Duration::from_secs_f64(seconds)
}

fn world(seed: u64) -> World {
    World::new(seed, NODES, SERVERS)
}

/// Placement that knows the round trips from all nodes.
fn informed(world: &World, config: Config, seed: u64) -> Placement {
    let mut placement = Placement::new(config, seed);
    placement.replace(world.mesh(|| 1.0, None));
    world.inform(at(0.0), &mut placement);
    placement
}

#[test]
fn routes_are_as_good_as_those_of_an_oracle() {
    let (mut near, mut all, mut helped) = (0, 0, 0);
    for seed in 0..5 {
        let world = world(seed);
        let mut placement = informed(&world, Config::default(), seed);
        for number in 0..SERVERS {
            let route = placement.choose(at(1.0), World::server(number), Preference::FirstByte);
            let (own, best) = (world.first_byte_ms(route, number), world.best_ms(number));
            assert!(own >= best * 0.999_999);
            near += usize::from(own <= 1.05 * best);
            helped += usize::from(own < world.first_byte_ms(Route::Direct, number));
            all += 1;
        }
    }
    assert!(near * 100 >= all * 95, "{near} of {all} within 5 %");
    assert!(helped * 2 > all, "{helped} of {all} are shorter than the direct route");
}

#[test]
fn long_flows_take_hops_whose_segments_are_shorter() {
    let world = world(1);
    let mut placement = informed(&world, Config::default(), 1);
    let mut by_hop = 0;
    // The direct first byte takes two round trips: these are shorter than 150 ms.
    for number in (0..SERVERS).filter(|&n| world.first_byte_ms(Route::Direct, n) < 300.0) {
        let route = placement.choose(at(1.0), World::server(number), Preference::Bulk);
        by_hop += usize::from(route != Route::Direct);
    }
    assert!(by_hop > 0);
}

#[test]
fn unknown_routes_are_explored_by_few_flows() {
    let world = world(3);
    let mut placement = Placement::new(Config::default(), 3);
    placement.replace(world.mesh(|| 1.0, None));
    let (mut explored, mut flows) = (0, 0);
    for second in 0..1_800 {
        for number in 0..10 {
            let route = placement.choose(
                at(f64::from(second)),
                World::server(number),
                Preference::FirstByte,
            );
            let settled = placement.choose(
                at(f64::from(second)),
                World::server(number),
                Preference::FirstByte,
            );
            (explored, flows) = (explored + u32::from(route != settled), flows + 2);
            for route in [route, settled] {
                let rtt = world.last_rtt_ms(route, number);
                placement.handle_finished(
                    at(f64::from(second)),
                    route.last(),
                    World::server(number),
                    rtt,
                );
            }
        }
    }
    let cost = |p: &mut Placement, number| {
        world.first_byte_ms(
            p.choose(at(1_799.5), World::server(number), Preference::FirstByte),
            number,
        ) / world.best_ms(number)
    };
    let mut costs: Vec<f64> = (0..10).map(|number| cost(&mut placement, number)).collect();
    costs.sort_by(f64::total_cmp);
    assert!(costs[5] < 1.2, "half are near the best: {costs:?}");
    assert!(explored * 20 <= flows, "{explored} of {flows}");
}

#[test]
fn noise_causes_at_most_a_switch_a_minute_and_a_dead_hop_is_left_immediately() {
    let world = world(5);
    let config = Config { explore_every: None, ..Config::default() };
    let (mut placement, mut rng) = (informed(&world, config, 5), Rng::from_seed(6));
    let mut noise = || 0.9 + 0.2 * rng.unit();
    let mut switches = [0; SERVERS];
    let mut routes = [Route::Direct; SERVERS];
    for second in 0..600 {
        placement.update(world.mesh(&mut noise, None));
        for number in 0..SERVERS {
            let route = placement.choose(
                at(f64::from(second)),
                World::server(number),
                Preference::FirstByte,
            );
            switches[number] += u32::from(second > 0 && route != routes[number]);
            routes[number] = route;
        }
    }
    assert!(switches.iter().all(|count| *count <= 10), "{switches:?}");
    let dead = routes.iter().flat_map(|route| route.hops()).next().expect("a hop is used");
    placement.update(world.mesh(|| 1.0, Some(dead)));
    for number in 0..SERVERS {
        let route = placement.choose(at(600.0), World::server(number), Preference::FirstByte);
        assert!(route.hops().all(|hop| hop != dead), "{number}");
    }
    assert!(placement.switches() > 0);
}

#[test]
fn equal_hops_share_the_load() {
    // One place in the middle with eight hops, between forty nodes and twenty networks each.
    const EQUAL: usize = 8;
    let (nodes, networks) = (40, 20);
    let mesh = |loads: &[f64]| {
        let mut mesh = Mesh::new(EQUAL);
        for (hop, load) in loads.iter().enumerate().skip(1) {
            mesh.set_path(0, hop, Some(Segment { rtt_ms: 50.0, loss: 0.0 }));
            mesh.set_load(hop, *load);
        }
        mesh
    };
    let mut all: Vec<Placement> = (0..nodes)
        .map(|seed| {
            let mut placement = Placement::new(Config::default(), seed);
            for number in 0..networks {
                placement.handle_finished(at(0.0), 0, World::server(number), 100.0);
                for hop in 1..=EQUAL {
                    placement.handle_finished(at(0.0), hop, World::server(number), 50.0);
                }
            }
            placement
        })
        .collect();
    let mut loads = vec![0.0; EQUAL + 1];
    for second in 0..300 {
        let mut next = vec![0.0; EQUAL + 1];
        for placement in &mut all {
            placement.update(mesh(&loads));
            for number in 0..networks {
                for hop in placement
                    .choose(at(f64::from(second)), World::server(number), Preference::FirstByte)
                    .hops()
                {
                    next[hop] += 0.01;
                }
            }
        }
        loads = next;
    }
    let fair = loads.iter().sum::<f64>() / EQUAL as f64;
    assert!(fair > 0.9, "the hops are used: {loads:?}");
    assert!(loads.iter().all(|load| *load <= 1.3 * fair), "{loads:?}");
}
