//! Counters of a proxy, copied out by value for status and metrics.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use viaduct_proto::flow::Failure;
use viaduct_proto::split::early::EarlyStats;

use super::outbound::OutboundSpec;
use crate::tunnel::stats::TunnelCounters;

/// Upper bounds of the buckets of connect times, in microseconds; a last bucket counts all longer
/// times.
pub const CONNECT_BOUNDS: [u64; 12] = [
    100, 300, 1_000, 3_000, 10_000, 30_000, 60_000, 100_000, 200_000, 400_000, 1_000_000, 3_000_000,
];
/// Maximum number of hops with counters of their own; all further hops share the last.
const MAX_HOPS: usize = 64;

/// Maximum number of policies with counters of their own; all further policies share the last.
const MAX_POLICIES: usize = 256;

/// All counters of a proxy at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyStats {
    /// Open flows, including those whose client or server has not answered yet.
    pub open: u64,
    /// Early connections that wait for their client.
    pub waiting: u64,
    /// Clients' connections that were accepted.
    pub accepted: u64,
    /// Flows that had both ends connected.
    pub opened: u64,
    /// Flows that ended in order.
    pub finished: u64,
    /// Flows that ended by a reset, from an end or from this proxy.
    pub reset: u64,
    /// Flows that were ended because nothing moved for too long.
    pub idle: u64,
    /// Clients that were refused, and why.
    pub refused: Refusals,
    /// Bytes from clients to servers, and back.
    pub bytes: [u64; 2],
    /// Counters of early connections.
    pub early: EarlyStats,
    /// Outbound connections, by outbound route.
    pub hops: Vec<Hop>,
    /// Flows by policy. Empty if there are no policies.
    #[serde(default)]
    pub policies: Vec<PolicyStats>,
    /// Tunnels of the proxy.
    #[serde(default)]
    pub tunnels: Vec<TunnelCounters>,
    /// Unauthenticated links dropped to make room for others; `None` if there are no tunnels.
    #[serde(default)]
    pub strangers_dropped: Option<u64>,
}

/// Clients that were refused, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusals {
    /// Denied by a policy, `allow-from` or `allow-to`; wrong password; no agreement on handlers; or
    /// a tunnel whose peer is not allowed to open streams for the client.
    pub denied: u64,
    /// Flow limit, or limit of descriptors, reached.
    pub full: u64,
    /// Client that did not name a destination in one of the accepted protocols.
    pub unclear: u64,
    /// The server, or the next hop, refused.
    pub refused: u64,
    /// Server or next hop that did not answer in time, or inbound connection whose peer did not
    /// complete the handlers' handshake in time.
    pub timed_out: u64,
    /// Server or next hop that could not be reached, or name that could not be resolved.
    pub unreachable: u64,
    /// Programs, flows and calls of connect(2) that a master refused because their user had reached
    /// a limit.
    #[serde(default)]
    pub over_limit: u64,
}

/// Connections through one hop or tunnel, or directly to servers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hop {
    /// Outbound route.
    pub by: OutboundSpec,
    /// Established connections, by the time they took: see [`CONNECT_BOUNDS`].
    pub connected: [u64; CONNECT_BOUNDS.len() + 1],
    /// Sum of the times that these connections took, in microseconds.
    pub micros: u64,
    /// Connections that failed.
    pub failed: u64,
    /// Failures since the last success.
    #[serde(default)]
    pub in_a_row: u64,
    /// Reason of the latest failure; `None` after a success.
    #[serde(default)]
    pub reason: Option<String>,
}

/// Clients' flows that matched one policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyStats {
    /// Name of the policy.
    pub policy: String,
    /// Open flows.
    pub open: u64,
    /// Flows that had both ends connected.
    pub opened: u64,
    /// Flows that the policy refused.
    pub denied: u64,
    /// Bytes from clients to servers, and back.
    pub bytes: [u64; 2],
}

/// Failures in a row after which a hop counts as down.
const HOP_DOWN: u64 = 3;

impl ProxyStats {
    /// Report of a tunnel that is down. A hop that is down is not reported: only flows try the hop
    /// again, and a failing health check could keep those flows away forever.
    pub fn trouble(&self) -> Option<String> {
        self.tunnels.iter().find_map(TunnelCounters::trouble)
    }

    /// Counters of connections by this outbound.
    pub fn hop(&mut self, by: &OutboundSpec) -> &mut Hop {
        let known = self.hops.iter().position(|hop| hop.by == *by);
        let n = known.unwrap_or_else(|| {
            if self.hops.len() < MAX_HOPS {
                self.hops.push(Hop { by: by.clone(), ..Hop::default() });
            }
            self.hops.len() - 1
        });
        &mut self.hops[n]
    }

    /// Counters of the flows that matched the policy `name`.
    pub fn policy(&mut self, name: &str) -> &mut PolicyStats {
        let known = self.policies.iter().position(|of| of.policy == name);
        let n = known.unwrap_or_else(|| {
            if self.policies.len() < MAX_POLICIES {
                let policy = name.to_owned();
                self.policies.push(PolicyStats { policy, ..PolicyStats::default() });
            }
            self.policies.len() - 1
        });
        &mut self.policies[n]
    }

    /// Returns the counters of an event loop that has ended: the totals stay, nothing is open.
    pub fn ended(mut self) -> ProxyStats {
        (self.open, self.waiting) = (0, 0);
        self.policies.iter_mut().for_each(|policy| policy.open = 0);
        self.tunnels.iter_mut().for_each(TunnelCounters::end);
        self
    }

    /// Adds the counters of another loop of the same proxy.
    pub fn add(&mut self, other: ProxyStats) {
        let ProxyStats { open, waiting, accepted, opened, finished, reset, idle, .. } = other;
        let sums = [
            (&mut self.open, open),
            (&mut self.waiting, waiting),
            (&mut self.accepted, accepted),
            (&mut self.opened, opened),
            (&mut self.finished, finished),
            (&mut self.reset, reset),
            (&mut self.idle, idle),
        ];
        sums.into_iter().for_each(|(sum, part)| *sum += part);
        self.bytes = [0, 1].map(|n| self.bytes[n] + other.bytes[n]);
        self.refused.add(other.refused);
        self.early.add(other.early);
        for hop in &other.hops {
            self.hop(&hop.by).add(hop);
        }
        for policy in &other.policies {
            self.policy(&policy.policy).add(policy);
        }
        self.tunnels.extend(other.tunnels);
        let dropped = [self.strangers_dropped, other.strangers_dropped];
        self.strangers_dropped = dropped.into_iter().flatten().reduce(|sum, part| sum + part);
    }
}

impl Refusals {
    fn add(&mut self, other: Refusals) {
        let Refusals { denied, full, unclear, refused, timed_out, unreachable, over_limit } = other;
        self.denied += denied;
        self.full += full;
        self.unclear += unclear;
        self.refused += refused;
        self.timed_out += timed_out;
        self.unreachable += unreachable;
        self.over_limit += over_limit;
    }

    /// Counts a refused client.
    pub fn count(&mut self, why: Failure) {
        match why {
            Failure::Denied => self.denied += 1,
            Failure::Refused | Failure::Reset => self.refused += 1,
            Failure::TimedOut => self.timed_out += 1,
            Failure::Full => self.full += 1,
            _ => self.unreachable += 1,
        }
    }

    /// All counts, each with its name.
    pub fn by_reason(&self) -> [(&'static str, u64); 7] {
        let &Refusals { denied, full, unclear, refused, timed_out, unreachable, over_limit } = self;
        [
            ("denied", denied),
            ("full", full),
            ("unclear", unclear),
            ("refused", refused),
            ("timed_out", timed_out),
            ("unreachable", unreachable),
            ("over_limit", over_limit),
        ]
    }
}

impl PolicyStats {
    fn add(&mut self, other: &PolicyStats) {
        self.open += other.open;
        self.opened += other.opened;
        self.denied += other.denied;
        self.bytes = [0, 1].map(|n| self.bytes[n] + other.bytes[n]);
    }

    /// Counts a client's flow, which has moved `bytes`; `has_opened` if both ends were connected.
    pub fn count(&mut self, has_opened: bool, bytes: [u64; 2]) {
        self.opened += u64::from(has_opened);
        self.bytes = [0, 1].map(|n| self.bytes[n] + bytes[n]);
    }
}

impl Hop {
    fn add(&mut self, other: &Hop) {
        self.connected.iter_mut().zip(other.connected).for_each(|(sum, part)| *sum += part);
        self.micros = self.micros.saturating_add(other.micros);
        self.failed += other.failed;
        // Loops fail independently: a hop that works for one of them is up.
        let both = self.attempts() > 0 && other.attempts() > 0;
        self.reason = match both {
            true => self.reason.take().filter(|_| other.reason.is_some()),
            false => self.reason.take().or_else(|| other.reason.clone()),
        };
        self.in_a_row = match both {
            true => self.in_a_row.min(other.in_a_row),
            false => self.in_a_row.max(other.in_a_row),
        };
    }

    fn attempts(&self) -> u64 {
        self.connected.iter().sum::<u64>() + self.failed
    }

    /// Counts a failed connection.
    pub fn failed(&mut self, why: &str) {
        self.failed += 1;
        self.in_a_row += 1;
        self.reason = Some(why.to_owned());
    }

    /// Reason why a hop is down: its last connections have all failed. `None` for other routes:
    /// failing servers do not mean that the direct route is down, and a tunnel has its own state.
    pub fn down(&self) -> Option<String> {
        let reason = self.reason.as_ref()?;
        let is_down = self.by.hop().is_some() && self.in_a_row >= HOP_DOWN;
        is_down.then(|| format!("the last {} connections failed: {reason}", self.in_a_row))
    }

    /// Counts a connection that took `time` to be established.
    pub fn took(&mut self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let bucket = CONNECT_BOUNDS.partition_point(|&bound| bound < micros);
        self.connected[bucket] += 1;
        self.micros = self.micros.saturating_add(micros);
        (self.in_a_row, self.reason) = (0, None);
    }
}

#[cfg(test)]
mod tests {
    use viaduct_proto::tunnel::stats::TunnelStats;

    use super::*;

    #[test]
    fn counters_of_loops_add_up_to_those_of_the_proxy() {
        let hop = |port| OutboundSpec::Hop(([10, 0, 0, 1], port).into());
        let part = |port| {
            let mut stats = ProxyStats { open: 2, bytes: [3, 4], ..ProxyStats::default() };
            stats.refused.denied = 5;
            stats.early.matched = 6;
            stats.hop(&hop(port)).took(Duration::from_micros(1));
            stats.hop(&hop(1)).failed += 7;
            stats
        };
        let mut sum = part(1);
        sum.add(part(2));
        assert_eq!((sum.open, sum.bytes, sum.refused.denied), (4, [6, 8], 10));
        assert_eq!((sum.early.matched, sum.hops.len()), (12, 2));
        assert_eq!((sum.hop(&hop(1)).failed, sum.hop(&hop(1)).connected[0]), (14, 1));
        assert_eq!(sum.hop(&hop(2)).connected[0], 1);
    }

    #[test]
    fn a_loop_that_has_ended_keeps_its_totals_and_has_nothing_open() {
        let mut stats = ProxyStats { open: 2, waiting: 1, opened: 7, ..ProxyStats::default() };
        stats.policy("far").open = 2;
        stats.policy("far").count(true, [3, 4]);
        let all = TunnelStats { links: 1, open: 2, tokens: 9, opened: 5, ..TunnelStats::default() };
        let down = Some("silent".to_owned());
        stats.tunnels.push(TunnelCounters { all, down, ..TunnelCounters::default() });
        let mut ended = stats.ended();
        assert_eq!((ended.open, ended.waiting, ended.opened), (0, 0, 7));
        let far = ended.policy("far");
        assert_eq!((far.open, far.opened, far.bytes), (0, 1, [3, 4]));
        assert_eq!(ended.tunnels[0].all, TunnelStats { opened: 5, ..TunnelStats::default() });
        assert_eq!(ended.trouble(), None);
    }

    #[test]
    fn a_hop_is_down_after_failures_in_a_row_and_up_after_the_first_success() {
        let by = OutboundSpec::Hop(([10, 0, 0, 1], 1).into());
        let mut stats = ProxyStats::default();
        for n in 0..5 {
            assert_eq!(stats.hop(&by).down().is_some(), n >= HOP_DOWN, "{n}");
            stats.hop(&by).failed("refused");
            stats.hop(&OutboundSpec::Direct).failed("refused");
        }
        let down = stats.hop(&by).down().unwrap();
        assert_eq!(down, "the last 5 connections failed: refused");
        assert_eq!(stats.hop(&OutboundSpec::Direct).down(), None);
        // Another loop's connection succeeded.
        let mut other = ProxyStats::default();
        other.hop(&by).took(Duration::from_micros(1));
        for (mut sum, part) in [(stats.clone(), other.clone()), (other, stats.clone())] {
            sum.add(part);
            assert_eq!((sum.hop(&by).down(), &sum.hop(&by).reason), (None, &None));
        }
        stats.hop(&by).took(Duration::from_micros(1));
        assert_eq!(stats.hop(&by).down(), None);
    }

    #[test]
    fn connect_times_fall_into_their_buckets_and_hops_are_bounded() {
        let mut stats = ProxyStats::default();
        for micros in [1, 100, 101, 5_000_000] {
            stats.hop(&OutboundSpec::Direct).took(Duration::from_micros(micros));
        }
        let hop = stats.hop(&OutboundSpec::Direct);
        assert_eq!((hop.connected[0], hop.connected[1], hop.connected[12]), (2, 1, 1));
        assert_eq!(hop.micros, 5_000_202);
        for port in 1..1_000 {
            stats.hop(&OutboundSpec::Hop(([10, 0, 0, 1], port).into())).failed += 1;
        }
        assert_eq!(stats.hops.len(), MAX_HOPS);
        assert_eq!(stats.hops.iter().map(|hop| hop.failed).sum::<u64>(), 999);
    }
}
