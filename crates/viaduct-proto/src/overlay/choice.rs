//! Choice of the route to a node: directly, or through one other node (RON's two policies). A
//! choice is kept for a minimum time unless it fails. After that, it is replaced by a route that is
//! clearly better, or by a direct route that is as good.

use serde::{Deserialize, Serialize};

use super::table::OverlayRoute;
use crate::time::{Duration, Instant};

/// Criterion by which routes are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// Shortest round-trip time.
    #[default]
    Latency,
    /// Least loss; the shortest round-trip time among routes with similar loss.
    Loss,
}

/// Quality of a route: the sum of its paths' round-trip times, and the loss over all of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Score {
    pub(super) rtt: Duration,
    pub(super) loss: f64,
}

/// Maximum round-trip time of a better route, as a share of the other route's.
const SHORTER: f64 = 0.9;
/// Minimum difference of the two round-trip times, as a second condition.
const SHORTER_BY: Duration = Duration::from_millis(2);
/// Minimum difference in loss that makes a route better.
const LESS: f64 = 0.03;
/// Minimum time for which a route is kept, in probe intervals, unless it fails.
const DWELL: u32 = 20;

impl Score {
    /// Score of this path followed by `other`.
    pub(super) fn then(self, other: Score) -> Score {
        Score { rtt: self.rtt + other.rtt, loss: 1.0 - (1.0 - self.loss) * (1.0 - other.loss) }
    }

    /// Returns whether this score is clearly better than `other`.
    fn beats(self, other: Score, policy: Policy) -> bool {
        let shorter = self.rtt < other.rtt.mul_f64(SHORTER) && self.rtt + SHORTER_BY < other.rtt;
        match policy {
            Policy::Latency => shorter,
            Policy::Loss if (self.loss - other.loss).abs() < LESS => shorter,
            Policy::Loss => self.loss < other.loss,
        }
    }

    /// Returns whether a direct route with this score is preferred to another route with the score
    /// `other`. The direct route need not be better, because it puts no load on other nodes.
    fn is_as_good(self, other: Score, policy: Policy) -> bool {
        self.rtt <= other.rtt && (policy == Policy::Latency || self.loss < other.loss + LESS)
    }

    /// Sort key of routes, the best first.
    fn cost(self, policy: Policy) -> (u32, Duration) {
        match policy {
            Policy::Latency => (0, self.rtt),
            Policy::Loss => ((self.loss / LESS) as u32, self.rtt),
        }
    }
}

/// Chosen route to one node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Choice {
    pub(super) route: OverlayRoute,
    since: Option<Instant>,
}

impl Default for Choice {
    fn default() -> Self {
        Choice { route: OverlayRoute::Direct, since: None }
    }
}

impl Choice {
    /// Chooses among `routes`, which are up, and sorts them, the best first. Returns whether the
    /// choice changed.
    pub(super) fn pick(
        &mut self,
        now: Instant,
        (policy, interval): (Policy, Duration),
        routes: &mut [(OverlayRoute, Score)],
    ) -> bool {
        routes.sort_unstable_by_key(|(route, score)| (score.cost(policy), *route));
        let Some(&(best, score)) = routes.first() else {
            let changed = self.route != OverlayRoute::Direct;
            *self = Choice::default();
            return changed;
        };
        let of = |wanted: OverlayRoute| {
            routes.iter().find(|(route, _)| *route == wanted).map(|(_, score)| *score)
        };
        let mut route = best;
        if let Some(current) = of(self.route) {
            let young = self.since.is_some_and(|since| now < since + interval * DWELL);
            let direct =
                of(OverlayRoute::Direct).filter(|direct| direct.is_as_good(current, policy));
            route = match direct {
                _ if young => self.route,
                _ if score.beats(current, policy) => best,
                Some(_) => OverlayRoute::Direct,
                None => self.route,
            };
        }
        if route == self.route {
            return false;
        }
        *self = Choice { route, since: Some(now) };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(ms: u64, loss: f64) -> Score {
        Score { rtt: Duration::from_millis(ms), loss }
    }

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn a_route_is_left_when_it_fails_or_another_is_clearly_better() {
        let mut choice = Choice::default();
        let by = |n| OverlayRoute::By(n);
        let mut pick = |second, policy, routes: &[(OverlayRoute, Score)]| {
            let interval = Duration::from_millis(500);
            choice.pick(at(second), (policy, interval), &mut routes.to_vec());
            choice.route
        };
        let latency = Policy::Latency;
        let (direct, other) = ((OverlayRoute::Direct, score(50, 0.0)), (by(1), score(46, 0.0)));
        assert_eq!(pick(0, latency, &[direct, other]), OverlayRoute::Direct, "a tenth is not much");
        assert_eq!(pick(1, latency, &[other]), by(1), "the other has failed");
        assert_eq!(
            pick(2, latency, &[(OverlayRoute::Direct, score(9, 0.0)), other]),
            by(1),
            "too soon"
        );
        assert_eq!(
            pick(20, latency, &[(OverlayRoute::Direct, score(9, 0.0)), other]),
            OverlayRoute::Direct
        );
        assert_eq!(pick(21, latency, &[]), OverlayRoute::Direct, "nothing is known to be better");
        let lossy = (OverlayRoute::Direct, score(9, 0.2));
        assert_eq!(pick(40, latency, &[lossy, other]), OverlayRoute::Direct);
        assert_eq!(pick(41, Policy::Loss, &[lossy, other]), by(1));
        assert_eq!(
            pick(60, Policy::Loss, &[(OverlayRoute::Direct, score(48, 0.02)), other]),
            by(1)
        );
        let alike = [(OverlayRoute::Direct, score(46, 0.02)), other];
        assert_eq!(
            pick(61, Policy::Loss, &alike),
            OverlayRoute::Direct,
            "equally good: no other node is used"
        );
    }

    #[test]
    fn scores_add_up() {
        let sum = score(10, 0.1).then(score(20, 0.5));
        assert_eq!(sum.rtt, Duration::from_millis(30));
        assert!((sum.loss - 0.55).abs() < 1e-9);
    }
}
