//! Metrics of a hop agent.

use super::status::AgentStatus;
use crate::metrics::{Exposition, Kind};

/// Renders the metrics page.
pub fn encode(status: &AgentStatus) -> String {
    let mut page = Exposition::default();
    let own: &[(&str, &str)] = &[("agent", &status.agent)];
    let sum = |of: fn(&super::status::AgentHop) -> u64| status.hops.iter().map(of).sum::<u64>();
    let all = [
        ("viaduct_agent_hops", Kind::Gauge, "Hops that are defined.", status.hops.len() as u64),
        ("viaduct_agent_running", Kind::Gauge, "Hops with a process.", status.running() as u64),
        ("viaduct_agent_starts_total", Kind::Counter, "Processes started.", sum(|h| h.starts)),
        ("viaduct_agent_failures_total", Kind::Counter, "Failed processes.", sum(|h| h.failures)),
    ];
    for (name, kind, help, value) in all {
        page.family(name, kind, help);
        page.sample(own, value);
    }
    let help = "1 while the last process of a hop has failed, or a hop has no listener.";
    page.family("viaduct_trouble", Kind::Gauge, help);
    page.sample(&[], u8::from(!status.troubles().is_empty()));
    page.finish()
}
