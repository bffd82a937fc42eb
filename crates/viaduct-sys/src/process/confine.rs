//! Confinement of this process: no privileges, namespaces of its own, limits, and access only to
//! the files that it needs.
//!
//! ```text
//!   CAP_SYS_ADMIN, one thread
//!     ──▶ namespaces: mounts, with some directories hidden; IPC; host name
//!     ──▶ limits: memory, descriptors, no core dump
//!     ──▶ no capabilities; no program can gain any; a user of its own, if the parent is root
//!     ──▶ Landlock: system files to read, one directory for sockets and empty files; no TCP
//!         listeners; no signals to other processes
//! ```
//!
//! The PID namespace, which the parent has created, prevents this process from signalling other
//! processes even on older kernels, whose Landlock has no rule for signals.
//!
//! Sockets and other descriptors that are already open continue to work. The process keeps its
//! network namespace, because it must reach other hosts.
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::os::fd::{AsFd as _, RawFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::str::FromStr;
use std::{fmt, io};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::{Resource, Rlimit, Signal, set_parent_process_death_signal, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, UnshareFlags, set_capabilities, set_no_new_privs, unshare_unsafe,
};

use super::inherited_fds;
use super::landlock::{BIND_TCP, Ruleset, files};

/// Directories that may be read: libraries, the resolver's files, and settings of the kernel.
const READABLE: [&str; 5] = ["/etc", "/lib", "/lib64", "/usr/lib", "/proc/sys"];
/// File of the resolver, which may be a link to a directory that changes while this process runs.
const RESOLVER: &str = "/etc/resolv.conf";
/// Maximum number of processes and threads of [`Confinement::user`].
const MAX_THREADS: u64 = 64;
const NO_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Limits of a confined process. Their text, for a command line, is
/// `USER:MEMORY:DESCRIPTORS:PARENT`, with `-` for no user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confinement {
    /// User and group of the process; `None` if it keeps those of its parent.
    pub user: Option<u32>,
    /// Maximum size of its private writable memory, in bytes.
    pub memory: u64,
    /// Maximum number of its descriptors.
    pub descriptors: u64,
    /// Inherited descriptor (`pidfd_open(2)`) of the parent, whose end also ends this process.
    pub parent: RawFd,
}

impl fmt::Display for Confinement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Confinement { user, memory, descriptors, parent } = self;
        match user {
            Some(user) => write!(f, "{user}:")?,
            None => f.write_str("-:")?,
        }
        write!(f, "{memory}:{descriptors}:{parent}")
    }
}

impl FromStr for Confinement {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Confinement, &'static str> {
        let read = || {
            let mut parts = text.split(':');
            let of = Confinement {
                user: match parts.next()? {
                    "-" => None,
                    user => Some(user.parse().ok()?),
                },
                memory: parts.next()?.parse().ok()?,
                descriptors: parts.next()?.parse().ok()?,
                parent: parts.next()?.parse().ok()?,
            };
            parts.next().is_none().then_some(of)
        };
        read().ok_or("USER:MEMORY:DESCRIPTORS:PARENT is expected")
    }
}

impl Confinement {
    /// Confines this process. It may then create files only in the current directory, and only
    /// sockets and empty files; the `hidden` directories appear empty. There must be no other
    /// thread. Errors: a privilege or a kernel feature is missing, or the parent has ended. After
    /// an error the process must end.
    pub fn enter(&self, hidden: &[&Path]) -> io::Result<()> {
        let named = |what: &'static str| {
            move |error: io::Error| io::Error::new(error.kind(), format!("{what}: {error}"))
        };
        namespaces().map_err(named("namespaces"))?;
        hidden.iter().try_for_each(|at| hide(at)).map_err(named("mounts"))?;
        self.limit().map_err(named("limits"))?;
        self.drop_privileges().map_err(named("user"))?;
        self.die_with_parent().map_err(named("parent process"))?;
        restrict_files().map_err(named("Landlock"))
    }

    fn limit(&self) -> io::Result<()> {
        let limits = [
            (Resource::Data, self.memory),
            (Resource::Nofile, self.descriptors),
            (Resource::Core, 0),
        ];
        // This limit counts all processes of the user.
        let threads = self.user.map(|_| (Resource::Nproc, MAX_THREADS));
        for (resource, most) in limits.into_iter().chain(threads) {
            setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
        }
        Ok(())
    }

    /// Changes to [`Confinement::user`], if there is one, without supplementary groups, and drops
    /// all capabilities.
    fn drop_privileges(&self) -> io::Result<()> {
        if let Some(id) = self.user {
            // SAFETY: the calls take only numbers, and a list of length 0.
            let dropped = unsafe {
                libc::setgroups(0, std::ptr::null()) == 0
                    && libc::setresgid(id, id, id) == 0
                    && libc::setresuid(id, id, id) == 0
            };
            if !dropped {
                return Err(io::Error::last_os_error());
            }
        }
        let none = CapabilitySet::empty();
        // A capability that is not inheritable cannot be ambient.
        let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
        set_capabilities(None, sets)?;
        Ok(set_no_new_privs(true)?)
    }

    /// Requests again to be killed when the parent ends: a change of the user has cancelled the
    /// earlier request.
    fn die_with_parent(&self) -> io::Result<()> {
        let parent = inherited_fds::take(self.parent)?;
        set_parent_process_death_signal(Some(Signal::KILL))?;
        let has_ended = poll(&mut [PollFd::new(&parent, PollFlags::IN)], Some(&NO_TIME))? > 0;
        if has_ended { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    }
}

fn namespaces() -> io::Result<()> {
    let own = UnshareFlags::NEWNS | UnshareFlags::NEWIPC | UnshareFlags::NEWUTS;
    // SAFETY: the flags unshare nothing that memory safety depends on.
    unsafe { unshare_unsafe(own) }?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    Ok(mount_change("/", private)?)
}

/// Mounts an empty file system at the directory `at`, in this process's namespace.
fn hide(at: &Path) -> io::Result<()> {
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(mount("none", at, "tmpfs", flags, None)?)
}

/// Forbids access to files, except to the current directory and to [`READABLE`].
fn restrict_files() -> io::Result<()> {
    let rules = Ruleset::of_everything(BIND_TCP)?;
    let open = |path: &Path| File::options().read(true).custom_flags(libc::O_PATH).open(path);
    let own = open(Path::new("."))?;
    rules.allow(own.as_fd(), files::READ | files::CREATE)?;
    let resolver = fs::canonicalize(RESOLVER).ok();
    let resolver = resolver.as_deref().and_then(Path::parent);
    for path in READABLE.into_iter().chain(["/proc/self"]).map(Path::new).chain(resolver) {
        match open(path) {
            Ok(directory) => rules.allow(directory.as_fd(), files::READ)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    rules.restrict()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsRawFd as _;
    use std::os::unix::net::{UnixListener, UnixStream};

    use rustix::process::{PidfdFlags, getpid, pidfd_open};

    use super::*;
    use crate::process::dir_lock::DirLock;
    use crate::process::{Process, die_with_parent};

    /// Environment variable that is set in the confined child of the test.
    const CHILD: &str = "VIADUCT_TEST_CONFINED";
    const USER: u32 = 1_900_000_000;

    #[test]
    fn a_confined_process_has_only_what_it_needs() {
        if std::env::var_os(CHILD).is_some() {
            return;
        }
        let place = std::env::temp_dir().join(format!("viaduct-confine-{}", std::process::id()));
        let own = place.join("all/own");
        fs::create_dir_all(&own).unwrap();
        let _others = UnixListener::bind(place.join("all/other.sock")).unwrap();
        let _parents = UnixListener::bind(place.join("parent.sock")).unwrap();
        std::os::unix::fs::chown(&own, Some(USER), Some(USER)).unwrap();
        let parent = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
        let mut command = std::process::Command::new("/proc/self/exe");
        command.args(["--ignored", "--exact", "process::confine::tests::confined"]);
        command.args(["--test-threads", "1"]).current_dir(&own);
        command.env(CHILD, parent.as_raw_fd().to_string());
        inherited_fds::leave_open(&mut command, &[parent.as_fd()]);
        die_with_parent(&mut command);
        let status = Process::spawn_in_pid_namespace(command).unwrap().wait().unwrap();
        fs::remove_dir_all(&place).unwrap();
        assert!(status.success(), "{status}");
    }

    /// Body of the child, in which this is the only test.
    #[test]
    #[ignore = "run by another test, in a process of its own"]
    fn confined() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let parent = std::env::var(CHILD).unwrap().parse().unwrap();
        let of = Confinement { user: Some(USER), memory: 64 << 20, descriptors: 100, parent };
        let sockets = ["../other.sock", "../../parent.sock"];
        for other in sockets {
            UnixStream::connect(other).unwrap();
        }
        of.enter(&["..", "../.."].map(Path::new)).unwrap();
        for other in sockets {
            let error = UnixStream::connect(other).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::NotFound, "{other}: {error}");
        }
        let _client = TcpStream::connect(at).unwrap();
        listener.accept().unwrap();
        UdpSocket::bind("127.0.0.1:0").unwrap();
        UnixListener::bind("own.sock").unwrap();
        drop(DirLock::take(Path::new(".")).unwrap());
        File::options().read(true).mode(0o600).custom_flags(libc::O_CREAT).open("own").unwrap();
        fs::read_to_string("/etc/passwd").unwrap();
        let denied = |error: io::Error| {
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        };
        denied(TcpListener::bind("127.0.0.1:0").unwrap_err());
        for file in ["own", "own.new", "/tmp/other"] {
            denied(fs::write(file, "text").unwrap_err());
        }
        denied(fs::read("/proc/1/status").unwrap_err());
        denied(std::process::Command::new("/bin/true").status().unwrap_err());
        assert_eq!(std::process::id(), 1, "the first process of its namespace");
        assert_eq!(rustix::process::geteuid().as_raw(), USER);
        assert!(rustix::thread::capabilities(None).unwrap().permitted.is_empty());
        assert_eq!(rustix::process::getrlimit(Resource::Data).maximum, Some(64 << 20));
    }
}
