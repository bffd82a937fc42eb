//! Inherited descriptors: from the service manager (systemd's socket activation), or from another
//! process of this program.
//!
//! ```text
//!   LISTEN_PID=<us> LISTEN_FDS=2          listen_fds() ─▶ 3, 4
//!   leave_open(&mut command, [7, 9]) ─ exec ─▶  take(7), take(9)
//! ```
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::env;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

/// First descriptor of socket activation.
const FIRST: RawFd = 3;

/// Descriptors that were taken, so that none gets a second owner.
static TAKEN: Mutex<BTreeSet<RawFd>> = Mutex::new(BTreeSet::new());

/// Takes the sockets that a service manager has opened for this process, in the manager's order.
/// Empty if no manager has started this process, or on a second call. Errors: the environment names
/// descriptors that are not open.
pub fn listen_fds() -> io::Result<Vec<OwnedFd>> {
    let number = |name: &str| env::var(name).ok()?.parse::<i32>().ok();
    let ours = number("LISTEN_PID") == Some(std::process::id().cast_signed());
    let count = number("LISTEN_FDS").filter(|_| ours).unwrap_or(0);
    let fresh = |fd: &RawFd| !taken().contains(fd);
    (FIRST..FIRST.saturating_add(count)).filter(fresh).map(take).collect()
}

/// Takes the descriptor `fd`, which the parent has left open for this process, and sets
/// close-on-exec on it. Errors: the descriptor is not open (`EBADF`), or was taken before, was
/// opened by this process itself, or is a standard descriptor (`EBUSY`).
pub fn take(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: only borrowed, to check whether it is open.
    let looked_at = unsafe { BorrowedFd::borrow_raw(fd) };
    let flags = fcntl_getfd(looked_at)?;
    // All descriptors that this process has opened are close-on-exec; any other is inherited.
    if fd < FIRST || flags.contains(FdFlags::CLOEXEC) || !taken().insert(fd) {
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    fcntl_setfd(looked_at, flags | FdFlags::CLOEXEC)?;
    // SAFETY: the descriptor is open, was not opened by this process (such descriptors are
    // close-on-exec), and was not taken before.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Takes all inherited descriptors that were not taken yet. They are not made close-on-exec:
/// programs that this process starts inherit them. A second call returns none. Errors: there is no
/// `/proc`.
pub fn take_rest() -> io::Result<Vec<OwnedFd>> {
    let mut rest = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let Some(fd) = entry?.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok())
        else {
            continue;
        };
        // SAFETY: only borrowed, to read its flags.
        let Ok(flags) = fcntl_getfd(unsafe { BorrowedFd::borrow_raw(fd) }) else { continue };
        // As in `take`: a descriptor that is not close-on-exec is inherited.
        if fd >= FIRST && !flags.contains(FdFlags::CLOEXEC) && taken().insert(fd) {
            // SAFETY: as in `take`.
            rest.push(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }
    Ok(rest)
}

fn taken() -> std::sync::MutexGuard<'static, BTreeSet<RawFd>> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Leaves descriptors open in the child of `command`, under the same numbers, for the program to
/// [`take`]. They must be open when the child is spawned.
pub fn leave_open(command: &mut Command, descriptors: &[BorrowedFd<'_>]) {
    let numbers: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let open = move || {
        for &fd in &numbers {
            // SAFETY: borrowed for the call, which fails if the number is not open.
            fcntl_setfd(unsafe { BorrowedFd::borrow_raw(fd) }, FdFlags::empty())?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure only makes system calls; it neither allocates nor
    // takes a lock.
    unsafe { command.pre_exec(open) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsFd;

    #[test]
    fn a_program_inherits_only_the_descriptors_that_are_left_open() {
        let (kept, other) = (io::pipe().unwrap(), io::pipe().unwrap());
        let (fd, closed) = (kept.1.as_raw_fd(), other.1.as_raw_fd());
        let mut command = Command::new("sh");
        // The redirection is by path, as a shell accepts only descriptor numbers of one digit.
        let script = format!("echo hello >/proc/self/fd/{fd} && [ ! -e /proc/self/fd/{closed} ]");
        command.args(["-c", &script]);
        leave_open(&mut command, &[kept.1.as_fd()]);
        assert!(command.status().unwrap().success());
        let (mut reader, writer) = kept;
        drop((command, writer));
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello\n");
    }

    #[test]
    fn only_inherited_descriptors_can_be_taken() {
        let own = io::pipe().unwrap();
        let busy = take(own.0.as_raw_fd()).unwrap_err();
        assert_eq!(busy.raw_os_error(), Some(libc::EBUSY));
        assert_eq!(take(9_999).unwrap_err().raw_os_error(), Some(libc::EBADF));
        // SAFETY: just opened; it has no other owner.
        let outside = unsafe { libc::dup(own.0.as_raw_fd()) };
        let taken = take(outside).unwrap();
        assert!(fcntl_getfd(&taken).unwrap().contains(FdFlags::CLOEXEC));
        assert!(listen_fds().unwrap().is_empty());
    }
}
