//! Counters of one outbound route, and whether its hop is down.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use viaduct_proto::time::Instant;

use super::outbound::OutboundSpec;

/// Upper bounds of the buckets of connect times, in microseconds; a last bucket counts all longer
/// times.
pub const CONNECT_BOUNDS: [u64; 12] = [
    100, 300, 1_000, 3_000, 10_000, 30_000, 60_000, 100_000, 200_000, 400_000, 1_000_000, 3_000_000,
];
/// Name of the entry that counts all routes, or all policies, above their maximum. No policy has
/// this name: names of policies have no parentheses.
pub(super) const OTHERS: &str = "(others)";
/// Failures in a row after which a hop counts as down.
const HOP_DOWN: u64 = 3;

/// Connections through one hop or tunnel, or directly to servers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hop {
    /// Outbound route; `None` for all routes without counters of their own.
    pub by: Option<OutboundSpec>,
    /// Established connections, by the time they took: see [`CONNECT_BOUNDS`].
    pub connected: [u64; CONNECT_BOUNDS.len() + 1],
    /// Sum of the times that these connections took, in microseconds.
    pub micros: u64,
    /// Connections that failed.
    pub failed: u64,
    /// Failures since the last success.
    #[serde(default)]
    pub in_a_row: u64,
    /// Time of the last success, and of the first failure after it.
    #[serde(skip)]
    times: [Option<Instant>; 2],
    /// Reason of the latest failure; `None` after a success.
    #[serde(default)]
    pub reason: Option<String>,
}

impl Hop {
    /// Returns zero counters for a route.
    pub(super) fn of(by: Option<OutboundSpec>) -> Hop {
        Hop { by, ..Hop::default() }
    }

    /// Adds the counters of another event loop. Only failures after the last success of both loops
    /// count for [`Hop::down`].
    pub(super) fn add(&mut self, other: &Hop) {
        self.connected.iter_mut().zip(other.connected).for_each(|(sum, part)| *sum += part);
        self.micros = self.micros.saturating_add(other.micros);
        self.failed += other.failed;
        let succeeded = self.times[0].max(other.times[0]);
        if self.times[1] <= succeeded {
            (self.in_a_row, self.reason, self.times[1]) = (0, None, None);
        }
        if other.times[1] > succeeded {
            self.in_a_row += other.in_a_row;
            self.reason = self.reason.take().or_else(|| other.reason.clone());
            self.times[1] = [self.times[1], other.times[1]].into_iter().flatten().min();
        }
        self.times[0] = succeeded;
    }

    /// Name of the outbound route.
    pub fn name(&self) -> String {
        self.by.as_ref().map_or_else(|| OTHERS.to_owned(), ToString::to_string)
    }

    /// Address of the hop, if the route goes through one.
    pub fn addr(&self) -> Option<SocketAddr> {
        self.by.as_ref().and_then(OutboundSpec::hop)
    }

    /// Returns whether the route's connections use Trickles.
    pub fn is_trickles(&self) -> bool {
        self.by.as_ref().is_some_and(|by| by.trickles().is_some())
    }

    /// Counts a connection that failed at `now`.
    pub fn failed(&mut self, now: Instant, why: &str) {
        self.failed += 1;
        self.in_a_row += 1;
        self.times[1].get_or_insert(now);
        self.reason = Some(why.to_owned());
    }

    /// Reason why a hop is down: its last connections have all failed. `None` for other routes:
    /// failing servers do not mean that the direct route is down, and a tunnel has its own state.
    pub fn down(&self) -> Option<String> {
        let reason = self.reason.as_ref()?;
        let is_down = self.addr().is_some() && self.in_a_row >= HOP_DOWN;
        is_down.then(|| format!("the last {} connections failed: {reason}", self.in_a_row))
    }

    /// Counts a connection that was established at `now`, and took `time`.
    pub fn took(&mut self, now: Instant, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let bucket = CONNECT_BOUNDS.partition_point(|&bound| bound < micros);
        self.connected[bucket] += 1;
        self.micros = self.micros.saturating_add(micros);
        (self.in_a_row, self.reason, self.times) = (0, None, [Some(now), None]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn hop() -> Hop {
        Hop::of(Some(OutboundSpec::Hop(([10, 0, 0, 1], 1).into())))
    }

    #[test]
    fn a_hop_is_down_after_failures_in_a_row_and_up_after_the_first_success() {
        let (mut hop, mut direct) = (hop(), Hop::of(Some(OutboundSpec::Direct)));
        for n in 0..5 {
            assert_eq!(hop.down().is_some(), n >= HOP_DOWN, "{n}");
            hop.failed(at(1 + n), "refused");
            direct.failed(at(1 + n), "refused");
        }
        assert_eq!(hop.down().unwrap(), "the last 5 connections failed: refused");
        assert_eq!(direct.down(), None);
        // Another loop's connection succeeded, before these failures or after them.
        for (seconds, is_down) in [(0, true), (9, false)] {
            let mut other = self::hop();
            other.took(at(seconds), Duration::from_micros(1));
            for (mut sum, part) in [(hop.clone(), &other), (other.clone(), &hop)] {
                sum.add(part);
                assert_eq!(sum.down().is_some(), is_down, "{seconds}");
                assert_eq!(sum.reason.is_some(), is_down, "{seconds}");
            }
        }
        hop.took(at(9), Duration::from_micros(1));
        assert_eq!(hop.down(), None);
    }

    #[test]
    fn failures_of_several_loops_add_up_if_they_follow_the_last_success() {
        let failing = |seconds: u64| {
            let mut hop = hop();
            hop.took(at(seconds), Duration::from_micros(1));
            (1..3).for_each(|n| hop.failed(at(seconds + n), "refused"));
            hop
        };
        let mut sum = failing(10);
        sum.add(&failing(10));
        assert_eq!(sum.in_a_row, 4);
        assert!(sum.down().is_some());
        sum.add(&failing(20));
        assert_eq!((sum.in_a_row, sum.down()), (2, None));
    }
}
