//! Real `viaduct proxy` or `viaduct steer` process in a node.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_setaffinity};
use viaduct_sys::process::Process;

use crate::binary::binary;
use crate::daemon;
use crate::topology::{Node, Scratch};

const PORT: u16 = 7000;
/// File with the hops of a hop agent.
const HOPS: &str = "hops.toml";

/// Running proxy. Dropping it ends the process and restores the node.
#[derive(Debug)]
pub struct Proxy {
    process: Process,
    scratch: Scratch,
}

impl Proxy {
    /// Starts an on-path proxy, which splits every TCP connection through `node`.
    pub fn on_path(node: &Node) -> Result<Proxy> {
        let listen = format!("[::]:{PORT}");
        Self::start(node, &["--listen", &listen, "--intercept", "0.0.0.0/0,::/0"])
    }

    /// Starts a proxy with these arguments, pinned to one core.
    pub fn start_on(node: &Node, core: usize, arguments: &[&str]) -> Result<Proxy> {
        let proxy = Self::start(node, arguments)?;
        let mut set = CpuSet::new();
        set.set(core);
        sched_setaffinity(Some(Pid::from_child(&proxy.process)), &set)?;
        Ok(proxy)
    }

    /// Starts an explicit hop, for connections whose SYNs name their destination in a TCP option.
    pub fn explicit(node: &Node, at: IpAddr, next: Option<IpAddr>) -> Result<Proxy> {
        let any = "0.0.0.0/0,::/0";
        let listen = SocketAddr::new(at, PORT).to_string();
        let next = next.map(|ip| SocketAddr::new(ip, PORT).to_string());
        let mut arguments = vec!["--listen", &listen, "--expect", "option"];
        arguments.extend(["--allow-from", any, "--allow-to", any]);
        arguments.extend(next.iter().flat_map(|next| ["--next", next]));
        Self::start(node, &arguments)
    }

    /// Sends all IPv4 connections of `node` to the explicit hop at `next`, with their original
    /// destination in a TCP option.
    pub fn steer(node: &Node, next: IpAddr) -> Result<Proxy> {
        let next = SocketAddr::new(next, PORT).to_string();
        let arguments = ["steer", "--next", &next, "--to", "0.0.0.0/0"];
        Self::run(node, &arguments, Scratch::new()?)
    }

    /// Starts a proxy with these arguments. They may contain a `--run-dir` in which an earlier
    /// proxy has left its journal.
    pub fn start(node: &Node, arguments: &[&str]) -> Result<Proxy> {
        let scratch = Scratch::new()?;
        if arguments.contains(&"--run-dir") {
            return Self::run(node, &[&["proxy"], arguments].concat(), scratch);
        }
        let run_dir = scratch.path().display().to_string();
        Self::run(node, &[&["proxy"], arguments, &["--run-dir", &run_dir]].concat(), scratch)
    }

    /// Starts a proxy with these arguments, for which some system files are replaced. `files`
    /// contains the path and the new content of each.
    pub fn with_files(node: &Node, files: &[(&str, &str)], arguments: &[&str]) -> Result<Proxy> {
        let scratch = Scratch::new()?;
        let mut script = String::new();
        for (n, (path, text)) in files.iter().enumerate() {
            let ours = scratch.write(&format!("file-{n}"), text)?;
            script += &format!("mount --bind '{}' '{path}' && ", ours.display());
        }
        let mut command = node.command("unshare");
        command.args(["--mount", "sh", "-c", &(script + "exec \"$@\""), "sh"]);
        command.arg(binary()?).arg("proxy").args(arguments);
        command.arg("--run-dir").arg(scratch.path());
        Self::spawn(node, command, scratch)
    }

    /// Starts a proxy with a config file whose `[proxy]` table begins with these lines.
    pub fn configured(node: &Node, lines: &str) -> Result<Proxy> {
        let scratch = Scratch::new()?;
        let file = config(&scratch, lines)?;
        Self::run(node, &["proxy", "--config", &file], scratch)
    }

    /// Starts a hop agent for the hops in `text`, with these further arguments.
    pub fn hop_agent(node: &Node, text: &str, arguments: &[&str]) -> Result<Proxy> {
        let scratch = Scratch::new()?;
        let file = scratch.write(HOPS, text)?.display().to_string();
        let run_dir = scratch.path().display().to_string();
        let own = ["hop-agent", "--hops", &file, "--run-dir", &run_dir];
        Self::run(node, &[&own, arguments].concat(), scratch)
    }

    /// Starts a hop agent for the hops in `text` as `user`, with the capabilities that the unit of
    /// the package grants.
    pub fn unprivileged_hop_agent(node: &Node, text: &str, user: u32) -> Result<Proxy> {
        let scratch = Scratch::new()?;
        let file = scratch.write(HOPS, text)?;
        chown(scratch.path(), Some(user), None)?;
        let capabilities = "-all,+net_raw,+net_bind_service,+sys_admin";
        let mut command = node.command("setpriv");
        command.args(["--reuid", &user.to_string(), "--regid", &user.to_string()]);
        command.args(["--clear-groups", "--no-new-privs"]);
        for set in ["--inh-caps", "--ambient-caps", "--bounding-set"] {
            command.args([set, capabilities]);
        }
        command.arg(binary()?).args(["hop-agent", "--hops"]).arg(file);
        command.arg("--run-dir").arg(scratch.path());
        Self::spawn(node, command, scratch)
    }

    /// Replaces the hops of a hop agent and makes the agent reload them.
    pub fn reload_hops(&self, text: &str) -> Result<()> {
        self.scratch.write(HOPS, text)?;
        self.hang_up()
    }

    /// Replaces the lines of the config file and makes the proxy reload the file.
    pub fn reload(&self, lines: &str) -> Result<()> {
        config(&self.scratch, lines)?;
        self.hang_up()
    }

    fn hang_up(&self) -> Result<()> {
        let pid = Pid::from_raw(self.process.id().cast_signed());
        Ok(kill_process(pid.context("the proxy has no process ID")?, Signal::HUP)?)
    }

    /// Returns the directory of the proxy's files, which contains the status socket.
    pub fn directory(&self) -> &Path {
        self.scratch.path()
    }

    fn run(node: &Node, arguments: &[&str], scratch: Scratch) -> Result<Proxy> {
        let mut command = node.command(&binary()?.to_string_lossy());
        command.args(arguments);
        Self::spawn(node, command, scratch)
    }

    fn spawn(node: &Node, command: Command, scratch: Scratch) -> Result<Proxy> {
        let log = scratch.path().join("log");
        let process =
            daemon::start(node, command, &log, || Ok(fs::read_to_string(&log)?.contains(" up ")))?;
        Ok(Proxy { process, scratch })
    }

    /// Returns the process, to measure or stop it.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Returns the log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.scratch.path().join("log")).unwrap_or_default()
    }
}

/// Writes a config file; returns its path.
fn config(scratch: &Scratch, lines: &str) -> Result<String> {
    let head = format!("[proxy]\nrun-dir = \"{}\"\n", scratch.path().display());
    Ok(scratch.write("proxy.toml", head + lines)?.display().to_string())
}
