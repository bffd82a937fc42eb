//! Signals as events, with their origin.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;

use crate::os;

/// Signals that are blocked and read as events.
pub struct BlockedSignals {
    fd: OwnedFd,
    /// Signal mask before the signals were blocked.
    before: libc::sigset_t,
}

/// A signal that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedSignal {
    /// Signal number.
    pub signal: i32,
    /// True if a process has sent the signal; false if the kernel has, for example on behalf of the
    /// terminal, which signals the whole process group.
    pub sent: bool,
}

impl BlockedSignals {
    /// Blocks all signals that can be blocked, except those raised by faults, in the calling thread
    /// and in threads that it starts later. Errors: no descriptor is left.
    pub fn block() -> io::Result<BlockedSignals> {
        let set = blockable();
        // SAFETY: `set` is initialised; the call reads it and returns a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC) };
        os::check(fd)?;
        // SAFETY: just opened; it has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut before = MaybeUninit::zeroed();
        // SAFETY: as above; the old set is written.
        let blocked =
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, before.as_mut_ptr()) };
        if blocked != 0 {
            return Err(io::Error::from_raw_os_error(blocked));
        }
        // SAFETY: the set was written by the call.
        let before = unsafe { before.assume_init() };
        Ok(BlockedSignals { fd, before })
    }

    /// Restores the earlier signal mask in the child of `command`.
    pub fn release(&self, command: &mut Command) {
        let before = self.before;
        let release = move || {
            // SAFETY: the set is a copy that lives in the closure.
            let set = unsafe {
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut())
            };
            if set == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(set)) }
        };
        // SAFETY: between fork and exec the closure makes one system call; it neither allocates
        // nor takes a lock.
        unsafe { command.pre_exec(release) };
    }

    /// Returns whether `signal` is pending, that is, received but not read yet. A later
    /// [`SIGCONT`](libc::SIGCONT) discards a pending [`SIGTSTP`](libc::SIGTSTP), and vice versa.
    pub fn is_pending(&self, signal: i32) -> bool {
        let mut pending = MaybeUninit::zeroed();
        // SAFETY: the set is zeroed, which is a valid set, and written by the first call before the
        // second reads it.
        unsafe {
            libc::sigpending(pending.as_mut_ptr());
            libc::sigismember(pending.as_ptr(), signal) == 1
        }
    }

    /// Waits for the next signal and returns it.
    pub fn read(&self) -> io::Result<ReceivedSignal> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the kernel writes at most `size` bytes, which `info` has.
        let read = unsafe { libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        if read < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the struct consists of integers; it was zeroed, and then written by the kernel.
        let info = unsafe { info.assume_init() };
        Ok(ReceivedSignal { signal: info.ssi_signo.cast_signed(), sent: info.ssi_code <= 0 })
    }
}

impl AsFd for BlockedSignals {
    /// Readable when a signal is pending.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Ignores `signals` in the child of `command` until the program installs its handlers.
pub fn ignore_at_start(command: &mut Command, signals: &'static [i32]) {
    let ignore = move || {
        for &signal in signals {
            // SAFETY: the signal is ignored, so that it runs no code of ours.
            if unsafe { libc::signal(signal, libc::SIG_IGN) } == libc::SIG_ERR {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure only makes system calls; it neither allocates nor
    // takes a lock.
    unsafe { command.pre_exec(ignore) };
}

/// Blocks `signals` in the child of `command`: signals that the child receives stay pending until
/// it calls [`unblock`].
pub fn block_at_start(command: &mut Command, signals: &'static [i32]) {
    let block = move || mask(libc::SIG_BLOCK, signals);
    // SAFETY: between fork and exec the closure makes one system call; it neither allocates nor
    // takes a lock.
    unsafe { command.pre_exec(block) };
}

/// Unblocks `signals` in the calling thread, and in threads that it starts later.
pub fn unblock(signals: &[i32]) -> io::Result<()> {
    mask(libc::SIG_UNBLOCK, signals)
}

fn mask(how: i32, signals: &[i32]) -> io::Result<()> {
    let mut set = MaybeUninit::zeroed();
    // SAFETY: the set is emptied, which initialises it, before signals are added to it and before
    // the last call reads it.
    let error = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for &signal in signals {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(how, set.as_ptr(), ptr::null_mut())
    };
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// Sends `signal` to process `pid`. Errors: the process has ended, or belongs to another user.
pub fn send(pid: u32, signal: i32) -> io::Result<()> {
    // SAFETY: no memory is involved.
    os::check(unsafe { libc::kill(pid.cast_signed(), signal) })
}

/// Ends this process with `signal`, which has ended the wrapped program. There is no core dump of
/// this process, only that of the program.
pub fn end_by(signal: i32) -> ! {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the set and the limit are initialised and live through the calls. If the process
    // survives the signal, it exits.
    unsafe {
        // A program that handles core dumps (core_pattern) is started despite a limit of 0, but not
        // for a process that is not dumpable.
        libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        libc::signal(signal, libc::SIG_DFL);
        let mut set = MaybeUninit::zeroed();
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), ptr::null_mut());
        libc::raise(signal);
        libc::_exit(128 + signal)
    }
}

/// Stops this process with `signal`. Returns when the process is continued, or immediately if the
/// kernel ignores the signal, as it does in an orphaned process group.
pub fn stop(signal: i32) {
    let mut before = MaybeUninit::zeroed();
    // SAFETY: the sets are initialised before they are read, and live through the calls.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        let mut set = MaybeUninit::zeroed();
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        libc::raise(signal);
        // A pending blocked signal stops the process here; SIGSTOP has stopped it already.
        libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), before.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut());
    }
}

fn blockable() -> libc::sigset_t {
    let mut set = MaybeUninit::zeroed();
    // SAFETY: the set is filled, which initialises it, before signals are removed from it.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        for fault in
            [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT, libc::SIGTRAP]
        {
            libc::sigdelset(set.as_mut_ptr(), fault);
        }
        set.assume_init()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::process::Process;

    #[test]
    fn a_signal_stays_pending_in_a_child_that_was_started_with_it_blocked() {
        let mut command = Command::new("sleep");
        command.arg("60");
        block_at_start(&mut command, &[libc::SIGTERM, libc::SIGHUP]);
        let child = Process::spawn(command).unwrap();
        send(child.id(), libc::SIGTERM).unwrap();
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let set = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            u64::from_str_radix(line.trim(), 16).unwrap()
        };
        let bit = |signal: i32| 1_u64 << (signal - 1);
        assert_eq!(set("SigBlk:"), bit(libc::SIGTERM) | bit(libc::SIGHUP));
        assert_eq!(set("ShdPnd:"), bit(libc::SIGTERM));
    }

    #[test]
    fn unblocked_signals_are_no_longer_blocked() {
        mask(libc::SIG_BLOCK, &[libc::SIGUSR2, libc::SIGHUP]).unwrap();
        unblock(&[libc::SIGUSR2]).unwrap();
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        let blocked = u64::from_str_radix(blocked.trim(), 16).unwrap();
        unblock(&[libc::SIGHUP]).unwrap();
        let bit = |signal: i32| 1_u64 << (signal - 1);
        assert_eq!(blocked & (bit(libc::SIGUSR2) | bit(libc::SIGHUP)), bit(libc::SIGHUP));
    }
}
