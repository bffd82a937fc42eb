//! Upgrades of a running service, and programs that fail to take over.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::until;

/// Runs `viaduct upgrade`; returns the ID of the new process, or the error.
pub(crate) fn upgrade(run_dir: &Path, more: &[&str]) -> Result<u32, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_viaduct"));
    command.args(["upgrade", "--json", "--run-dir"]).arg(run_dir).args(more);
    let output = command.output().unwrap();
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    Ok(u32::try_from(report["new"].as_u64().unwrap()).unwrap())
}

/// A process that took over, which is not a child of the test; it is killed on drop.
pub(crate) struct Successor(Pid);

impl Successor {
    pub(crate) fn of(pid: u32) -> Successor {
        Successor(Pid::from_raw(pid.cast_signed()).unwrap())
    }

    /// Ends the process in order, and waits until it has ended.
    pub(crate) fn end(&self) {
        kill_process(self.0, Signal::TERM).unwrap();
        // Its parent may have ended, and not every init process reaps orphans.
        let stat = format!("/proc/{}/stat", self.0.as_raw_nonzero());
        until("the last process ends", || {
            fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "))
        });
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}

/// Writes a program that has the old process's connection in `s`.
pub(crate) fn program(run_dir: &Path, name: &str, steps: &str) -> PathBuf {
    let path = run_dir.join(name);
    let text = format!(
        "#!/usr/bin/python3\n\
         import os, signal, socket, sys\n\
         fd = [word for word in sys.argv if word.startswith('--takeover=')][0].split('=')[1]\n\
         s = socket.socket(fileno=int(fd))\n\
         def hello(oldest, newest):\n\
         \x20   s.send(b'{{\"hello\":{{\"version\":\"9.9\",\"oldest\":%d,\"newest\":%d}}}}' \
         % (oldest, newest))\n\
         {steps}\n"
    );
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}
