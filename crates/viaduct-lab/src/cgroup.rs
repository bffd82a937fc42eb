//! Control groups: a processor share and a memory limit for a program and its descendants. Uses
//! version 2 where its controllers are available, otherwise version 1.
//!
//! ```text
//!   Cgroup::new(limits) ─▶ <mount>/<own group>/viaduct-lab-<pid>-<n>
//!   command: sh writes its PID there, waits for a line, and executes the program
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::topology::Node;
use crate::topology::scratch::{PREFIX, left_behind};

/// Period of the processor quota in microseconds; short compared with the start of a program.
const PERIOD: u64 = 10_000;

/// Resource limits of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    /// Number of processors, as in 0.25.
    pub processors: Option<f64>,
    /// Maximum bytes of memory, including kernel memory that is charged to the group.
    pub memory: Option<u64>,
    /// Gives the group priority over all others on the processors, as far as possible.
    pub first: bool,
}

/// Control group. Dropping it removes the group if all its processes have ended.
#[derive(Debug)]
pub struct Cgroup {
    directories: Vec<PathBuf>,
}

/// Errors of creating or changing a group.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// The controller is not mounted or not available to this process.
    #[error(
        "the {0} controller of control groups is not mounted, or not available to this process"
    )]
    Missing(&'static str),
    /// The kernel rejected a write.
    #[error("cannot write {value:?} to {}", path.display())]
    Refused {
        /// File of the group.
        path: PathBuf,
        /// Value to be written.
        value: String,
        /// Error of the kernel.
        source: io::Error,
    },
}

impl Cgroup {
    /// Creates a group with these limits.
    pub fn new(limits: Limits) -> Result<Cgroup, CgroupError> {
        let mut group = Cgroup { directories: Vec::new() };
        if let Some(processors) = limits.processors {
            let quota = (processors * PERIOD as f64).round() as u64;
            match group.enter("cpu")? {
                (2, at) => write(&at.join("cpu.max"), &format!("{quota} {PERIOD}"))?,
                (_, at) => {
                    write(&at.join("cpu.cfs_period_us"), &PERIOD.to_string())?;
                    write(&at.join("cpu.cfs_quota_us"), &quota.to_string())?;
                }
            }
        }
        if limits.first {
            match group.enter("cpu")? {
                (2, at) => write(&at.join("cpu.weight"), "10000")?,
                (_, at) => write(&at.join("cpu.shares"), "262144")?,
            }
        }
        if let Some(bytes) = limits.memory {
            match group.enter("memory")? {
                (2, at) => write(&at.join("memory.max"), &bytes.to_string())?,
                (_, at) => write(&at.join("memory.limit_in_bytes"), &bytes.to_string())?,
            }
        }
        Ok(group)
    }

    /// Creates a command in `node` that joins the group and executes `program` with `arguments`
    /// once it reads a line on its standard input. The program then replaces the shell.
    pub fn command(&self, node: &Node, program: &Path, arguments: &[&str]) -> process::Command {
        let join = |at: &PathBuf| format!("echo $$ > {}/cgroup.procs; ", at.display());
        let joins: String = self.directories.iter().map(join).collect();
        let mut command = node.command("sh");
        command.args(["-ec", &format!("{joins} read line; exec \"$0\" \"$@\"")]);
        command.arg(program).args(arguments);
        command
    }

    /// Moves this process into the group; processes that it starts belong to the group as well.
    pub fn enter_now(self) -> Result<Inside, CgroupError> {
        for directory in &self.directories {
            write(&directory.join("cgroup.procs"), &process::id().to_string())?;
        }
        Ok(Inside(self))
    }

    /// Creates a directory in the hierarchy of `controller`; returns its version and path.
    fn enter(&mut self, controller: &'static str) -> Result<(u8, PathBuf), CgroupError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (version, above) = find(controller).ok_or(CgroupError::Missing(controller))?;
        for stale in left_behind(&above) {
            // Removal fails for a group that still has processes.
            let _ = fs::remove_dir(stale);
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = above.join(format!("{PREFIX}{}-{number}", process::id()));
        // In version 2 both controllers share a directory.
        if let Some(shared) = self.directories.first().filter(|_| version == 2) {
            return Ok((version, shared.clone()));
        }
        fs::create_dir(&path).map_err(|_| CgroupError::Missing(controller))?;
        self.directories.push(path.clone());
        Ok((version, path))
    }
}

/// Membership of this process in a group; dropping it returns the process to its former group.
#[derive(Debug)]
pub struct Inside(Cgroup);

impl Drop for Inside {
    fn drop(&mut self) {
        for directory in &self.0.directories {
            // The process's former group is the parent of this group.
            if let Some(before) = directory.parent() {
                let _ = write(&before.join("cgroup.procs"), &process::id().to_string());
            }
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for directory in &self.directories {
            // Fails while the group has processes; a later run of the lab removes the directory.
            let _ = fs::remove_dir(directory);
        }
    }
}

fn write(path: &Path, value: &str) -> Result<(), CgroupError> {
    fs::write(path, value).map_err(|source| {
        let (path, value) = (path.to_owned(), value.to_owned());
        CgroupError::Refused { path, value, source }
    })
}

/// Returns the version of the hierarchy in which `controller` is available, and the directory of
/// this process's own group there.
fn find(controller: &str) -> Option<(u8, PathBuf)> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let place = |mount: &str, group: &str| Path::new(mount).join(group.trim_start_matches('/'));
    for mount in mounts.lines() {
        let words: Vec<&str> = mount.split(' ').collect();
        let [_, at, kind, options, ..] = words[..] else { continue };
        let has = |list: &str, separator| list.split(separator).any(|word| word == controller);
        for line in own.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
            match kind {
                "cgroup" if has(options, ',') && has(controllers, ',') => {
                    return Some((1, place(at, group)));
                }
                "cgroup2" if controllers.is_empty() => {
                    let path = place(at, group);
                    let free = fs::read_to_string(path.join("cgroup.subtree_control"));
                    if has(free.unwrap_or_default().trim(), ' ') {
                        return Some((2, path));
                    }
                }
                _ => {}
            }
        }
    }
    None
}
