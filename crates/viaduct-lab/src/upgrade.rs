//! Upgrades of running proxies and gateways by `viaduct upgrade`, and their new processes.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpid, pidfd_open, pidfd_send_signal,
    set_child_subreaper, waitid,
};
use serde::Deserialize;

use crate::binary::binary;
use crate::stop;

/// Time within which a process must exit after SIGTERM.
const END_TIMEOUT: Duration = Duration::from_secs(20);
/// Poll interval while a process ends.
const END_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Process that another process has started; killed on drop.
#[derive(Debug)]
pub struct ForeignProcess {
    pid: u32,
    fd: OwnedFd,
}

/// Makes this process the subreaper until the value is dropped: the parent of processes whose
/// parent has ended, so that it can read their exit status and reap them.
#[derive(Debug)]
pub struct Adoption(());

impl Adoption {
    /// Becomes the subreaper. Fails if the kernel refuses.
    pub fn begin() -> Result<Adoption> {
        set_child_subreaper(Some(getpid()))?;
        Ok(Adoption(()))
    }
}

impl Drop for Adoption {
    fn drop(&mut self) {
        // This call cannot fail.
        let _ = set_child_subreaper(None);
    }
}

/// Output of `viaduct upgrade --json`.
#[derive(Deserialize)]
struct Report {
    new: u32,
}

/// Replaces the process of the proxy or gateway whose sockets are in `run_dir`, by `viaduct
/// upgrade` with these further arguments. Returns the new process. Fails if the command fails; the
/// error is the command's message.
pub fn upgrade(run_dir: &Path, arguments: &[&str]) -> Result<ForeignProcess> {
    let mut command = Command::new(binary()?);
    command.args(["upgrade", "--json", "--run-dir"]).arg(run_dir).args(arguments);
    let output = command.output().context("cannot start `viaduct upgrade`")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim_end());
    let report: Report =
        serde_json::from_slice(&output.stdout).context("`viaduct upgrade` printed no report")?;
    ForeignProcess::of(report.new)
}

impl ForeignProcess {
    /// Takes charge of process `pid`, so that it is killed on drop. Fails if there is no
    /// such process.
    pub fn of(pid: u32) -> Result<ForeignProcess> {
        let id = Pid::from_raw(pid.cast_signed()).context("no process has the ID 0")?;
        let fd = pidfd_open(id, PidfdFlags::empty());
        Ok(ForeignProcess { pid, fd: fd.with_context(|| format!("process {pid}"))? })
    }

    /// Returns the process ID.
    pub fn id(&self) -> u32 {
        self.pid
    }

    /// Returns whether the process has ended, reaped or not: its parent may have ended, and not
    /// every init process reaps orphans.
    pub fn has_ended(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let fds = &mut [PollFd::new(&self.fd, PollFlags::IN)];
        poll(fds, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// Reaps the process if it has ended. Returns whether it exited with status 0; `None` if it has
    /// not ended, or this process is not its parent.
    pub fn reap(&self) -> Option<bool> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let status = waitid(WaitId::PidFd(self.fd.as_fd()), options).ok()??;
        Some(status.exit_status() == Some(0))
    }

    /// Sends SIGTERM to the process, and waits until it has ended.
    pub fn end(&self) -> Result<()> {
        pidfd_send_signal(&self.fd, Signal::TERM)?;
        let ended = stop::wait_until(END_TIMEOUT, END_POLL_INTERVAL, || self.has_ended())?;
        ensure!(ended, "process {} does not exit within {END_TIMEOUT:?}", self.pid);
        Ok(())
    }
}

impl Drop for ForeignProcess {
    fn drop(&mut self) {
        // The process may have ended; its pidfd never refers to another process.
        let _ = pidfd_send_signal(&self.fd, Signal::KILL);
    }
}
