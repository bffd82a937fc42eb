//! Confinement of this process: a user without privileges, namespaces of its own, limits, and no
//! files but those that it needs.
//!
//! ```text
//!   root, one thread ──▶ namespaces: mounts, IPC, host name
//!                    ──▶ limits: memory, descriptors, processes, no core dump
//!                    ──▶ a user of its own, without capabilities; no program can gain any
//!                    ──▶ Landlock: system files to read, one directory to write; no TCP listeners;
//!                        no signals to other processes
//! ```
//!
//! Sockets and other descriptors that are open already continue to work. The network namespace
//! stays: the process is to reach other hosts.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::str::FromStr;
use std::{fmt, io};

use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, getppid, set_parent_process_death_signal, setrlimit,
};
use rustix::thread::{UnshareFlags, set_no_new_privs, unshare_unsafe};

use super::landlock::{BIND_TCP, Ruleset, files};

/// Directories that may be read: libraries, the resolver's files, and settings of the kernel.
const READABLE: [&str; 5] = ["/etc", "/lib", "/lib64", "/usr/lib", "/proc/sys"];
/// Maximum number of processes and threads of the user.
const MAX_THREADS: u64 = 64;

/// Limits of a confined process. Their text, for a command line, is
/// `USER:MEMORY:DESCRIPTORS:PARENT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confinement {
    /// User and group of the process.
    pub user: u32,
    /// Maximum size of its writable memory, in bytes.
    pub memory: u64,
    /// Maximum number of its descriptors.
    pub descriptors: u64,
    /// Process whose end also ends this one.
    pub parent: u32,
}

impl fmt::Display for Confinement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Confinement { user, memory, descriptors, parent } = self;
        write!(f, "{user}:{memory}:{descriptors}:{parent}")
    }
}

impl FromStr for Confinement {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Confinement, &'static str> {
        let read = || {
            let mut parts = text.split(':');
            let of = Confinement {
                user: parts.next()?.parse().ok()?,
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
    /// Confines this process. It may write only to the current directory. There must be no other
    /// thread. Errors: root's privileges or a kernel feature are missing, or the parent has ended.
    /// After an error the process must end.
    pub fn enter(&self) -> io::Result<()> {
        let named = |what: &'static str| {
            move |error: io::Error| io::Error::new(error.kind(), format!("{what}: {error}"))
        };
        namespaces().map_err(named("namespaces"))?;
        self.limit().map_err(named("limits"))?;
        self.drop_privileges().map_err(named("user"))?;
        self.die_with_parent().map_err(named("parent process"))?;
        restrict_files().map_err(named("Landlock"))
    }

    fn limit(&self) -> io::Result<()> {
        let limits = [
            (Resource::Data, self.memory),
            (Resource::Nofile, self.descriptors),
            (Resource::Nproc, MAX_THREADS),
            (Resource::Core, 0),
        ];
        for (resource, most) in limits {
            setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
        }
        Ok(())
    }

    /// Becomes the user, without supplementary groups and capabilities.
    fn drop_privileges(&self) -> io::Result<()> {
        let id = self.user;
        // SAFETY: the calls take only numbers, and a list of length 0.
        let dropped = unsafe {
            libc::setgroups(0, std::ptr::null()) == 0
                && libc::setresgid(id, id, id) == 0
                && libc::setresuid(id, id, id) == 0
        };
        if !dropped {
            return Err(io::Error::last_os_error());
        }
        Ok(set_no_new_privs(true)?)
    }

    /// Requests again to be killed when the parent ends: the change of the user has cancelled the
    /// earlier request.
    fn die_with_parent(&self) -> io::Result<()> {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        match getppid().map(Pid::as_raw_nonzero) {
            Some(pid) if pid.get().cast_unsigned() == self.parent => Ok(()),
            _ => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

fn namespaces() -> io::Result<()> {
    let own = UnshareFlags::NEWNS | UnshareFlags::NEWIPC | UnshareFlags::NEWUTS;
    // SAFETY: the flags unshare nothing that memory safety depends on.
    unsafe { unshare_unsafe(own) }?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    Ok(mount_change("/", private)?)
}

/// Forbids access to files, except to the current directory and to [`READABLE`].
fn restrict_files() -> io::Result<()> {
    let rules = Ruleset::of_everything(BIND_TCP)?;
    let open = |path: &str| {
        std::fs::OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(Path::new(path))
    };
    let own: File = open(".")?;
    rules.allow(own.as_fd(), files::READ | files::WRITE)?;
    for path in READABLE.into_iter().chain(["/proc/self"]) {
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
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::process::{Process, die_with_parent};

    /// Set in the environment of the confined child of the test.
    const CHILD: &str = "VIADUCT_TEST_CONFINED";
    const USER: u32 = 1_900_000_000;

    #[test]
    fn a_confined_process_has_only_what_it_needs() {
        if std::env::var_os(CHILD).is_some() {
            return;
        }
        let place = std::env::temp_dir().join(format!("viaduct-confine-{}", std::process::id()));
        std::fs::create_dir_all(&place).unwrap();
        std::os::unix::fs::chown(&place, Some(USER), Some(USER)).unwrap();
        let mut command = std::process::Command::new("/proc/self/exe");
        command.args(["--ignored", "--exact", "process::confine::tests::confined"]);
        command.args(["--test-threads", "1"]).env(CHILD, "1").current_dir(&place);
        die_with_parent(&mut command);
        let status = Process::spawn(command).unwrap().wait().unwrap();
        std::fs::remove_dir_all(&place).unwrap();
        assert!(status.success(), "{status}");
    }

    /// Body of the child, in which this is the only test.
    #[test]
    #[ignore = "run by another test, in a process of its own"]
    fn confined() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (at, parent) = (listener.local_addr().unwrap(), getppid().unwrap());
        let parent_pid = parent.as_raw_nonzero().get().cast_unsigned();
        let of = Confinement { user: USER, memory: 64 << 20, descriptors: 100, parent: parent_pid };
        of.enter().unwrap();
        let _client = TcpStream::connect(at).unwrap();
        listener.accept().unwrap();
        UdpSocket::bind("127.0.0.1:0").unwrap();
        UnixListener::bind("own.sock").unwrap();
        std::fs::write("own", "text").unwrap();
        std::fs::read_to_string("/etc/passwd").unwrap();
        let denied = |error: io::Error| {
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        };
        denied(TcpListener::bind("127.0.0.1:0").unwrap_err());
        denied(std::fs::write("/tmp/other", "text").unwrap_err());
        denied(std::fs::read("/proc/1/status").unwrap_err());
        denied(std::process::Command::new("/bin/true").status().unwrap_err());
        denied(rustix::process::kill_process(parent, Signal::CONT).unwrap_err().into());
        assert_eq!(rustix::process::geteuid().as_raw(), USER);
        assert_eq!(rustix::process::getrlimit(Resource::Data).maximum, Some(64 << 20));
    }
}
