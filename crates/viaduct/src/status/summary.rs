//! Summary of a service: the values of its row in a table of services.

use std::ops::{Index, IndexMut};

use viaduct_proto::overlay::Table;
use viaduct_proto::repair::stats::PeerStats;

use super::client::ServiceStatus;
use crate::engine::hop_stats::Hop;
use crate::engine::snapshot::ProxyStatus;
use crate::gateway::status::Status;
use crate::hop_agent::status::AgentStatus;
use crate::serve::status::ServeStatus;
use crate::spray::status::SprayStatus;

/// Summary of a service.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// `gateway`, `proxy`, `master`, `server`, `spray`, `agent` or `overlay`.
    pub kind: &'static str,
    /// Problems of the service, the worst first. Empty if it is up.
    pub troubles: Vec<String>,
    /// Time since its start in seconds, if it is known.
    pub uptime: Option<f64>,
    /// Peers that are up, and all peers; `None` for a kind of service without peers.
    pub peers: Option<(usize, usize)>,
    /// Open flows or connections; `None` for a kind of service without flows.
    pub flows: Option<u64>,
    /// Counters since the start.
    pub counts: Counts,
}

impl Summary {
    /// Worst problem, and the number of the others. `None` if the service is up.
    pub fn trouble(&self) -> Option<String> {
        let (first, others) = self.troubles.split_first()?;
        Some(match others.len() {
            0 => first.clone(),
            more => format!("{first} (and {more} more)"),
        })
    }
}

/// Counter of a service or a peer.
#[derive(Clone, Copy, Debug)]
pub enum Count {
    /// Bytes of data sent: to a peer's site, or from clients to servers.
    Sent,
    /// Bytes of data received: from a peer's site, or from servers to clients.
    Received,
    /// Packets to a peer's site whose fate is known.
    CoveredOut,
    /// Packets from a peer's site whose fate is known.
    CoveredIn,
    /// Lost packets among `CoveredOut`.
    LostOut,
    /// Lost packets among `CoveredIn`.
    LostIn,
    /// Recovered packets among `LostOut` and `LostIn`.
    Recovered,
    /// Bytes of repairs sent.
    RepairBytes,
    /// Flows, connections or requests begun.
    Begun,
}

const COUNTS: usize = Count::Begun as usize + 1;

/// Value of each [`Count`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts([u64; COUNTS]);

impl Index<Count> for Counts {
    type Output = u64;

    fn index(&self, count: Count) -> &u64 {
        &self.0[count as usize]
    }
}

impl IndexMut<Count> for Counts {
    fn index_mut(&mut self, count: Count) -> &mut u64 {
        &mut self.0[count as usize]
    }
}

impl FromIterator<(Count, u64)> for Counts {
    fn from_iter<I: IntoIterator<Item = (Count, u64)>>(values: I) -> Counts {
        let mut counts = Counts::default();
        values.into_iter().for_each(|(count, value)| counts[count] += value);
        counts
    }
}

impl Counts {
    /// Counters of one peer of a gateway.
    pub fn of_peer(stats: &PeerStats) -> Counts {
        let (out, into) = (&stats.reported, &stats.receiver.link);
        Counts::from_iter([
            (Count::Sent, stats.sender.bytes),
            (Count::Received, stats.receiver.bytes),
            (Count::CoveredOut, out.covered),
            (Count::CoveredIn, into.covered),
            (Count::LostOut, out.lost),
            (Count::LostIn, into.lost),
            (Count::Recovered, out.recovered + into.recovered),
            (Count::RepairBytes, stats.sender.repair_bytes),
        ])
    }

    /// Increase since `before`. `None` if a counter is lower than before: the service was
    /// restarted, or has fewer peers.
    pub fn since(mut self, before: Counts) -> Option<Counts> {
        for (now, then) in self.0.iter_mut().zip(before.0) {
            *now = now.checked_sub(then)?;
        }
        Some(self)
    }

    /// Sum of the counters of two peers.
    fn and(mut self, other: Counts) -> Counts {
        self.0.iter_mut().zip(other.0).for_each(|(sum, part)| *sum += part);
        self
    }

    /// Lost packets in both directions.
    pub fn lost(&self) -> u64 {
        self[Count::LostOut] + self[Count::LostIn]
    }

    /// Packets in both directions whose fate is known.
    pub fn covered(&self) -> u64 {
        self[Count::CoveredOut] + self[Count::CoveredIn]
    }

    /// Bytes in both directions, or the number of requests of a server that counts no bytes.
    pub fn activity(&self) -> u64 {
        match self[Count::Sent] + self[Count::Received] {
            0 => self[Count::Begun],
            bytes => bytes,
        }
    }
}

impl ServiceStatus {
    /// Summary of the status.
    pub fn summary(&self) -> Summary {
        match self {
            ServiceStatus::Gateway(status) => of_gateway(status),
            ServiceStatus::Proxy(status) => of_proxy(status),
            ServiceStatus::Serve(status) => of_server(status),
            ServiceStatus::Overlay(table) => of_overlay(table),
            ServiceStatus::Spray(status) => of_spray(status),
            ServiceStatus::Agent(status) => of_agent(status),
        }
    }
}

fn of_gateway(status: &Status) -> Summary {
    let peers = &status.counters.peers;
    let up = status.peers.iter().filter(|peer| peer.reason.is_none()).count();
    let split = status.split.as_ref();
    let counts = peers.iter().map(|(_, stats)| Counts::of_peer(stats));
    Summary {
        kind: "gateway",
        troubles: status.all_troubles(),
        uptime: Some(status.uptime),
        peers: Some((up, peers.len())),
        flows: split.map(|proxy| proxy.counters.open),
        counts: counts.fold(Counts::default(), Counts::and),
    }
}

fn of_proxy(status: &ProxyStatus) -> Summary {
    let counters = &status.counters;
    let hop = |hop: &Hop| Some(format!("hop {}: {}", hop.name(), hop.down()?));
    let [sent, received] = counters.bytes;
    Summary {
        kind: if status.is_master() { "master" } else { "proxy" },
        troubles: status
            .trouble()
            .into_iter()
            .chain(counters.hops.iter().filter_map(hop))
            .collect(),
        uptime: Some(status.uptime),
        peers: None,
        flows: Some(counters.open),
        counts: Counts::from_iter([
            (Count::Sent, sent),
            (Count::Received, received),
            (Count::Begun, counters.opened),
        ]),
    }
}

fn of_server(status: &ServeStatus) -> Summary {
    let stateless = status.trickles.as_ref().map_or(0, |trickles| trickles.answered);
    Summary {
        kind: "server",
        troubles: status.replicas.iter().filter_map(|known| known.fault.clone()).collect(),
        uptime: Some(status.uptime),
        peers: None,
        flows: Some(status.tcp.open),
        counts: Counts::from_iter([(Count::Begun, status.tcp.requests + stateless)]),
    }
}

/// A spray sees only the packets from clients: the replicas answer the clients directly.
fn of_spray(status: &SprayStatus) -> Summary {
    let up = status.replicas.iter().filter(|replica| replica.state.is_up()).count();
    let bytes = status.replicas.iter().map(|replica| replica.bytes).sum();
    Summary {
        kind: "spray",
        troubles: status.troubles(),
        uptime: Some(status.uptime),
        peers: Some((up, status.replicas.len())),
        flows: None,
        counts: Counts::from_iter([(Count::Sent, bytes)]),
    }
}

/// An agent sees only the SYNs of clients: the processes of its hops carry the flows.
fn of_agent(status: &AgentStatus) -> Summary {
    let starts = status.hops.iter().map(|hop| hop.starts).sum();
    Summary {
        kind: "agent",
        troubles: status.troubles(),
        uptime: Some(status.uptime),
        peers: Some((status.running(), status.hops.len())),
        flows: None,
        counts: Counts::from_iter([(Count::Begun, starts)]),
    }
}

/// An overlay node does not count the packets of other hosts; its page shows the loss of each path.
fn of_overlay(table: &Table) -> Summary {
    let up = table.states.iter().filter(|state| state.is_up()).count();
    Summary {
        kind: "overlay",
        troubles: table.troubles(),
        peers: Some((up, table.nodes.len())),
        ..Summary::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_peers_add_up_and_a_restart_has_no_difference() {
        let mut stats = PeerStats::default();
        stats.sender.bytes = 10;
        stats.reported.lost = 2;
        stats.receiver.link.lost = 3;
        stats.receiver.link.recovered = 1;
        let mut status = Status::default();
        status.counters.peers = vec![("b".to_owned(), stats), ("c".to_owned(), stats)];
        let summary = ServiceStatus::Gateway(Box::new(status.clone())).summary();
        assert_eq!((summary.counts[Count::Sent], summary.counts.lost()), (20, 10));
        assert_eq!((summary.counts[Count::Recovered], summary.peers), (2, Some((0, 2))));
        status.counters.peers[1].1.sender.bytes = 15;
        let later = ServiceStatus::Gateway(Box::new(status)).summary().counts;
        assert_eq!(later.since(summary.counts).unwrap().activity(), 5);
        assert_eq!(summary.counts.since(later), None);
    }

    #[test]
    fn a_proxy_reports_bypass_hops_and_tunnels() {
        let mut status = ProxyStatus { missing: true, ..ProxyStatus::default() };
        let hop = crate::engine::outbound::OutboundSpec::Hop(([10, 0, 0, 1], 7_000).into());
        (0..3).for_each(|_| {
            status.counters.hop(&hop).failed(viaduct_proto::time::Instant::ZERO, "refused");
        });
        let summary = ServiceStatus::Proxy(Box::new(status)).summary();
        assert_eq!(summary.kind, "master");
        assert!(summary.troubles[0].contains("connections bypass the proxy"), "{summary:?}");
        assert_eq!(
            summary.troubles[1],
            "hop 10.0.0.1:7000: the last 3 connections failed: refused"
        );
    }
}
