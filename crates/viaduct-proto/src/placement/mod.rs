//! Placement of hops: which proxies a flow passes on its way to a server, none, one or two, so that
//! it is as fast as possible (Miniproxy, sections 3, 4 and 7).
//!
//! ```text
//!   Mesh: paths between hops, loads ──────────┐
//!                                             ├─▶ cost of each route ─▶ choice, kept for a minute
//!   Servers: round trips of finished flows ───┘
//!            by hop and prefix
//! ```
//!
//! **Cost.** For the first byte, the paper's model: the round trips of all segments, and once more
//! that of the longest one ([`score`]). For bulk, the segment that limits the throughput. What is
//! known is measured, so routes that are shorter than the direct path are found.
//!
//! **Servers.** The round trip from a hop to a server is that of the hop's finished flows to the
//! server's network (/24, or /48 for IPv6); there are no probes. If it is unknown, a flow now and
//! then explores a hop that may be better ([`servers`]).
//!
//! **Stability.** A choice is kept for [`Config::hold`], unless one of its hops fails, and then
//! until another one is clearly better. Among routes of nearly the same cost two are drawn, and the
//! less loaded one is taken, so that many sites with the same measurements do not choose the same
//! hop.

mod choice;
mod mesh;
pub mod score;
mod servers;
#[cfg(test)]
mod tests;
pub mod world;

use std::net::IpAddr;

use crate::rng::Rng;
use crate::time::{Duration, Instant};
use choice::Choice;
use score::Preference;
use servers::Servers;

pub use mesh::Mesh;
pub use servers::Prefix;

/// Settings of a placement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Criterion by which routes are compared.
    pub preference: Preference,
    /// Time for which a choice is kept while its hops are up.
    pub hold: Duration,
    /// Maximum number of networks of servers that are remembered.
    pub max_prefixes: usize,
    /// Time after which an exploration of a network may follow the last one; `None`: no
    /// explorations.
    pub explore_every: Option<Duration>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            preference: Preference::default(),
            hold: Duration::from_secs(60),
            max_prefixes: 4096,
            explore_every: Some(Duration::from_secs(10)),
        }
    }
}

/// Hops of a flow, in order. Hops have the numbers of the [`Mesh`], from 1; 0 is this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Route {
    /// To the server itself.
    #[default]
    Direct,
    /// Through this hop.
    One(usize),
    /// Through the first and then the second hop.
    Two(usize, usize),
}

impl Route {
    /// Hops of the route, in order.
    pub fn hops(self) -> impl Iterator<Item = usize> {
        let hops = match self {
            Route::Direct => [None, None],
            Route::One(hop) => [Some(hop), None],
            Route::Two(first, second) => [Some(first), Some(second)],
        };
        hops.into_iter().flatten()
    }

    /// Last node before the server.
    pub fn last(self) -> usize {
        self.hops().last().unwrap_or(0)
    }
}

/// Choices of one node for all its flows.
#[derive(Debug)]
pub struct Placement {
    config: Config,
    mesh: Mesh,
    servers: Servers<Choice>,
    rng: Rng,
    /// Number of changes of choices whose hops were up.
    switches: u64,
}

impl Placement {
    /// Creates a placement that knows no hops yet. `seed` must differ between nodes.
    pub fn new(config: Config, seed: u64) -> Placement {
        let servers = Servers::new(config.max_prefixes);
        let rng = Rng::from_seed(seed);
        Placement { config, mesh: Mesh::default(), servers, rng, switches: 0 }
    }

    /// Takes over new measurements of the hops. If the hops themselves or their order change, use
    /// [`Placement::replace`].
    pub fn update(&mut self, mesh: Mesh) {
        self.mesh = mesh;
    }

    /// Takes over other hops. Choices and round trips to servers are forgotten, except those of
    /// this node.
    pub fn replace(&mut self, mesh: Mesh) {
        self.servers.forget_hops();
        self.mesh = mesh;
    }

    /// Handles the round trip, in milliseconds, of a flow from node `from` to a server.
    pub fn handle_finished(&mut self, now: Instant, from: usize, server: IpAddr, rtt_ms: f64) {
        self.servers.measured(now, from, Prefix::of(server), rtt_ms);
    }

    /// Route for a new flow to `server`.
    pub fn choose(&mut self, now: Instant, server: IpAddr) -> Route {
        let Placement { config, mesh, servers, rng, switches } = self;
        let (choice, known) = servers.get(Prefix::of(server));
        let before = choice.route;
        let route = choice.choose(now, config, (mesh, known), rng);
        *switches += u64::from(choice.route != before && mesh.is_up(before));
        for hop in route.hops() {
            mesh.note_flow(hop);
        }
        route
    }

    /// Number of changes of choices whose hops were up.
    pub fn switches(&self) -> u64 {
        self.switches
    }
}
