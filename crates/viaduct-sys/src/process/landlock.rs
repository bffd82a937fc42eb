//! Landlock: rules by which a thread gives up access for itself and its descendants
//! (`landlock(7)`).
//!
//! Used for programs under seccomp, which may not connect TCP sockets themselves, and for processes
//! [confined](super::confine) to a few directories.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

/// `LANDLOCK_CREATE_RULESET_VERSION`.
const VERSION: libc::c_long = 1;
/// `LANDLOCK_RULE_PATH_BENEATH`.
const PATH_BENEATH: libc::c_long = 1;
/// First version with rules for TCP.
const TCP_SINCE: libc::c_long = 4;
/// First version with scopes.
const SCOPES_SINCE: libc::c_long = 6;
/// `LANDLOCK_ACCESS_NET_BIND_TCP`.
pub(crate) const BIND_TCP: u64 = 1;
/// `LANDLOCK_ACCESS_NET_CONNECT_TCP`.
pub(crate) const CONNECT_TCP: u64 = 2;
/// `LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET` and `LANDLOCK_SCOPE_SIGNAL`.
const SCOPES: u64 = 3;

/// Rights on files, `LANDLOCK_ACCESS_FS_*`.
pub(crate) mod files {
    /// Read a file, list a directory.
    pub(crate) const READ: u64 = 1 << 2 | 1 << 3;
    /// Create a socket or an empty regular file, and remove a file. Files cannot be written.
    pub(crate) const CREATE: u64 = 1 << 5 | 1 << 8 | 1 << 9;
    /// All rights, by the version that introduced them.
    pub(super) const ALL: [(libc::c_long, u64); 4] =
        [(1, 0x1fff), (2, 1 << 13), (3, 1 << 14), (5, 1 << 15)];
}

/// `struct landlock_ruleset_attr`. Older kernels know only its first fields.
#[repr(C)]
struct Attributes {
    files: u64,
    network: u64,
    scopes: u64,
}

/// `struct landlock_path_beneath_attr`.
#[repr(C, packed)]
struct PathBeneath {
    rights: u64,
    directory: i32,
}

/// Rules that forbid all access of some kinds, apart from the exceptions that are added.
pub(crate) struct Ruleset {
    fd: OwnedFd,
    /// Rights on files that the kernel knows, if the rules restrict files; otherwise 0.
    files: u64,
}

impl Ruleset {
    /// Returns rules that forbid the `network` kinds of access to TCP ports, and nothing else.
    /// Neither allocates nor takes a lock. Errors: `Unsupported` if the kernel has no such rules.
    pub(crate) fn of_tcp(network: u64) -> io::Result<Ruleset> {
        if version()? < TCP_SINCE {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ruleset::create(&Attributes { files: 0, network, scopes: 0 }, TCP_SINCE)
    }

    /// Returns rules that forbid all access to files. As far as the kernel supports it, they also
    /// forbid the `network` kinds of access to TCP ports, signals to other processes, and the
    /// abstract sockets of other processes. Errors: `Unsupported` if the kernel has no Landlock.
    pub(crate) fn of_everything(network: u64) -> io::Result<Ruleset> {
        let version = version()?;
        let known = files::ALL.iter().filter(|(since, _)| version >= *since);
        let files = known.map(|(_, rights)| rights).fold(0, |all, rights| all | rights);
        Ruleset::create(&Attributes { files, network, scopes: SCOPES }, version)
    }

    fn create(attributes: &Attributes, version: libc::c_long) -> io::Result<Ruleset> {
        let size = match version {
            ..TCP_SINCE => 8,
            TCP_SINCE..SCOPES_SINCE => 16,
            _ => size_of::<Attributes>(),
        };
        let of: *const Attributes = attributes;
        // SAFETY: the kernel reads `size` bytes of the attributes, which live through the call.
        let fd = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, of, size, 0) };
        let fd =
            i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: just opened; it has no other owner.
        Ok(Ruleset { fd: unsafe { OwnedFd::from_raw_fd(fd) }, files: attributes.files })
    }

    /// Allows `rights` on the files in `directory`, as far as the kernel knows these rights.
    pub(crate) fn allow(&self, directory: BorrowedFd<'_>, rights: u64) -> io::Result<()> {
        let rule = PathBeneath { rights: rights & self.files, directory: directory.as_raw_fd() };
        let rule: *const PathBeneath = &raw const rule;
        let fd = self.fd.as_raw_fd();
        // SAFETY: the kernel reads the rule, which lives through the call.
        let added =
            unsafe { libc::syscall(libc::SYS_landlock_add_rule, fd, PATH_BENEATH, rule, 0) };
        if added == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Enforces the rules on this thread and its descendants. Needs CAP_SYS_ADMIN or
    /// `no_new_privs`. Neither allocates nor takes a lock.
    pub(crate) fn restrict(self) -> io::Result<()> {
        // SAFETY: the call takes only numbers.
        match unsafe { libc::syscall(libc::SYS_landlock_restrict_self, self.fd.as_raw_fd(), 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Returns the version of the kernel's Landlock.
fn version() -> io::Result<libc::c_long> {
    let nothing = std::ptr::null::<Attributes>();
    // SAFETY: with this flag the kernel only returns its version, and reads no memory.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0, VERSION) };
    if version < 1 { Err(io::ErrorKind::Unsupported.into()) } else { Ok(version) }
}
