//! Status of a spray, as sent on its status socket.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use viaduct_proto::health::State;

/// Status of a spray.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SprayStatus {
    /// Name of the service.
    pub spray: String,
    /// Version of the program.
    pub version: String,
    /// Time since the start in seconds.
    pub uptime: f64,
    /// Addresses of the service.
    pub addresses: Vec<IpAddr>,
    /// Ports of the service.
    pub ports: Vec<u16>,
    /// Replicas, in the order of the config.
    pub replicas: Vec<ReplicaStatus>,
    /// Number of times that the distribution has changed.
    pub changes: u64,
    /// Number of times that missing rules were reinstalled.
    pub repairs: u64,
    /// Reason why the rules could not be installed; `None` if they are installed.
    pub fault: Option<String>,
    /// Reason why the list of drained replicas cannot be read; `None` if it was read.
    pub drain_fault: Option<String>,
}

/// Status of a replica.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReplicaStatus {
    /// Name.
    pub name: String,
    /// Addresses of the replica itself.
    pub addresses: Vec<IpAddr>,
    /// Weight.
    pub weight: u32,
    /// Health.
    #[serde(flatten)]
    pub state: State,
    /// True if the operator or the config has drained the replica, so that it gets no packets.
    pub is_drained: bool,
    /// True if the config has drained the replica.
    pub is_drained_by_config: bool,
    /// Current share of the packets, 0 to 1.
    pub share: f64,
    /// Packets sent to the replica.
    pub packets: u64,
    /// Bytes sent to the replica.
    pub bytes: u64,
    /// Probes sent.
    pub probes: u64,
    /// Probes that failed.
    pub failures: u64,
    /// Number of times that the replica went down.
    pub falls: u64,
}

impl SprayStatus {
    /// Returns the problems, the worst first. A drained replica is not a problem.
    pub fn troubles(&self) -> Vec<String> {
        let bad = |replica: &&ReplicaStatus| !replica.is_drained && !replica.state.is_up();
        let of = |replica: &ReplicaStatus| format!("replica {}: {}", replica.name, replica.state);
        let replicas = self.replicas.iter().filter(bad).map(of);
        let faults = self.fault.iter().cloned().chain(self.dead());
        faults.chain(replicas).chain(self.drain_fault.clone()).collect()
    }

    /// Reason why this machine cannot serve: its rules are missing, or no replica is up. A single
    /// replica that is down is not a reason for another machine to take over, because that machine
    /// has the same replicas.
    pub fn unfit(&self) -> Option<String> {
        self.fault.clone().or_else(|| self.dead())
    }

    fn dead(&self) -> Option<String> {
        let is_alive = |replica: &ReplicaStatus| match replica.state {
            State::Down(_) => false,
            State::Up | State::Useless(_) | State::Degraded(_) => !replica.is_drained,
        };
        (!self.replicas.iter().any(is_alive)).then(|| "no replica is up".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_dead_replica_is_a_problem_and_all_dead_replicas_make_the_machine_unfit() {
        let replica = |name: &str, state| ReplicaStatus {
            name: name.to_owned(),
            state,
            ..ReplicaStatus::default()
        };
        let down = || State::Down("connection refused".to_owned());
        let replicas = vec![replica("b1", State::Up), replica("b2", down())];
        let mut status = SprayStatus { replicas, ..SprayStatus::default() };
        assert_eq!(status.troubles(), ["replica b2: down: connection refused"]);
        assert_eq!(status.unfit(), None);
        let text = serde_json::to_string(&status).unwrap();
        assert_eq!(serde_json::from_str::<SprayStatus>(&text).unwrap(), status);
        status.replicas[1].is_drained = true;
        assert!(status.troubles().is_empty());
        status.replicas[0].state = down();
        assert_eq!(status.unfit().as_deref(), Some("no replica is up"));
        assert_eq!(status.troubles().len(), 2);
        status.replicas[0].state = State::Up;
        status.drain_fault = Some("the list cannot be read".to_owned());
        assert_eq!((status.troubles().len(), status.unfit()), (1, None));
    }
}
