//! Choice of the route to one network.

use super::score::{Preference, Segment};
use super::servers::Known;
use super::{Config, Mesh, Route};
use crate::rng::Rng;
use crate::time::{Duration, Instant};

/// Maximum cost of a better route, as a share of the chosen route's cost.
const BETTER: f64 = 0.9;
/// Minimum difference of the two costs, in milliseconds, as a second condition.
const BETTER_BY: f64 = 2.0;
/// Maximum share by which the costs of alike routes exceed the lowest cost.
const ALIKE: f64 = 0.03;
/// A route is overloaded if its load exceeds the mean load of the alike routes by this factor.
const OVERLOADED: f64 = 1.15;
/// Minimum time between two comparisons of all routes.
const COMPARE_EVERY: Duration = Duration::from_secs(1);

/// Route to one network, and when it was chosen. A network begins with the direct route.
#[derive(Debug, Default)]
pub(super) struct Choice {
    pub(super) route: Route,
    /// Time of the last change of the route.
    pub(super) chosen: Option<Instant>,
    compared: Option<Instant>,
    explored: Option<Instant>,
}

/// Knowledge of the routes to one network.
struct Routes<'a> {
    now: Instant,
    preference: Preference,
    mesh: &'a Mesh,
    known: &'a Known,
}

impl Choice {
    /// Returns whether a flow has taken this choice.
    pub(super) fn is_used(&self) -> bool {
        self.compared.is_some()
    }

    /// Chooses the route of a new flow.
    pub(super) fn choose(
        &mut self,
        now: Instant,
        (config, preference): (&Config, Preference),
        (mesh, known): (&Mesh, &Known),
        rng: &mut Rng,
    ) -> Route {
        let routes = Routes { now, preference, mesh, known };
        let is_within = |at: Option<Instant>, time| at.is_some_and(|at| now.since(at) < time);
        let rests = is_within(self.chosen, config.hold) || is_within(self.compared, COMPARE_EVERY);
        if !rests || !mesh.is_up(self.route) {
            self.compared = Some(now);
            // A network begins with the direct route by default, not by a choice: even a slightly
            // better route replaces it.
            let better = if self.chosen.is_none() { 1.0 / (1.0 + ALIKE) } else { BETTER };
            if let Some(next) = routes.next((self.route, better), rng) {
                (self.route, self.chosen) = (next, Some(now));
            }
        }
        let explores = config.explore_every.is_some_and(|every| !is_within(self.explored, every));
        let explored = if explores { routes.worth_exploring(self.route, rng) } else { None };
        match explored {
            Some(route) => {
                self.explored = Some(now);
                route
            }
            None => self.route,
        }
    }
}

/// Costs of a route and of the direct one; `None` if unknown.
pub(super) fn costs(
    now: Instant,
    (preference, route): (Preference, Route),
    (mesh, known): (&Mesh, &Known),
) -> [Option<f64>; 2] {
    let routes = Routes { now, preference, mesh, known };
    [route, Route::Direct].map(|route| routes.cost(route))
}

impl Routes<'_> {
    /// Route to take instead of `current`; `None` to keep `current`. A better route must cost less
    /// than `current`'s cost times `better`.
    fn next(&self, (current, better): (Route, f64), rng: &mut Rng) -> Option<Route> {
        let alike = self.alike();
        let Some(best) = alike.iter().map(|(cost, _)| *cost).reduce(f64::min) else {
            // Nothing is known, and the direct route needs no hop.
            return (!self.mesh.is_up(current)).then_some(Route::Direct);
        };
        let drawn = |rng: &mut Rng| match alike.iter().any(|(_, route)| *route == Route::Direct) {
            // The direct route puts no load on a hop.
            true => Route::Direct,
            false => self.less_loaded_of_two(&alike, rng),
        };
        let direct = self.cost(Route::Direct);
        if current == Route::Direct && direct.is_none() {
            // The first flow goes directly, to measure that route: a hop may be worse.
            return None;
        }
        let cost = self.cost(current).unwrap_or(f64::INFINITY);
        if best < better * cost && best + BETTER_BY < cost {
            return Some(drawn(rng));
        }
        if current != Route::Direct && direct.is_some_and(|direct| direct <= cost) {
            return Some(Route::Direct);
        }
        let load = |route| self.mesh.load(route).0;
        let mean = alike.iter().map(|(_, route)| load(*route)).sum::<f64>() / alike.len() as f64;
        let own = load(current);
        // The probability is such that, if many nodes see the same load, only the load above the
        // mean moves away.
        if own > OVERLOADED * mean && rng.chance((own - mean) / own) {
            let other = self.less_loaded_of_two(&alike, rng);
            return (load(other) < own).then_some(other);
        }
        None
    }

    /// Routes of nearly the lowest cost, with their costs.
    fn alike(&self) -> Vec<(f64, Route)> {
        let (mut lowest, mut alike) = (f64::INFINITY, Vec::new());
        let hops = || self.mesh.hops();
        let last =
            hops().map(|hop| Some(Segment { rtt_ms: self.known.rtt_ms(self.now, hop)?, ..DRY }));
        let last: Vec<Option<Segment>> = std::iter::once(None).chain(last).collect();
        let mut add = |route, cost: Option<f64>| {
            if let Some(cost) = cost.filter(|cost| *cost <= (1.0 + ALIKE) * lowest) {
                lowest = lowest.min(cost);
                alike.push((cost, route));
            }
        };
        add(Route::Direct, self.cost(Route::Direct));
        for second in hops() {
            let Some(server) = last[second] else { continue };
            let cost = |route| {
                let before = self.mesh.segments(route)?.into_iter().flatten();
                Some(self.preference.cost(before.chain([server])))
            };
            add(Route::One(second), cost(Route::One(second)));
            for first in hops().filter(|first| *first != second) {
                add(Route::Two(first, second), cost(Route::Two(first, second)));
            }
        }
        alike.retain(|(cost, _)| *cost <= (1.0 + ALIKE) * lowest);
        alike
    }

    /// Cost of a route; `None` if it is down, or the round trip of its last segment is unknown.
    fn cost(&self, route: Route) -> Option<f64> {
        let rtt_ms = self.known.rtt_ms(self.now, route.last())?;
        self.cost_with(route, rtt_ms)
    }

    fn cost_with(&self, route: Route, rtt_ms: f64) -> Option<f64> {
        let before = self.mesh.segments(route)?.into_iter().flatten();
        Some(self.preference.cost(before.chain([Segment { rtt_ms, ..DRY }])))
    }

    /// Draws two of `routes`, and returns the less loaded one.
    fn less_loaded_of_two(&self, routes: &[(f64, Route)], rng: &mut Rng) -> Route {
        let mut draw = || routes[rng.below(routes.len() as u64) as usize].1;
        let (one, other) = (draw(), draw());
        let [(load, sent), (other_load, other_sent)] = [one, other].map(|of| self.mesh.load(of));
        if (other_load, other_sent) < (load, sent) { other } else { one }
    }

    /// Draws a hop from which the round trip to the network is unknown. Considers only hops whose
    /// route would be clearly better than `current` if they were on the direct path.
    fn worth_exploring(&self, current: Route, rng: &mut Rng) -> Option<Route> {
        let (cost, own) = (self.cost(current)?, self.known.rtt_ms(self.now, 0)?);
        let may_be_better = |hop: &usize| {
            if self.known.rtt_ms(self.now, *hop).is_some() {
                return false;
            }
            let to_hop = self.mesh.path(0, *hop).map_or(f64::INFINITY, |path| path.rtt_ms);
            let least = self.cost_with(Route::One(*hop), (own - to_hop).max(0.0));
            least.is_some_and(|least| least < BETTER * cost)
        };
        let hops: Vec<usize> = self.mesh.hops().filter(may_be_better).collect();
        hops.get(rng.below(hops.len() as u64) as usize).map(|hop| Route::One(*hop))
    }
}

/// Segment to a server, whose losses are unknown.
const DRY: Segment = Segment { rtt_ms: 0.0, loss: 0.0 };
