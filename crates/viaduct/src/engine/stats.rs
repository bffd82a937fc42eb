//! Counters of a proxy, copied out by value for status and metrics.

use serde::{Deserialize, Serialize};
use viaduct_proto::flow::Failure;
use viaduct_proto::split::early::EarlyStats;

use super::hop_stats::{Hop, OTHERS};
use super::outbound::OutboundSpec;
use crate::tunnel::stats::TunnelCounters;

/// Maximum number of outbound routes with counters of their own; all further ones share counters.
const MAX_HOPS: usize = 64;
/// Maximum number of policies with counters of their own; all further ones share counters.
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

impl ProxyStats {
    /// Report of a tunnel that is down. A hop that is down is not reported: a load balancer that
    /// stops sending flows to a proxy in trouble would keep the hop down, because only a new flow
    /// can show that the hop works again.
    pub fn trouble(&self) -> Option<String> {
        self.tunnels.iter().find_map(TunnelCounters::trouble)
    }

    /// Counters of connections by this outbound.
    pub fn hop(&mut self, by: &OutboundSpec) -> &mut Hop {
        self.hop_entry(Some(by))
    }

    fn hop_entry(&mut self, by: Option<&OutboundSpec>) -> &mut Hop {
        let find = |by| self.hops.iter().position(|hop| hop.by.as_ref() == by);
        let (by, known) = match find(by) {
            None if self.hops.len() >= MAX_HOPS => (None, find(None)),
            known => (by, known),
        };
        let n = known.unwrap_or(self.hops.len());
        if n == self.hops.len() {
            self.hops.push(Hop::of(by.cloned()));
        }
        &mut self.hops[n]
    }

    /// Counters of the flows that matched the policy `name`.
    pub fn policy(&mut self, name: &str) -> &mut PolicyStats {
        let find = |name| self.policies.iter().position(|of| of.policy == name);
        let (name, known) = match find(name) {
            None if self.policies.len() >= MAX_POLICIES => (OTHERS, find(OTHERS)),
            known => (name, known),
        };
        let n = known.unwrap_or(self.policies.len());
        if n == self.policies.len() {
            let policy = name.to_owned();
            self.policies.push(PolicyStats { policy, ..PolicyStats::default() });
        }
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
            self.hop_entry(hop.by.as_ref()).add(hop);
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use viaduct_proto::time::Instant;
    use viaduct_proto::tunnel::stats::TunnelStats;

    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn counters_of_loops_add_up_to_those_of_the_proxy() {
        let hop = |port| OutboundSpec::Hop(([10, 0, 0, 1], port).into());
        let part = |port| {
            let mut stats = ProxyStats { open: 2, bytes: [3, 4], ..ProxyStats::default() };
            stats.refused.denied = 5;
            stats.early.matched = 6;
            stats.hop(&hop(port)).took(at(0), Duration::from_micros(1));
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
    fn connect_times_fall_into_their_buckets_and_hops_are_bounded() {
        let mut stats = ProxyStats::default();
        for micros in [1, 100, 101, 5_000_000] {
            stats.hop(&OutboundSpec::Direct).took(at(0), Duration::from_micros(micros));
        }
        let hop = stats.hop(&OutboundSpec::Direct);
        assert_eq!((hop.connected[0], hop.connected[1], hop.connected[12]), (2, 1, 1));
        assert_eq!(hop.micros, 5_000_202);
        for port in 1..1_000 {
            stats.hop(&OutboundSpec::Hop(([10, 0, 0, 1], port).into())).failed += 1;
        }
        assert_eq!(stats.hops.len(), MAX_HOPS + 1);
        let mut sum = ProxyStats::default();
        for _ in 0..2 {
            sum.add(stats.clone());
        }
        assert_eq!(sum.hops.len(), MAX_HOPS + 1);
        for (name, failed) in [("10.0.0.1:63", 2), ("(others)", 2 * (999 - 63))] {
            let hop = sum.hops.iter().find(|hop| hop.name() == name).unwrap();
            assert_eq!((hop.failed, hop.down()), (failed, None), "{name}");
        }
    }

    #[test]
    fn policies_are_bounded_and_further_ones_share_counters() {
        let mut stats = ProxyStats::default();
        (0..1_000).for_each(|n| stats.policy(&format!("p{n}")).denied += 1);
        assert_eq!(stats.policies.len(), MAX_POLICIES + 1);
        assert_eq!(stats.policy("p255").denied, 1);
        assert_eq!(stats.policy("(others)").denied, 744);
    }
}
