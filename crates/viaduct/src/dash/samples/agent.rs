//! Sample of a hop agent, whose hops are too many for subjects of their own.

use super::Sample;
use crate::hop_agent::status::AgentStatus;

/// Sample of a hop agent.
pub(super) fn sample(status: &AgentStatus) -> Sample {
    Sample {
        kind: "agent",
        title: format!("hop agent {}", status.agent),
        clock: Some(status.uptime),
        troubles: status.troubles(),
        subjects: Vec::new(),
    }
}
