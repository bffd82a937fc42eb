//! Whose a journal is, and whose tables are.

use std::time::{Duration, Instant};
use std::{fs, io, process, thread};

use serde::{Deserialize, Serialize};

use crate::claim::Claim;

/// How long a process that was killed may take to be gone: it may be seen as dead while its last threads
/// and descriptors still go.
const DYING: Duration = Duration::from_millis(500);

/// A process, and the world that its changes are in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Owner {
    pub(super) pid: u32,
    /// Clock ticks after boot; a process id may be given again, but not with the same start.
    pub(super) started: u64,
    /// The kernel's name for this boot.
    boot: String,
    /// The kernel's name for the network namespace.
    namespace: String,
}

impl Owner {
    pub(super) fn this_process() -> io::Result<Owner> {
        let pid = process::id();
        let started = start_time(pid).ok_or_else(|| io::Error::other("/proc is not mounted"))?;
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
        let namespace = fs::read_link("/proc/thread-self/ns/net")?.to_string_lossy().into_owned();
        Ok(Owner { pid, started, boot, namespace })
    }

    pub(super) fn is_running(&self) -> bool {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        boot.trim() == self.boot && start_time(self.pid) == Some(self.started)
    }

    pub(super) fn same_world(&self, other: &Owner) -> bool {
        self.boot == other.boot && self.namespace == other.namespace
    }
}

/// When a process that still runs was started.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything; the state follows it, the start is the 22nd field.
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_whitespace().collect();
    let dead = matches!(*fields.first()?, "Z" | "X");
    if dead { None } else { fields.get(19)?.parse().ok() }
}

/// `None` if another process has the tables of `instance`, and does not end in these moments.
pub(super) fn claim(instance: &str) -> Option<Claim> {
    eventually(|| Claim::take(&format!("viaduct_{instance}")).ok().flatten())
}

/// What is to be had at once, or when somebody who was killed is gone.
pub(super) fn eventually<T>(look: impl Fn() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + DYING;
    loop {
        let found = look();
        if found.is_some() || Instant::now() >= deadline {
            return found;
        }
        thread::sleep(DYING / 50);
    }
}
