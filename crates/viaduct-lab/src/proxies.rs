//! A real `viaduct proxy` in a node.

use std::fs::File;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
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

    /// With these arguments.
    pub fn start(node: &Node, arguments: &[&str]) -> Result<Proxy> {
        let scratch = Scratch::new()?;
        let path = scratch.path().join("log");
        let log = File::create(&path)?;
        let mut command = node.command(&binary()?.to_string_lossy());
        command.arg("proxy").args(arguments).arg("--run-dir").arg(scratch.path());
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
