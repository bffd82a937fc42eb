//! `viaduct demo --watch`: the dashboard of the demo's gateways.

use std::fs::{self, File};
use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use viaduct_sys::process::die_with_parent;

use crate::binary::binary;
use crate::cli::say;
use crate::experiment::{Ended, Outcome};
use crate::stop;
use crate::topology::Scratch;

/// Time limit for the dashboard to start.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of the checks whether the dashboard has started, and whether Ctrl-C was pressed.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Running dashboard; stopped when dropped.
#[derive(Debug)]
pub(super) struct Dashboard {
    process: Child,
    listen: SocketAddr,
    scratch: Scratch,
}

impl Dashboard {
    /// Starts the dashboard at `listen`, and waits until it listens. Must be called from the main
    /// thread: the kernel kills the dashboard when the calling thread ends.
    ///
    /// # Errors
    /// If the dashboard does not start, for example because the address is in use.
    pub(super) fn start(listen: SocketAddr) -> Result<Dashboard> {
        ensure!(listen.ip().is_loopback(), "a loopback address is expected, not {listen}");
        let scratch = Scratch::new()?;
        let log = scratch.path().join("dash.log");
        let mut command = Command::new(binary()?);
        command.args(["dash", "--listen", &listen.to_string(), "--run-dir"]).arg(scratch.path());
        // The log line with the address, which is awaited below, has this level.
        command.env("VIADUCT_LOG", "info").stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(File::create(&log)?);
        die_with_parent(&mut command);
        let mut dashboard = Dashboard { process: command.spawn()?, listen, scratch };
        let address = dashboard.address();
        let listens = || fs::read_to_string(&log).is_ok_and(|text| text.contains(&address));
        let process = &mut dashboard.process;
        let is_over = || listens() || !matches!(process.try_wait(), Ok(None));
        stop::wait_until(START_TIMEOUT, POLL_INTERVAL, is_over)?;
        if !listens() {
            bail!("the dashboard did not start: {}", fs::read_to_string(&log)?.trim());
        }
        Ok(dashboard)
    }

    /// Directory of the sockets that the dashboard reads.
    pub(super) fn run_dir(&self) -> &Path {
        self.scratch.path()
    }

    /// Address of the page.
    pub(super) fn address(&self) -> String {
        format!("http://{}/", self.listen)
    }

    /// Keeps the dashboard running until Ctrl-C. Returns immediately if stdout is not a terminal
    /// or the demo was stopped.
    pub(super) fn linger(self, outcome: &Outcome) -> Result<()> {
        if matches!(outcome.ended, Ended::Stopped) || !std::io::stdout().is_terminal() {
            return Ok(());
        }
        say(&format!("Live plots, until Ctrl-C: {}\n", self.address()));
        while !stop::is_requested() {
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        // The dashboard may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
