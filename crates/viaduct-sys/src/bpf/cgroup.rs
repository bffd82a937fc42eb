//! Cgroups to which BPF programs are attached. The programs act on the sockets of the
//! cgroup's processes.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, mkdirat, openat, unlinkat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use super::BpfError;

/// Usual mount points of cgroup version 2.
const USUAL: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// A cgroup version 2 directory.
#[derive(Debug)]
pub(super) struct Cgroup {
    directory: OwnedFd,
}

/// A cgroup for wrapped programs. It is removed on drop if it is empty.
///
/// ```text
///   viaduct-run-1            programs wrapped by the first run and by runs nested in it
///   ├── programs             the first run's BPF programs are attached here
///   └── viaduct-run-2
///       └── programs         the second run's are attached here, but not the first run's, which
///                            would see destinations that the second run has changed. The first
///                            run therefore misses the connections that the second run lets pass
/// ```
#[derive(Debug)]
pub struct Group {
    parent: Cgroup,
    name: String,
    /// Depth below the root: 1 for a child of the root.
    level: u32,
    whole: OwnedFd,
    programs: OwnedFd,
    members: OwnedFd,
}

/// Prefix of the names of our groups.
const PREFIX: &str = "viaduct-run-";
const FREEZE: &str = "cgroup.freeze";
const PROGRAMS: &str = "programs";

impl Group {
    /// Creates an empty group. Removes empty groups that ended runs have left behind. Errors: a
    /// privilege is missing, or there is no cgroup version 2.
    pub fn new() -> Result<Group, BpfError> {
        let own = Cgroup::own_path();
        let path = parent(&own);
        let level = 1 + path.split('/').filter(|part| !part.is_empty()).count() as u32;
        let parent = Cgroup::below_root(path)?;
        parent.remove_stale();
        let name = format!("{PREFIX}{}", std::process::id());
        let failed = |errno: rustix::io::Errno| no_cgroup(&name, errno.into());
        let make = |at: BorrowedFd<'_>, name: &str| {
            mkdirat(at, name, Mode::from(0o755))?;
            openat(at, name, FLAGS, Mode::empty())
        };
        let whole = make(parent.as_fd(), &name).map_err(failed)?;
        let programs = make(whole.as_fd(), PROGRAMS).map_err(failed)?;
        let write = OFlags::CLOEXEC | OFlags::WRONLY;
        let members = openat(&programs, "cgroup.procs", write, Mode::empty()).map_err(failed)?;
        Ok(Group { parent, name, level, whole, programs, members })
    }

    /// Returns the file to which a program writes `0` to join the group.
    pub fn members(&self) -> BorrowedFd<'_> {
        self.members.as_fd()
    }

    /// Returns the freezer of the group. Errors: the kernel is older than 5.2, or no descriptor is
    /// left.
    pub fn freezer(&self) -> Result<Freezer, BpfError> {
        let write = OFlags::CLOEXEC | OFlags::WRONLY;
        let state = openat(&self.whole, FREEZE, write, Mode::empty());
        let state = state.map_err(|errno| no_cgroup(&self.name, errno.into()))?;
        Ok(Freezer { state })
    }

    /// Thaws the group of a run whose process `pid` ended while the group was frozen.
    pub fn thaw_after(pid: u32) {
        let Ok(parent) = Cgroup::below_root(parent(&Cgroup::own_path())) else { return };
        let write = OFlags::CLOEXEC | OFlags::WRONLY;
        let path = format!("{PREFIX}{pid}/{FREEZE}");
        if let Ok(state) = openat(&parent.directory, path, write, Mode::empty()) {
            drop(Freezer { state });
        }
    }

    /// Returns the group's level and inode number, by which netfilter matches its sockets.
    pub fn identity(&self) -> io::Result<(u32, u64)> {
        Ok((self.level, rustix::fs::fstat(&self.whole)?.st_ino))
    }

    /// Returns whether no process is in the group or in the groups of nested runs. Errors: the
    /// state cannot be read.
    pub fn is_empty(&self) -> io::Result<bool> {
        self.has_event("populated 0")
    }

    /// Returns whether all processes of the group and of nested runs are frozen. Errors: the state
    /// cannot be read.
    pub fn is_frozen(&self) -> io::Result<bool> {
        self.has_event("frozen 1")
    }

    fn has_event(&self, what: &str) -> io::Result<bool> {
        let read = OFlags::CLOEXEC | OFlags::RDONLY;
        let file = openat(&self.whole, "cgroup.events", read, Mode::empty())?;
        let mut text = String::new();
        File::from(file).read_to_string(&mut text)?;
        Ok(text.lines().any(|line| line == what))
    }
}

/// Freezer of the processes of a group, which thaws them on drop.
#[derive(Debug)]
pub struct Freezer {
    state: OwnedFd,
}

impl Freezer {
    /// Freezes or thaws the processes.
    pub fn set(&self, frozen: bool) -> io::Result<()> {
        rustix::io::pwrite(&self.state, if frozen { b"1" } else { b"0" }, 0)?;
        Ok(())
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let _ = self.set(false);
    }
}

/// Returns the parent for a new group of a process in the cgroup `own`: the group of the innermost
/// run that contains the process, or `own` itself if no run does.
fn parent(own: &str) -> &str {
    let programs = format!("/{PROGRAMS}");
    let is_ours =
        |whole: &str| whole.rsplit('/').next().is_some_and(|name| name.starts_with(PREFIX));
    // The innermost match is tried first. Cgroups that are not ours may be named `programs` too.
    let mut ends = own.rmatch_indices(&programs[..]).map(|(at, _)| at);
    ends.find(|&at| is_ours(&own[..at])).map_or(own, |at| &own[..at])
}

impl AsFd for Group {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.programs.as_fd()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.parent.remove(&self.name);
    }
}

impl Cgroup {
    /// Opens the root of this process's cgroup namespace.
    pub(super) fn root() -> Result<Cgroup, BpfError> {
        // No other process sees a private mount, which exists until its descriptor is closed.
        let directory = private_mount().or_else(|error| visible_root().ok_or(error));
        directory.map(|directory| Cgroup { directory }).map_err(|source| no_cgroup("/", source))
    }

    /// Opens this process's own cgroup.
    pub(super) fn own() -> Result<Cgroup, BpfError> {
        Cgroup::below_root(&Cgroup::own_path())
    }

    /// Returns the path of this process's cgroup below the root.
    fn own_path() -> String {
        let text = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        text.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default().to_owned()
    }

    fn below_root(path: &str) -> Result<Cgroup, BpfError> {
        let root = Cgroup::root()?;
        // A cgroup outside our cgroup namespace falls back to the root.
        if path.is_empty() || path.starts_with("..") {
            return Ok(root);
        }
        let directory = openat(root.as_fd(), path, FLAGS, Mode::empty());
        directory
            .map(|directory| Cgroup { directory })
            .map_err(|errno| no_cgroup(path, errno.into()))
    }

    /// Opens the cgroup at `path`.
    pub(super) fn at(path: &Path) -> Result<Cgroup, BpfError> {
        let failed = |source| no_cgroup(&path.to_string_lossy(), source);
        let directory =
            rustix::fs::open(path, FLAGS, Mode::empty()).map_err(|errno| failed(errno.into()))?;
        match is_cgroup(&directory) {
            true => Ok(Cgroup { directory }),
            false => Err(failed(io::Error::other("not a directory of cgroup version 2"))),
        }
    }
}

impl Cgroup {
    /// Removes empty groups that ended processes have left behind.
    fn remove_stale(&self) {
        let Ok(list) = Dir::read_from(&self.directory) else { return };
        for entry in list.flatten() {
            let name = entry.file_name().to_string_lossy();
            // The group of a live process may be empty because its program has not started yet.
            let has_ended = |pid: &&str| !Path::new("/proc").join(pid).exists();
            if name.strip_prefix(PREFIX).filter(has_ended).is_some() {
                self.remove(&name);
            }
        }
    }

    /// Removes the group `name`, unless processes are left in it.
    fn remove(&self, name: &str) {
        if let Ok(directory) = openat(&self.directory, name, FLAGS, Mode::empty()) {
            Cgroup { directory }.remove_stale();
        }
        let inner = format!("{name}/{PROGRAMS}");
        for name in [&inner[..], name] {
            let _ = unlinkat(&self.directory, name, AtFlags::REMOVEDIR);
        }
    }
}

impl AsFd for Cgroup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

const FLAGS: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC).union(OFlags::RDONLY);

fn private_mount() -> io::Result<OwnedFd> {
    let context = fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(context.as_fd())?;
    let mount = fsmount(
        context.as_fd(),
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC,
    )?;
    // `fsmount` returns an `O_PATH` descriptor; this one can be read.
    Ok(openat(&mount, ".", FLAGS, Mode::empty())?)
}

fn visible_root() -> Option<OwnedFd> {
    let open = |path| rustix::fs::open(path, FLAGS, Mode::empty()).ok();
    USUAL.into_iter().filter_map(open).find(is_cgroup)
}

fn is_cgroup(directory: &OwnedFd) -> bool {
    const CGROUP2_SUPER_MAGIC: u64 = 0x6367_7270;
    rustix::fs::fstatfs(directory).is_ok_and(|stat| stat.f_type as u64 == CGROUP2_SUPER_MAGIC)
}

fn no_cgroup(path: &str, source: io::Error) -> BpfError {
    // Mounting the hierarchy requires a privilege, so this error is not about the path.
    if source.kind() == io::ErrorKind::PermissionDenied {
        return BpfError::Denied { action: "open a cgroup", source };
    }
    BpfError::Cgroup { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_created_within_the_group_of_the_enclosing_run() {
        let cases = [
            ("", ""),
            ("user.slice/a", "user.slice/a"),
            ("user.slice/programs", "user.slice/programs"),
            ("user.slice/viaduct-run-1/programs", "user.slice/viaduct-run-1"),
            ("viaduct-run-1/programs/container/programs", "viaduct-run-1"),
            ("viaduct-run-1/viaduct-run-2/programs", "viaduct-run-1/viaduct-run-2"),
        ];
        for (own, group) in cases {
            assert_eq!(parent(own), group, "{own}");
        }
    }
}
