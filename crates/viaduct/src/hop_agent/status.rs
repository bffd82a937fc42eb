//! Status of a hop agent, as sent on its status socket.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// Status of a hop agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AgentStatus {
    /// Name of the agent.
    pub agent: String,
    /// Version of the program.
    pub version: String,
    /// Time since the start in seconds.
    pub uptime: f64,
    /// Hops, in the order of their names.
    pub hops: Vec<AgentHop>,
}

/// Status of a hop.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AgentHop {
    /// Name.
    pub name: String,
    /// Listening addresses.
    pub listen: Vec<SocketAddr>,
    /// Process ID of the hop's process, if one runs.
    pub pid: Option<u32>,
    /// Number of processes started.
    pub starts: u64,
    /// Number of processes that failed.
    pub failures: u64,
    /// Reason why the hop has no listener yet; or why the last process failed, which is cleared
    /// once a process has ended normally.
    pub fault: Option<String>,
}

impl AgentStatus {
    /// Number of hops that have a process.
    pub fn running(&self) -> usize {
        self.hops.iter().filter(|hop| hop.pid.is_some()).count()
    }

    /// Returns a line for each hop whose last process failed, or which has no listener.
    pub fn troubles(&self) -> Vec<String> {
        let of = |hop: &AgentHop| Some(format!("hop {}: {}", hop.name, hop.fault.as_ref()?));
        self.hops.iter().filter_map(of).collect()
    }
}
