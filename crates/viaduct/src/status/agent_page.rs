//! Text page of a hop agent.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use super::colours::{Colours, row};
use super::numbers::thousands;
use crate::hop_agent::status::{AgentHop, AgentStatus};

/// Maximum number of hops that are shown; `--json` has all of them.
const MAX_HOPS: usize = 50;

/// State of a hop agent as text.
#[derive(Debug)]
pub struct AgentPage<'a> {
    pub(super) status: &'a AgentStatus,
    pub(super) colours: Colours,
}

impl Display for AgentPage<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let AgentStatus { agent, version, uptime, hops } = self.status;
        let up = humantime::format_duration(Duration::from_secs(*uptime as u64));
        let title = self.colours.bold(format!("hop agent {agent}"));
        writeln!(f, "{title}  (version {version}, up {up})")?;
        let sum = |of: fn(&AgentHop) -> u64| thousands(hops.iter().map(of).sum());
        let what = format!(
            "{} defined, {} running; {} starts, {} failed",
            thousands(hops.len() as u64),
            thousands(self.status.running() as u64),
            sum(|hop| hop.starts),
            sum(|hop| hop.failures),
        );
        row(f, "hops", what)?;
        // Only hops that run, have run before, or have a fault.
        let shown: Vec<_> =
            hops.iter().filter(|hop| hop.starts > 0 || hop.fault.is_some()).collect();
        for hop in shown.iter().take(MAX_HOPS) {
            row(f, &hop.name, self.hop(hop))?;
        }
        match shown.len().saturating_sub(MAX_HOPS) {
            0 => Ok(()),
            more => row(f, "", format!("and {more} more hops (--json)")),
        }
    }
}

impl AgentPage<'_> {
    fn hop(&self, hop: &AgentHop) -> String {
        let listen: Vec<_> = hop.listen.iter().map(ToString::to_string).collect();
        let state = match (&hop.fault, hop.pid) {
            (Some(fault), None) => self.colours.paint(31, fault),
            (_, Some(pid)) => self.colours.green(format!("process {pid}")),
            (None, None) => "idle".to_owned(),
        };
        format!("{}: {state}; {} starts", listen.join(", "), thousands(hop.starts))
    }
}
