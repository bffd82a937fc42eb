//! What whoever started this process has set, and the runtime of Rust changes before `main`: a program that
//! this process stands for is to have it as it was.
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

/// Bits 0 to 2: that descriptor was closed. Others: [`SIGNALS`] in their order, that was ignored.
static FOUND: AtomicU32 = AtomicU32::new(0);
const DESCRIPTORS: u32 = 3;
/// The runtime ignores the one, and who waits for children must not ignore the other.
const SIGNALS: [(u32, libc::c_int); 2] = [(1 << 3, libc::SIGPIPE), (1 << 4, libc::SIGCHLD)];

#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

/// It runs before the runtime is there: system calls, and nothing else.
extern "C" fn look() {
    let mut found = 0;
    for fd in 0..DESCRIPTORS {
        // SAFETY: a number is looked at.
        if unsafe { libc::fcntl(fd.cast_signed(), libc::F_GETFD) } == -1 {
            found |= 1 << fd;
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
            found |= bit;
        }
    }
    FOUND.store(found, Ordering::Relaxed);
}

/// Has the kernel tell this process of its children, whoever ignored that.
pub fn hear_of_children() {
    // SAFETY: no handler is set.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Has `command` find what this process has found. What it is to read or write at its standard descriptors
/// must be this process's own.
pub fn hand_on(command: &mut Command) {
    let found = FOUND.load(Ordering::Relaxed);
    let restore = move || {
        for (bit, signal) in SIGNALS {
            // SAFETY: no handler is set.
            if found & bit != 0 && unsafe { libc::signal(signal, libc::SIG_IGN) } == libc::SIG_ERR {
                return Err(io::Error::last_os_error());
            }
        }
        for fd in (0..DESCRIPTORS).filter(|fd| found & 1 << fd != 0) {
            // SAFETY: in the child nobody uses it any more.
            unsafe { libc::close(fd.cast_signed()) };
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes system calls alone; it neither allocates nor takes a
    // lock.
    unsafe { command.pre_exec(restore) };
}
