//! Landlock rule that forbids a program direct TCP connects.
//!
//! If a trapped call continues in the kernel, the kernel reads the call's descriptor and memory
//! again, and another thread of the program may have changed both meanwhile. If the chain must not
//! be bypassed, the program may therefore not connect TCP sockets at all (`landlock(7)`, Linux
//! 6.7). The supervisor, which is not confined, connects duplicates of the program's sockets.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

/// `LANDLOCK_CREATE_RULESET_VERSION`, and the first version with a rule for connects.
const VERSION: libc::c_long = 1;
const OF_CONNECTS: libc::c_long = 4;
/// `LANDLOCK_ACCESS_NET_CONNECT_TCP`.
const CONNECT_TCP: u64 = 2;

/// `struct landlock_ruleset_attr` as of version [`OF_CONNECTS`].
#[repr(C)]
struct Ruleset {
    files: u64,
    network: u64,
}

/// Forbids this thread and its descendants to connect TCP sockets. Needs CAP_SYS_ADMIN or
/// `no_new_privs`. Neither allocates nor takes a lock. Does nothing if the kernel does not support
/// the rule.
pub(super) fn keep_from_connecting() {
    let _ = confine();
}

fn confine() -> io::Result<()> {
    let nothing = std::ptr::null::<Ruleset>();
    // SAFETY: with this flag the kernel only returns its version, and reads no memory.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0, VERSION) };
    if version < OF_CONNECTS {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let of = Ruleset { files: 0, network: CONNECT_TCP };
    let size = size_of::<Ruleset>();
    // SAFETY: the kernel reads `size` bytes of the ruleset, which lives through the call.
    let fd = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, &raw const of, size, 0) };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: just opened; it has no other owner.
    let ruleset = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: the call takes only numbers.
    match unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
