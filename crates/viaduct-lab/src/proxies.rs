//! A real `viaduct proxy`, or `viaduct steer`, in a node.

use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_setaffinity};
use viaduct_sys::process::Process;

use crate::binary::binary;
use crate::stop;
use crate::topology::{Node, Scratch};

/// How long a proxy may take to begin.
const PATIENCE: Duration = Duration::from_secs(10);
const PORT: u16 = 7000;

/// A running proxy. It ends with this value, and its node is as before.
#[derive(Debug)]
pub struct Proxy {
    process: Process,
    scratch: Scratch,
}

impl Proxy {
    /// On the path: every TCP connection that passes `node` is split there.
    pub fn on_path(node: &Node) -> Result<Proxy> {
        let listen = format!("[::]:{PORT}");
        Self::start(node, &["--listen", &listen, "--intercept", "0.0.0.0/0,::/0"])
    }

    /// With these arguments, on one core.
    pub fn start_on(node: &Node, core: usize, arguments: &[&str]) -> Result<Proxy> {
        let proxy = Self::start(node, arguments)?;
        let mut set = CpuSet::new();
        set.set(core);
        sched_setaffinity(Some(Pid::from_child(&proxy.process)), &set)?;
        Ok(proxy)
    }

    /// Anywhere: for connections whose SYNs say by an option where they go.
    pub fn explicit(node: &Node, at: IpAddr, next: Option<IpAddr>) -> Result<Proxy> {
        let any = "0.0.0.0/0,::/0";
        let listen = SocketAddr::new(at, PORT).to_string();
        let next = next.map(|ip| SocketAddr::new(ip, PORT).to_string());
        let mut arguments = vec!["--listen", &listen, "--expect", "option"];
        arguments.extend(["--allow-from", any, "--allow-to", any]);
        arguments.extend(next.iter().flat_map(|next| ["--next", next]));
        Self::start(node, &arguments)
    }

    /// All IPv4 connections of `node` go to the explicit hop at `next`, which is told where they meant
    /// to go.
    pub fn steer(node: &Node, next: IpAddr) -> Result<Proxy> {
        let next = SocketAddr::new(next, PORT).to_string();
        let arguments = ["steer", "--next", &next, "--to", "0.0.0.0/0"];
        Self::run(node, &arguments, Scratch::new()?)
    }

    /// With these arguments; they may name a `--run-dir`, where an earlier one has left its journal.
    pub fn start(node: &Node, arguments: &[&str]) -> Result<Proxy> {
        let scratch = Scratch::new()?;
        if arguments.contains(&"--run-dir") {
            return Self::run(node, &[&["proxy"], arguments].concat(), scratch);
        }
        let run_dir = scratch.path().display().to_string();
        Self::run(node, &[&["proxy"], arguments, &["--run-dir", &run_dir]].concat(), scratch)
    }

    /// With these arguments, where it finds other files than the machine's: each a path and its text.
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

    /// With a config file, whose table `[proxy]` these lines begin.
    pub fn configured(node: &Node, lines: &str) -> Result<Proxy> {
        let scratch = Scratch::new()?;
        let file = config(&scratch, lines)?;
        Self::run(node, &["proxy", "--config", &file], scratch)
    }

    /// Replaces the lines of its config file, and has it read them.
    pub fn reload(&self, lines: &str) -> Result<()> {
        config(&self.scratch, lines)?;
        let pid = Pid::from_raw(self.process.id().cast_signed());
        Ok(kill_process(pid.context("a process has an id")?, Signal::HUP)?)
    }

    /// Where its files are, its status socket among them.
    pub fn directory(&self) -> &Path {
        self.scratch.path()
    }

    fn run(node: &Node, arguments: &[&str], scratch: Scratch) -> Result<Proxy> {
        let mut command = node.command(&binary()?.to_string_lossy());
        command.args(arguments);
        Self::spawn(node, command, scratch)
    }

    fn spawn(node: &Node, mut command: Command, scratch: Scratch) -> Result<Proxy> {
        let log = File::create(scratch.path().join("log"))?;
        command.stdout(log.try_clone()?).stderr(log);
        let mut proxy = Proxy { process: node.spawn(command)?, scratch };
        let deadline = Instant::now() + PATIENCE;
        while !proxy.log().contains(" up ") {
            stop::check()?;
            let ended = matches!(proxy.process.try_wait(), Ok(Some(_)));
            if ended || Instant::now() > deadline {
                bail!("the proxy of {} is not up; it says: {}", node.name(), proxy.log());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(proxy)
    }

    /// Its process, to measure and to end.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.scratch.path().join("log")).unwrap_or_default()
    }
}

/// Writes a config file; its path.
fn config(scratch: &Scratch, lines: &str) -> Result<String> {
    let head = format!("[proxy]\nrun-dir = \"{}\"\n", scratch.path().display());
    Ok(scratch.write("proxy.toml", head + lines)?.display().to_string())
}
