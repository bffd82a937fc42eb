//! Simulated locations of hops and servers, for tests and experiments. An oracle compares all
//! routes by the true round trips.

use std::net::IpAddr;

use super::score::{Preference, Segment};
use super::{Mesh, Placement, Route};
use crate::rng::Rng;
use crate::time::Instant;

/// Side of the square in which all nodes and servers are placed, in milliseconds of round trip.
const SIDE: f64 = 200.0;
/// Share of paths that are detours.
const DETOURS: f64 = 0.2;
/// Minimum and maximum of the factor by which detours are longer.
const DETOUR: (f64, f64) = (1.5, 3.0);
/// Round trip between two nodes at the same point, in milliseconds.
const SAME_PLACE: f64 = 2.0;

/// Nodes and servers at random points of a square; the first node chooses routes. Round trips are
/// about proportional to the distances. Some paths are detours, so that the shortest path between
/// two nodes is often through a third one: a violation of the triangle inequality.
#[derive(Clone, Debug)]
pub struct World {
    /// Round trips in milliseconds from each node to each other.
    paths: Vec<Vec<f64>>,
    /// Round trips in milliseconds to each server from each node.
    servers: Vec<Vec<f64>>,
}

impl World {
    /// Creates a world of `nodes` nodes and at most 256 `servers`, determined by `seed`.
    pub fn new(seed: u64, nodes: usize, servers: usize) -> World {
        let mut rng = Rng::from_seed(seed);
        let mut places = |count: usize| -> Vec<[f64; 2]> {
            (0..count).map(|_| [SIDE * rng.unit(), SIDE * rng.unit()]).collect()
        };
        let (nodes, servers) = (places(nodes), places(servers));
        let mut rtt = |a: &[f64; 2], b: &[f64; 2]| {
            let (low, high) = if rng.chance(DETOURS) { DETOUR } else { (1.0, 1.2) };
            let factor = low + (high - low) * rng.unit();
            SAME_PLACE + factor * (a[0] - b[0]).hypot(a[1] - b[1])
        };
        let paths = nodes.iter().map(|a| nodes.iter().map(|b| rtt(a, b)).collect()).collect();
        let servers = servers.iter().map(|s| nodes.iter().map(|n| rtt(n, s)).collect()).collect();
        World { paths, servers }
    }

    /// Gives both directions of each path the same round trip, as in a real network.
    pub fn symmetric(mut self) -> World {
        for from in 0..self.paths.len() {
            for to in 0..from {
                self.paths[from][to] = self.paths[to][from];
            }
        }
        self
    }

    /// Round trip in milliseconds between two nodes.
    pub fn path_ms(&self, from: usize, to: usize) -> f64 {
        self.paths[from][to]
    }

    /// Address of a server; each is in a network of its own.
    pub fn server(number: usize) -> IpAddr {
        IpAddr::from([10, 1, number as u8, 1])
    }

    /// Mesh of measured paths: each round trip is multiplied by a factor from `noise`, and the
    /// paths to and from the hop `dead` are down.
    pub fn mesh(&self, mut noise: impl FnMut() -> f64, dead: Option<usize>) -> Mesh {
        let mut mesh = Mesh::new(self.paths.len() - 1);
        for (from, row) in self.paths.iter().enumerate() {
            for (to, rtt_ms) in row.iter().enumerate() {
                let path = Segment { rtt_ms: rtt_ms * noise(), loss: 0.0 };
                let is_up = from != to && ![Some(from), Some(to)].contains(&dead);
                mesh.set_path(from, to, is_up.then_some(path));
            }
        }
        mesh
    }

    /// Tells `placement` the round trips of finished flows from all nodes to all servers.
    pub fn inform(&self, now: Instant, placement: &mut Placement) {
        for (number, rtts) in self.servers.iter().enumerate() {
            for (node, rtt_ms) in rtts.iter().enumerate() {
                placement.handle_finished(now, node, World::server(number), *rtt_ms);
            }
        }
    }

    /// Round trip in milliseconds from the last node of a route to a server.
    pub fn last_rtt_ms(&self, route: Route, server: usize) -> f64 {
        self.servers[server][route.last()]
    }

    /// Time to the first byte, in milliseconds, from a server by a route.
    pub fn first_byte_ms(&self, route: Route, server: usize) -> f64 {
        let nodes: Vec<usize> = std::iter::once(0).chain(route.hops()).collect();
        let between = nodes.windows(2).map(|pair| self.paths[pair[0]][pair[1]]);
        let all = between.chain([self.last_rtt_ms(route, server)]);
        Preference::FirstByte.cost(all.map(|rtt_ms| Segment { rtt_ms, loss: 0.0 }))
    }

    /// Time to the first byte by the best of all routes.
    pub fn best_ms(&self, server: usize) -> f64 {
        let hops = 1..self.paths.len();
        let onward = |first: usize| {
            let seconds = hops.clone().filter(move |second| *second != first);
            seconds.map(move |second| Route::Two(first, second)).chain([Route::One(first)])
        };
        let all = hops.clone().flat_map(onward).chain([Route::Direct]);
        all.map(|route| self.first_byte_ms(route, server)).fold(f64::INFINITY, f64::min)
    }
}
