//! Inherited state that Rust's runtime changes before `main`, or that this process changes for
//! itself. Programs that this process starts on behalf of its caller get the original state.
//!
//! ```text
//!   exec ─▶ record (before the runtime) ─▶ runtime: SIGPIPE ignored, 0 to 2 open ─▶ main
//!                     └──── restore_in(&mut command) ─▶ program: as inherited
//! ```
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Resource, setrlimit};

use crate::process::inherited_fd_limit;

/// Inherited state. Bits 0 to 2: the descriptor of this number was closed. Other bits: the signal
/// of [`SIGNALS`] with this bit was ignored.
static INHERITED: AtomicU32 = AtomicU32::new(0);
const DESCRIPTORS: u32 = 3;
/// Signals to restore. The runtime ignores SIGPIPE; a process that waits for children must not
/// ignore SIGCHLD; a terminal sends the others.
const SIGNALS: [(u32, libc::c_int); 8] = [
    (1 << 3, libc::SIGPIPE),
    (1 << 4, libc::SIGCHLD),
    (1 << 5, libc::SIGINT),
    (1 << 6, libc::SIGQUIT),
    (1 << 7, libc::SIGTSTP),
    (1 << 8, libc::SIGHUP),
    (1 << 9, libc::SIGTTIN),
    (1 << 10, libc::SIGTTOU),
];
/// Signals that a terminal sends, as a range of [`SIGNALS`]. Most are sent to the terminal's
/// foreground process group, the last two to a background job that reads from the terminal or
/// writes to it.
const TERMINAL_SIGNALS: std::ops::Range<usize> = 2..8;

#[used]
#[unsafe(link_section = ".init_array")]
static INIT: extern "C" fn() = record;

/// Records the inherited state. Runs before the runtime starts, so it only makes system calls.
extern "C" fn record() {
    let mut inherited = 0;
    for fd in 0..DESCRIPTORS {
        // SAFETY: the call only reads the descriptor's flags.
        if unsafe { libc::fcntl(fd.cast_signed(), libc::F_GETFD) } == -1 {
            inherited |= 1 << fd;
        }
    }
    for (bit, signal) in SIGNALS {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: the kernel writes one `sigaction`, for which all zeros are a valid value.
        let ignored = unsafe {
            libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) == 0
                && action.assume_init().sa_sigaction == libc::SIG_IGN
        };
        if ignored {
            inherited |= bit;
        }
    }
    INHERITED.store(inherited, Ordering::Relaxed);
}

/// Resets SIGCHLD to its default in case the parent ignored it.
pub fn reset_sigchld() {
    // SAFETY: no handler is set.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Ignores the terminal's signals from now on: they are meant for the started programs.
pub fn ignore_terminal() {
    for (_, signal) in &SIGNALS[TERMINAL_SIGNALS] {
        // SAFETY: no handler is set.
        unsafe { libc::signal(*signal, libc::SIG_IGN) };
    }
}

/// Restores the inherited state in the child of `command`. The child must inherit its standard
/// descriptors from this process.
pub fn restore_in(command: &mut Command) {
    let inherited = INHERITED.load(Ordering::Relaxed);
    let limit = inherited_fd_limit();
    let restore = move || {
        // The inherited limit, not the one raised for this process.
        setrlimit(Resource::Nofile, limit)?;
        for (bit, signal) in SIGNALS {
            let as_inherited = if inherited & bit != 0 { libc::SIG_IGN } else { libc::SIG_DFL };
            // SAFETY: no handler is set.
            if unsafe { libc::signal(signal, as_inherited) } == libc::SIG_ERR {
                return Err(io::Error::last_os_error());
            }
        }
        for fd in (0..DESCRIPTORS).filter(|fd| inherited & 1 << fd != 0) {
            // SAFETY: nothing in the child uses the descriptor any more.
            unsafe { libc::close(fd.cast_signed()) };
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure only makes system calls; it neither allocates nor
    // takes a lock.
    unsafe { command.pre_exec(restore) };
}
