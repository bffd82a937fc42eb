//! Inherited state that Rust's runtime changes before `main`, or this process for itself: a
//! program that this process stands for gets it as it was.
//!
//! ```text
//!   exec ─▶ look (before the runtime) ─▶ runtime: SIGPIPE ignored, 0 to 2 open ─▶ main
//!                     └──── hand_on(&mut command) ─▶ program: as it was
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

/// Inherited state. Bits 0 to 2: that descriptor was closed. Others: the bit of [`SIGNALS`],
/// that signal was ignored.
static INHERITED: AtomicU32 = AtomicU32::new(0);
const DESCRIPTORS: u32 = 3;
/// Signals to restore. The runtime ignores the first; a process that waits for children must
/// not ignore the second; the others come from a terminal.
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
/// Signals that a terminal sends, as a range of [`SIGNALS`]: to all processes in its
/// foreground; the last two to all of a background job of which a process reads from it, or
/// writes to it.
const TERMINAL_SIGNALS: std::ops::Range<usize> = 2..8;

#[used]
#[unsafe(link_section = ".init_array")]
static INIT: extern "C" fn() = record;

/// Runs before the runtime is initialised: makes system calls only.
extern "C" fn record() {
    let mut inherited = 0;
    for fd in 0..DESCRIPTORS {
        // SAFETY: a number is looked at.
        if unsafe { libc::fcntl(fd.cast_signed(), libc::F_GETFD) } == -1 {
            inherited |= 1 << fd;
        }
    }
    for (bit, signal) in SIGNALS {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: what is written is a `sigaction`, of which all zeros is one.
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

/// Ignores a terminal's signals from now on: they are meant for the programs that this process
/// has started.
pub fn ignore_terminal() {
    for (_, signal) in &SIGNALS[TERMINAL_SIGNALS] {
        // SAFETY: no handler is set.
        unsafe { libc::signal(*signal, libc::SIG_IGN) };
    }
}

/// Restores the inherited state in the child of `command`. The child's standard descriptors
/// must be inherited from this process.
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
            // SAFETY: in the child nothing uses it any more.
            unsafe { libc::close(fd.cast_signed()) };
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes system calls alone; it neither allocates
    // nor takes a lock.
    unsafe { command.pre_exec(restore) };
}
