//! Owner of a journal, and locks of nftables tables.

use std::time::{Duration, Instant};
use std::{fs, io, process, thread};

use serde::{Deserialize, Serialize};

use crate::process::instance_lock::InstanceLock;

/// Max time to wait for the end of a killed process: its last threads and descriptors may exist for
/// a moment after the signal.
const EXIT_TIMEOUT: Duration = Duration::from_millis(500);

/// A process, the boot in which it runs, and its network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Owner {
    pub(super) pid: u32,
    /// Start time in clock ticks after boot, which distinguishes processes with the same ID.
    pub(super) started: u64,
    /// The kernel's ID of this boot.
    boot: String,
    /// The kernel's ID of the network namespace.
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

    pub(super) fn is_same_system(&self, other: &Owner) -> bool {
        self.boot == other.boot && self.namespace == other.namespace
    }
}

/// Returns the start time of a process; `None` if it has ended.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The process's name, in parentheses, may contain any character. The state follows it, and the
    // start time is the 22nd field.
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_whitespace().collect();
    let dead = matches!(*fields.first()?, "Z" | "X");
    if dead { None } else { fields.get(19)?.parse().ok() }
}

/// Locks the tables of `instance`; `None` if the lock cannot be taken within [`EXIT_TIMEOUT`],
/// usually because another process has it.
pub(super) fn lock_instance(instance: &str) -> Option<InstanceLock> {
    eventually(|| InstanceLock::take(&format!("viaduct_{instance}")).ok().flatten())
}

/// Repeats `look` until it succeeds, or until [`EXIT_TIMEOUT`] has passed.
pub(super) fn eventually<T>(look: impl Fn() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + EXIT_TIMEOUT;
    loop {
        let found = look();
        if found.is_some() || Instant::now() >= deadline {
            return found;
        }
        thread::sleep(EXIT_TIMEOUT / 50);
    }
}
