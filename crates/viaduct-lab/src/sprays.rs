//! Real `viaduct spray` process in a node.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use viaduct_sys::process::Process;

use crate::binary::binary;
use crate::daemon;
use crate::topology::{Host, Node, Scratch};

/// Time limit for a process to remove its rules.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// Name of the service.
const NAME: &str = "www";

/// Running spray. Dropping it ends the process, which removes its rules.
#[derive(Debug)]
pub struct Spray {
    process: Process,
    scratch: Scratch,
}

impl Spray {
    /// Starts a spray in `node` with the default checks, and waits until it distributes the packets
    /// to `service` that arrive at `interface` over `replicas`.
    pub fn start(
        node: &Node,
        interface: &str,
        service: SocketAddrV4,
        replicas: &[(&str, Ipv4Addr)],
    ) -> Result<Spray> {
        let scratch = Scratch::new()?;
        let mut config = format!(
            "[spray]\nname = \"{NAME}\"\naddresses = [\"{}\"]\nports = [{}]\n\
             interfaces = [\"{interface}\"]\nrun_dir = \"{}\"\n",
            service.ip(),
            service.port(),
            scratch.path().display()
        );
        for (name, address) in replicas {
            let table = "[[replica]]";
            writeln!(config, "{table}\nname = \"{name}\"\naddresses = [\"{address}\"]")?;
        }
        let path = scratch.write("spray.toml", config)?;
        let mut command = node.command(&binary()?.display().to_string());
        command.args(["spray", "--config"]).arg(path);
        let (log, socket) = (scratch.path().join("log"), socket(&scratch));
        let is_up = || Ok(daemon::status::<Value>(&socket).is_ok());
        let process = daemon::start(node, command, &log, is_up)?;
        Ok(Spray { process, scratch })
    }

    /// Reads the status.
    pub fn status(&self) -> Result<Value> {
        daemon::status(&socket(&self.scratch))
    }
}

impl Drop for Spray {
    fn drop(&mut self) {
        // A killed process would leave its rules in the node. A process that has exited by itself
        // has removed its rules.
        if let Some(pid) = Pid::from_raw(self.process.id().cast_signed())
            && kill_process(pid, Signal::TERM).is_ok()
        {
            let _ = self.process.wait_for(END_TIMEOUT, || false);
        }
    }
}

/// Returns the names and addresses of hosts, for use as replicas.
pub fn named(hosts: &[Host]) -> Vec<(&str, Ipv4Addr)> {
    hosts.iter().map(|host| (host.name(), host.v4())).collect()
}

fn socket(scratch: &Scratch) -> PathBuf {
    scratch.path().join(format!("spray-{NAME}.sock"))
}
