//! Subject of a hop agent: all its hops together, which are too many for subjects of their own.

use viaduct_proto::history::{Reading, Subject};

use super::{Details, Sample, count};
use crate::hop_agent::status::{AgentHop, AgentStatus};

/// Sample of a hop agent.
pub(super) fn sample(status: &AgentStatus) -> Sample {
    Sample {
        kind: "agent",
        title: format!("hop agent {}", status.agent),
        clock: Some(status.uptime),
        troubles: status.troubles(),
        subjects: vec![hops(status)],
    }
}

fn hops(status: &AgentStatus) -> (Subject, Details) {
    let sum = |of: fn(&AgentHop) -> u64| status.hops.iter().map(of).sum::<u64>();
    let readings = vec![
        ("running", count(status.running() as u64)),
        ("defined", count(status.hops.len() as u64)),
        ("started", Reading::per_second(sum(|hop| hop.starts))),
        ("failed", Reading::per_second(sum(|hop| hop.failures))),
    ];
    let facts = vec![("version", status.version.clone())];
    let subject = Subject { kind: "hops", name: status.agent.clone(), readings };
    (subject, Details { facts, ..Details::default() })
}
