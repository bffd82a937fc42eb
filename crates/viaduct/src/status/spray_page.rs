//! Text page of a spray.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use viaduct_proto::health::State;

use super::colours::{Colours, row};
use super::numbers::{bytes, thousands};
use crate::spray::status::{ReplicaStatus, SprayStatus};

/// State of a spray as text.
#[derive(Debug)]
pub struct SprayPage<'a> {
    pub(super) status: &'a SprayStatus,
    pub(super) colours: Colours,
}

impl SprayPage<'_> {
    fn state(&self, replica: &ReplicaStatus) -> String {
        match (&replica.state, replica.is_drained) {
            (_, true) => "drained".to_owned(),
            (State::Up, _) => self.colours.green("up"),
            (state, _) => self.colours.paint(31, state),
        }
    }
}

impl Display for SprayPage<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let SprayStatus { spray, version, addresses, ports, changes, repairs, .. } = self.status;
        let up = humantime::format_duration(Duration::from_secs(self.status.uptime as u64));
        let title = self.colours.bold(format!("spray {spray}"));
        writeln!(f, "{title}  (version {version}, up {up})")?;
        let list = |all: Vec<String>| all.join(", ");
        let addresses = list(addresses.iter().map(ToString::to_string).collect());
        let ports = list(ports.iter().map(ToString::to_string).collect());
        row(f, "service", format!("{addresses}; port {ports}"))?;
        for replica in &self.status.replicas {
            let ReplicaStatus { name, share, packets, probes, failures, falls, .. } = replica;
            let sent = format!(
                "{}; {:.1} % of the packets, {} sent, {}",
                self.state(replica),
                share * 100.0,
                thousands(*packets),
                bytes(replica.bytes)
            );
            row(f, name, sent)?;
            let (probes, failures) = (thousands(*probes), thousands(*failures));
            row(f, "", format!("  {probes} probes, {failures} failed; down {falls} times"))?;
        }
        let repairs = self.colours.alarm(*repairs);
        row(f, "rules", format!("{changes} changes, deleted by another program {repairs} times"))?;
        let mut faults = self.status.fault.iter().chain(&self.status.drain_fault);
        faults.try_for_each(|fault| row(f, "", self.colours.paint(31, fault)))
    }
}
