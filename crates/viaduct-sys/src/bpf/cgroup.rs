//! The cgroup whose sockets a program sees.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, mkdirat, openat, unlinkat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use super::BpfError;

/// Where control groups usually are.
const USUAL: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// A directory of cgroup version 2.
#[derive(Debug)]
pub(super) struct Cgroup {
    directory: OwnedFd,
}

/// A group of our own making, for programs that are wrapped. It is gone when this is dropped, if nobody is
/// left in it.
///
/// ```text
///   viaduct-run-1            all that is wrapped by the first, also by another that it runs
///   ├── programs             whom the first's programs of BPF see
///   └── viaduct-run-2
///       └── programs         whom the second's see: not the first's, they would see what ours have
/// ```                        changed; what passes us passes them
#[derive(Debug)]
pub struct Group {
    parent: Cgroup,
    name: String,
    /// How deep it lies: 1 below the root.
    level: u32,
    whole: OwnedFd,
    programs: OwnedFd,
    members: OwnedFd,
}

/// Begins the names of groups.
const PREFIX: &str = "viaduct-run-";
/// The file that stops all in one.
const FREEZE: &str = "cgroup.freeze";
/// The part of one where its programs are.
const PROGRAMS: &str = "programs";

impl Group {
    /// An empty one; what others have left empty is removed.
    ///
    /// # Errors
    /// A right is missing, or there is no cgroup version 2.
    pub fn new() -> Result<Group, BpfError> {
        let own = Cgroup::own_path();
        let path = parent(&own);
        let level = 1 + path.split('/').filter(|part| !part.is_empty()).count() as u32;
        let parent = Cgroup::below_root(path)?;
        parent.sweep();
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

    /// Where a program that joins writes `0`.
    pub fn members(&self) -> BorrowedFd<'_> {
        self.members.as_fd()
    }

    /// What freezes all that is in it.
    ///
    /// # Errors
    /// The kernel is older than 5.2, or no descriptor is left.
    pub fn freezer(&self) -> Result<Freezer, BpfError> {
        let write = OFlags::CLOEXEC | OFlags::WRONLY;
        let state = openat(&self.whole, FREEZE, write, Mode::empty());
        let state = state.map_err(|errno| no_cgroup(&self.name, errno.into()))?;
        Ok(Freezer { state })
    }

    /// Lets all processes of the group go on whose maker `pid` has ended while they were frozen.
    pub fn thaw_after(pid: u32) {
        let Ok(beside) = Cgroup::below_root(parent(&Cgroup::own_path())) else { return };
        let write = OFlags::CLOEXEC | OFlags::WRONLY;
        let path = format!("{PREFIX}{pid}/{FREEZE}");
        if let Ok(state) = openat(&beside.directory, path, write, Mode::empty()) {
            drop(Freezer { state });
        }
    }

    /// What netfilter knows it by, and all that is wrapped in it: its level, and its number.
    ///
    /// # Errors
    /// None are known.
    pub fn identity(&self) -> io::Result<(u32, u64)> {
        Ok((self.level, rustix::fs::fstat(&self.whole)?.st_ino))
    }

    /// Whether nobody is in it.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn is_empty(&self) -> io::Result<bool> {
        self.says("populated 0")
    }

    /// Whether all that is in it is stopped.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn is_frozen(&self) -> io::Result<bool> {
        self.says("frozen 1")
    }

    fn says(&self, what: &str) -> io::Result<bool> {
        let read = OFlags::CLOEXEC | OFlags::RDONLY;
        let file = openat(&self.programs, "cgroup.events", read, Mode::empty())?;
        let mut text = String::new();
        File::from(file).read_to_string(&mut text)?;
        Ok(text.lines().any(|line| line == what))
    }
}

/// Stops all processes of a group, and lets them go on.
#[derive(Debug)]
pub struct Freezer {
    state: OwnedFd,
}

impl Freezer {
    /// Stops them, or lets them go on. It is over when this is dropped.
    ///
    /// # Errors
    /// None are known.
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

/// Where a group of a process at `own` belongs: beside it, but inside the group of whoever wraps it.
fn parent(own: &str) -> &str {
    let programs = format!("/{PROGRAMS}");
    let is_ours =
        |whole: &str| whole.rsplit('/').next().is_some_and(|name| name.starts_with(PREFIX));
    // The last: there may be groups of others below.
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
    /// All processes that this one's cgroup namespace shows.
    pub(super) fn root() -> Result<Cgroup, BpfError> {
        // A mount that only this process has, and nobody sees: gone with it.
        let directory = private_mount().or_else(|error| visible_root().ok_or(error));
        directory.map(|directory| Cgroup { directory }).map_err(|source| no_cgroup("/", source))
    }

    /// This process's own, and those below it.
    pub(super) fn own() -> Result<Cgroup, BpfError> {
        Cgroup::below_root(&Cgroup::own_path())
    }

    /// Where this process is, below the root.
    fn own_path() -> String {
        let text = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        text.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default().to_owned()
    }

    fn below_root(path: &str) -> Result<Cgroup, BpfError> {
        let root = Cgroup::root()?;
        // One that lies outside of what is shown has the root stand for it.
        if path.is_empty() || path.starts_with("..") {
            return Ok(root);
        }
        let directory = openat(root.as_fd(), path, FLAGS, Mode::empty());
        directory
            .map(|directory| Cgroup { directory })
            .map_err(|errno| no_cgroup(path, errno.into()))
    }

    /// That at `path`.
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
    /// Removes groups that nobody is in any more, of those who could not: one whose maker lives may
    /// just wait for its program.
    fn sweep(&self) {
        let Ok(list) = Dir::read_from(&self.directory) else { return };
        for entry in list.flatten() {
            let name = entry.file_name().to_string_lossy();
            // Whoever has made it may be about to fill it.
            let left = |pid: &&str| !Path::new("/proc").join(pid).exists();
            if name.strip_prefix(PREFIX).filter(left).is_some() {
                self.remove(&name);
            }
        }
    }

    /// Removes the group `name`. Who is still in it keeps it.
    fn remove(&self, name: &str) {
        if let Ok(directory) = openat(&self.directory, name, FLAGS, Mode::empty()) {
            Cgroup { directory }.sweep();
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
    // What is mounted is only a place as yet: this opens it.
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
    // The way to all of them takes rights of its own, and the path is not what is wrong.
    if source.kind() == io::ErrorKind::PermissionDenied {
        return BpfError::Denied { action: "open a cgroup", source };
    }
    BpfError::Cgroup { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_belongs_into_that_of_whoever_wraps_us() {
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
