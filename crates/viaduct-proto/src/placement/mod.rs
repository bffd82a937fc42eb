//! Placement of hops: the choice of the proxies, none, one or two, through which a flow reaches a
//! server as fast as possible (Miniproxy, sections 3, 4 and 7).
//!
//! ```text
//!   Mesh: paths between hops, loads ──────────┐
//!                                             ├─▶ cost of each route ─▶ choice, kept for a minute
//!   Servers: round trips of finished flows ───┘
//!            by hop and prefix
//! ```
//!
//! **Cost.** For the time to the first byte, the paper's model: the sum of all segments' round
//! trips, plus that of the longest segment once more ([`score`]). For bulk transfers, the segment
//! that limits the throughput. Costs are computed from measurements, so routes that are shorter
//! than the direct path are found.
//!
//! **Servers.** The round trip from a hop to a server is that of the hop's own flows to the
//! server's network (/24, or /48 for IPv6); there are no probes. The hops are asked for the
//! networks in use ([`report`]). If a round trip is unknown, a flow occasionally explores a hop
//! that may be better ([`servers`]).
//!
//! **Stability.** A choice is kept for at least [`Config::hold`], unless one of its hops fails.
//! After that, it is kept until another route is clearly better. Of the routes with nearly the
//! lowest cost, two are drawn, and the less loaded one is taken, so that many sites with the same
//! measurements do not choose the same hop.
//!
//! [`hops`] is the choice among the nodes of an overlay, by their addresses, for `viaduct proxy`.

mod choice;
pub mod hops;
mod mesh;
pub mod report;
pub mod score;
mod servers;
pub mod status;
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
    /// Time for which a choice is kept while its hops are up.
    pub hold: Duration,
    /// Maximum number of networks of servers that are remembered.
    pub max_prefixes: usize,
    /// Minimum time between two explorations of a network; `None`: no explorations.
    pub explore_every: Option<Duration>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
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

/// Choice for one network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chosen {
    /// The network.
    pub prefix: Prefix,
    /// Criterion of the choice.
    pub preference: Preference,
    /// Route of its flows.
    pub route: Route,
    /// Cost of that route; `None` if unknown.
    pub cost: Option<f64>,
    /// Cost of the direct route; `None` if unknown.
    pub direct: Option<f64>,
    /// Time since the route was chosen; `None` if it has never changed.
    pub since: Option<Duration>,
}

/// State of one network.
#[derive(Debug, Default)]
struct Network {
    /// Choices, by preference.
    choices: [Choice; PREFERENCES.len()],
    /// Time of the last flow.
    used: Option<Instant>,
    /// Time of the last query to the hops.
    asked: Option<Instant>,
}

/// Choices of one node for all its flows.
#[derive(Debug)]
pub struct Placement {
    config: Config,
    mesh: Mesh,
    servers: Servers<Network>,
    rng: Rng,
    /// Number of times that a choice was changed although its hops were up.
    switches: u64,
}

/// All preferences, in the order of their numbers.
const PREFERENCES: [Preference; 2] = [Preference::FirstByte, Preference::Bulk];
/// Time after which hops are asked again for a network that is in use.
const ASK_AGAIN: Duration = Duration::from_secs(5);

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

    /// Replaces the hops. Forgets all choices, and the round trips to servers except those from
    /// this node.
    pub fn replace(&mut self, mesh: Mesh) {
        self.servers.forget_hops();
        self.mesh = mesh;
    }

    /// Measurements of the hops.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// Handles the round trip, in milliseconds, of a flow from node `from` to a server.
    pub fn handle_finished(&mut self, now: Instant, from: usize, server: IpAddr, rtt_ms: f64) {
        self.servers.measured(now, from, Prefix::of(server), rtt_ms);
    }

    /// Handles a hop's answer to a query for `prefixes`: its round trips in their order.
    pub fn handle_report(
        &mut self,
        now: Instant,
        hop: usize,
        prefixes: &[Prefix],
        rtts_ms: &[Option<f64>],
    ) {
        for (prefix, rtt_ms) in prefixes.iter().zip(rtts_ms) {
            // The network may have been forgotten meanwhile.
            if let Some(rtt_ms) = rtt_ms.filter(|_| self.servers.known(*prefix).is_some()) {
                self.servers.measured(now, hop, *prefix, rtt_ms);
            }
        }
    }

    /// Networks for which the hops are to be asked now, at most [`report::MAX_NETWORKS`]: those
    /// that were used since the last query about them, which was at least 5 s ago.
    pub fn poll_query(&mut self, now: Instant) -> Vec<Prefix> {
        let is_due = |network: &Network| {
            network.used.is_some_and(|used| network.asked.is_none_or(|asked| used > asked))
                && network.asked.is_none_or(|asked| now.since(asked) >= ASK_AGAIN)
        };
        let due = self.servers.states().filter(|(_, network)| is_due(network));
        let mut due: Vec<_> = due.collect();
        due.sort_by_key(|(_, network)| network.asked);
        let asked = due.into_iter().take(report::MAX_NETWORKS);
        asked
            .map(|(prefix, network)| {
                network.asked = Some(now);
                prefix
            })
            .collect()
    }

    /// Round trip in milliseconds from this node to a network; `None` if unknown.
    pub fn rtt_ms(&self, now: Instant, prefix: Prefix) -> Option<f64> {
        self.servers.known(prefix)?.rtt_ms(now, 0)
    }

    /// Route for a new flow to `server`.
    pub fn choose(&mut self, now: Instant, server: IpAddr, preference: Preference) -> Route {
        let Placement { config, mesh, servers, rng, switches } = self;
        let (network, known) = servers.get(Prefix::of(server));
        network.used = Some(now);
        let choice = &mut network.choices[preference as usize];
        let before = choice.route;
        let route = choice.choose(now, (config, preference), (mesh, known), rng);
        *switches += u64::from(choice.route != before && mesh.is_up(before));
        for hop in route.hops() {
            mesh.note_flow(hop);
        }
        route
    }

    /// Number of times that a choice was changed although its hops were up.
    pub fn switches(&self) -> u64 {
        self.switches
    }

    /// Number of networks that are remembered.
    pub fn networks(&self) -> usize {
        self.servers.len()
    }

    /// Choices for at most `max` networks, the most recently used first.
    pub fn chosen(&self, now: Instant, max: usize) -> Vec<Chosen> {
        let used =
            |(prefix, network, known)| Some((Network::used(network)?, prefix, network, known));
        let mut all: Vec<_> = self.servers.iter().filter_map(used).collect();
        all.sort_by_key(|(used, ..)| std::cmp::Reverse(*used));
        all.truncate(max);
        let of = |(_, prefix, network, known): (_, Prefix, &Network, &_)| {
            PREFERENCES.map(|preference| {
                let choice = &network.choices[preference as usize];
                let route = choice.route;
                let [cost, direct] = choice::costs(now, (preference, route), (&self.mesh, known));
                let since = choice.chosen.map(|at| now.since(at));
                choice.is_used().then_some(Chosen {
                    prefix,
                    preference,
                    route,
                    cost,
                    direct,
                    since,
                })
            })
        };
        all.into_iter().flat_map(of).flatten().collect()
    }
}

impl Network {
    fn used(&self) -> Option<Instant> {
        self.used
    }
}
