//! Listener for trapped calls, which wait for a reply (`seccomp_unotify(2)`).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::Task;
use crate::os;

// `linux/seccomp.h`: _IOWR('!', 0, struct seccomp_notif) and so on.
const RECEIVE: libc::Ioctl = 0xc050_2100_u32 as libc::Ioctl;
const SEND: libc::Ioctl = 0xc018_2101_u32 as libc::Ioctl;
const IS_VALID: libc::Ioctl = 0x4008_2102;
const ADD_FD: libc::Ioctl = 0x4018_2103;
const SET_FLAGS: libc::Ioctl = 0x4008_2104;
const SYNC_WAKE_UP: u64 = 1;

/// Listener for a program's trapped calls.
#[derive(Debug)]
pub struct Listener(OwnedFd);

/// A trapped call that waits for a reply.
#[derive(Clone, Copy, Debug)]
pub struct Notification {
    id: u64,
    /// Thread ID of the caller, in this process's PID namespace.
    pub thread: u32,
    /// Number of the system call.
    pub call: i64,
    /// Arguments.
    pub arguments: [u64; 6],
}

/// Answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The call returns this value.
    Returned(i64),
    /// The call fails with this error number.
    Failed(i32),
    /// The kernel runs the call, whose memory the program may have changed meanwhile.
    Continue,
}

impl Reply {
    /// Returns the reply to a call that a signal has interrupted. The kernel runs the handler, and
    /// restarts the call if the handler has `SA_RESTART` (`ERESTARTSYS`). If `is_limited`, the call
    /// has a timeout and fails with `EINTR` instead.
    pub fn interrupted(is_limited: bool) -> Reply {
        Reply::Failed(if is_limited { libc::EINTR } else { 512 })
    }
}

impl Listener {
    /// Wraps the listener's descriptor. Enables synchronous wake-ups, a hint to the scheduler, if
    /// the kernel supports them (6.6 and later).
    pub(super) fn new(fd: OwnedFd) -> Listener {
        // SAFETY: the kernel takes the flags as a number.
        let _ = unsafe { libc::ioctl(fd.as_raw_fd(), SET_FLAGS, SYNC_WAKE_UP) };
        Listener(fd)
    }

    /// Waits for the next call and returns it. To poll for calls, see [`AsFd`]. Errors: the caller
    /// is gone ([`io::ErrorKind::NotFound`]), or a signal arrived.
    pub fn receive(&self) -> io::Result<Notification> {
        // SAFETY: all zeros are a valid `seccomp_notif`, and the kernel requires them.
        let mut told: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes one `seccomp_notif`, which lives through the call.
        os::check(unsafe { libc::ioctl(self.0.as_raw_fd(), RECEIVE, &raw mut told) })?;
        Ok(Notification {
            id: told.id,
            thread: told.pid,
            call: told.data.nr.into(),
            arguments: told.data.args,
        })
    }

    /// Returns whether the call still waits. If so, its thread ID has not been reused, and data
    /// that was read with that ID is the caller's.
    pub fn waits(&self, call: &Notification) -> bool {
        // SAFETY: the kernel reads one number, which lives through the call.
        unsafe { libc::ioctl(self.0.as_raw_fd(), IS_VALID, &raw const call.id) == 0 }
    }

    /// Reads memory of the caller, `task`, and returns the number of bytes read. Errors: those of
    /// [`Task::read`], or the call no longer waits ([`io::ErrorKind::NotFound`]), so the memory may
    /// be another thread's.
    pub fn read(
        &self,
        call: &Notification,
        task: &Task,
        from: u64,
        to: &mut [u8],
    ) -> io::Result<usize> {
        let read = task.read(from, to);
        self.check_waits(call)?;
        read
    }

    /// Writes to memory of the caller, `task`. Errors: those of [`Task::write`], or the call no
    /// longer waits ([`io::ErrorKind::NotFound`]).
    pub fn write(&self, call: &Notification, task: &Task, to: u64, bytes: &[u8]) -> io::Result<()> {
        self.check_waits(call)?;
        task.write(to, bytes)
    }

    /// Checks that the call still waits, so that its thread ID has not been reused. Errors: the
    /// call no longer waits ([`io::ErrorKind::NotFound`]).
    pub fn check_waits(&self, call: &Notification) -> io::Result<()> {
        match self.waits(call) {
            true => Ok(()),
            false => Err(io::Error::from_raw_os_error(libc::ENOENT)),
        }
    }

    /// Replaces the caller's descriptor `at` by a duplicate of `from`, close-on-exec if
    /// `cloexec` is set. The call continues to wait. Errors: the caller is gone, or was
    /// interrupted ([`io::ErrorKind::NotFound`]).
    pub fn put(
        &self,
        call: &Notification,
        from: BorrowedFd<'_>,
        at: i32,
        cloexec: bool,
    ) -> io::Result<()> {
        self.add(call, from, Some(at), cloexec).map(drop)
    }

    /// Opens a duplicate of `from` in the caller, and returns its descriptor number there. The call
    /// continues to wait. Errors: the caller is gone, or has no descriptor left.
    pub fn give(
        &self,
        call: &Notification,
        from: BorrowedFd<'_>,
        cloexec: bool,
    ) -> io::Result<i32> {
        self.add(call, from, None, cloexec)
    }

    fn add(
        &self,
        call: &Notification,
        from: BorrowedFd<'_>,
        at: Option<i32>,
        cloexec: bool,
    ) -> io::Result<i32> {
        let mut put = libc::seccomp_notif_addfd {
            id: call.id,
            flags: if at.is_some() { libc::SECCOMP_ADDFD_FLAG_SETFD as u32 } else { 0 },
            srcfd: from.as_raw_fd().cast_unsigned(),
            newfd: at.unwrap_or(0).cast_unsigned(),
            newfd_flags: if cloexec { libc::O_CLOEXEC.cast_unsigned() } else { 0 },
        };
        // SAFETY: the kernel reads one struct, which lives through the call.
        let number = unsafe { libc::ioctl(self.0.as_raw_fd(), ADD_FD, &raw mut put) };
        os::check(number.min(0)).map(|()| number)
    }

    /// Answers the call. Errors: the caller is gone or interrupted ([`io::ErrorKind::NotFound`]).
    pub fn reply(&self, call: &Notification, reply: Reply) -> io::Result<()> {
        let (val, error, flags) = match reply {
            Reply::Returned(value) => (value, 0, 0),
            Reply::Failed(errno) => (0, -errno, 0),
            Reply::Continue => (0, 0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32),
        };
        let mut said = libc::seccomp_notif_resp { id: call.id, val, error, flags };
        // SAFETY: the kernel reads one struct, which lives through the call.
        os::check(unsafe { libc::ioctl(self.0.as_raw_fd(), SEND, &raw mut said) })
    }
}

impl AsFd for Listener {
    /// Readable when a call waits. Hung up (`POLLHUP`) when no process with the filter is left.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
