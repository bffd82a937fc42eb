//! Replicas of one server: real `viaduct serve` processes that share files, a secret and the
//! service address.
//!
//! ```text
//!                                     ┌─ b1 serve   10.2.1.2 ┐
//!   a1 ═══ gwa ═══ the link ═══ gwb ──┤                      ├ and both are 10.2.200.1
//!                                     └─ b2 serve   10.2.2.2 ┘
//! ```

use std::path::PathBuf;

use super::served::{self, CONGESTION_CONTROL, PORT};
use crate::experiments::prelude::*;

/// Address of the service, shared by all replicas.
pub(super) const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 2, 200, 1);
/// Two sites, with the replicas' files and their secret.
pub(super) struct Replicas {
    pub(super) net: Dumbbell,
    scratch: Scratch,
}

impl Replicas {
    /// Builds `hosts` hosts on each side, with `wan` between them.
    pub(super) fn build(hosts: usize, wan: Wan, journal: &Journal) -> Result<Replicas> {
        let spec = DumbbellSpec { hosts, wan, ..DumbbellSpec::default() };
        let net = Dumbbell::build(&spec, journal)?;
        net.set_congestion_control(CONGESTION_CONTROL)?;
        for host in net.hosts_b() {
            host.ip(&[format!("addr add {SERVICE}/32 dev lo")])?;
        }
        let replicas = Replicas { net, scratch: served::prepare()? };
        replicas.lead_to(0)?;
        Ok(replicas)
    }

    /// Routes the service address to this replica.
    pub(super) fn lead_to(&self, replica: usize) -> Result<()> {
        let via = self.net.hosts_b()[replica].v4();
        Ok(self.net.gateway_b().ip(&[format!("route replace {SERVICE}/32 via {via}")])?)
    }

    /// Creates a file of random bytes for all replicas; returns the bytes.
    pub(super) fn file(&self, name: &str, bytes: usize, seed: u64) -> Result<Vec<u8>> {
        served::file(&self.scratch, name, bytes, seed)
    }

    /// Creates a sparse file of zeros, which takes no disk space.
    pub(super) fn sparse(&self, name: &str, bytes: u64) -> Result<()> {
        let file = File::create(self.scratch.path().join("site").join(name))?;
        Ok(file.set_len(bytes)?)
    }

    /// Returns the URL of a file.
    pub(super) fn url(name: &str) -> String {
        format!("http://{SERVICE}:{PORT}/{name}")
    }

    /// Returns the directory for the programs' files.
    pub(super) fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// Starts the server of this replica.
    pub(super) fn serve(&self, replica: usize, more: &[&str]) -> Result<Service> {
        let host = &self.net.hosts_b()[replica];
        let options = [&["--trickles", "auto"], more].concat();
        let process = served::spawn(host, &self.scratch, host.name(), &options)?;
        Ok(Service { process, run_dir: self.scratch.path().join(host.name()) })
    }
}

/// Running server; stopped when dropped.
pub(super) struct Service {
    process: Process,
    run_dir: PathBuf,
}

impl Service {
    /// Kills the server as `kill -9` does.
    pub(super) fn kill(mut self) -> Result<()> {
        self.process.kill()?;
        Ok(())
    }

    /// Reads the server's status, whose counters are slightly old.
    pub(super) fn status(&self) -> Result<Value> {
        served::status(&self.run_dir)
    }
}
