//! Calls that wait for an answer (`seccomp_unotify(2)`).

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

/// Where a program's calls are told.
#[derive(Debug)]
pub struct Listener(OwnedFd);

/// A call that waits.
#[derive(Clone, Copy, Debug)]
pub struct Notification {
    id: u64,
    /// The thread that has called, as this process numbers it.
    pub thread: u32,
    /// The number of the call.
    pub call: i64,
    /// What it was given.
    pub arguments: [u64; 6],
}

/// What a call is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It has returned this.
    Returned(i64),
    /// It has failed with this.
    Failed(i32),
    /// The kernel is to do it. Whoever calls may have changed since what its pointers point to.
    Continue,
}

impl Reply {
    /// A signal has come: the kernel has it handled, and begins the call anew if its handler says so
    /// (`ERESTARTSYS`), unless the call's time is limited (`EINTR`).
    pub fn interrupted(is_limited: bool) -> Reply {
        Reply::Failed(if is_limited { libc::EINTR } else { 512 })
    }
}

impl Listener {
    /// Who wakes whom is told to the scheduler where the kernel can be (6.6 and later).
    pub(super) fn new(fd: OwnedFd) -> Listener {
        // SAFETY: the kernel takes the flags as a number.
        let _ = unsafe { libc::ioctl(fd.as_raw_fd(), SET_FLAGS, SYNC_WAKE_UP) };
        Listener(fd)
    }

    /// The next call. It blocks until there is one; see [`AsFd`].
    ///
    /// # Errors
    /// Who called has gone meanwhile ([`io::ErrorKind::NotFound`]), or a signal came.
    pub fn receive(&self) -> io::Result<Notification> {
        // SAFETY: all zeros is a `seccomp_notif`, and what the kernel asks for.
        let mut told: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes one, which lives through the call.
        os::check(unsafe { libc::ioctl(self.0.as_raw_fd(), RECEIVE, &raw mut told) })?;
        Ok(Notification {
            id: told.id,
            thread: told.pid,
            call: told.data.nr.into(),
            arguments: told.data.args,
        })
    }

    /// Whether the call still waits: what was read of its thread meanwhile was its thread's.
    pub fn waits(&self, call: &Notification) -> bool {
        // SAFETY: the kernel reads one number, which lives through the call.
        unsafe { libc::ioctl(self.0.as_raw_fd(), IS_VALID, &raw const call.id) == 0 }
    }

    /// Reads memory of the caller, who is `task`; how many bytes there were.
    ///
    /// # Errors
    /// As [`Task::read`]; the call does not wait any more, so that another may have been read
    /// ([`io::ErrorKind::NotFound`]).
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

    /// Writes to memory of the caller, who is `task`.
    ///
    /// # Errors
    /// As [`Task::write`]; the call does not wait any more ([`io::ErrorKind::NotFound`]).
    pub fn write(&self, call: &Notification, task: &Task, to: u64, bytes: &[u8]) -> io::Result<()> {
        self.check_waits(call)?;
        task.write(to, bytes)
    }

    /// Checks that the call still waits, so that its thread's number is still its own.
    ///
    /// # Errors
    /// It does not ([`io::ErrorKind::NotFound`]).
    pub fn check_waits(&self, call: &Notification) -> io::Result<()> {
        match self.waits(call) {
            true => Ok(()),
            false => Err(io::Error::from_raw_os_error(libc::ENOENT)),
        }
    }

    /// Puts a duplicate of `from` in place of the caller's descriptor `at`, which is closed there; it is
    /// closed on exec if `cloexec` says so. The call still waits.
    ///
    /// # Errors
    /// Who called has gone, or was interrupted ([`io::ErrorKind::NotFound`]).
    pub fn put(
        &self,
        call: &Notification,
        from: BorrowedFd<'_>,
        at: i32,
        cloexec: bool,
    ) -> io::Result<()> {
        self.add(call, from, Some(at), cloexec).map(drop)
    }

    /// Gives the caller a duplicate of `from`: its number there. The call still waits.
    ///
    /// # Errors
    /// Who called has gone, or has no room.
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
        // SAFETY: the kernel reads one, which lives through the call.
        let number = unsafe { libc::ioctl(self.0.as_raw_fd(), ADD_FD, &raw mut put) };
        os::check(number.min(0)).map(|()| number)
    }

    /// Answers.
    ///
    /// # Errors
    /// Who called has gone, or was interrupted ([`io::ErrorKind::NotFound`]).
    pub fn reply(&self, call: &Notification, reply: Reply) -> io::Result<()> {
        let (val, error, flags) = match reply {
            Reply::Returned(value) => (value, 0, 0),
            Reply::Failed(errno) => (0, -errno, 0),
            Reply::Continue => (0, 0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32),
        };
        let mut said = libc::seccomp_notif_resp { id: call.id, val, error, flags };
        // SAFETY: the kernel reads one, which lives through the call.
        os::check(unsafe { libc::ioctl(self.0.as_raw_fd(), SEND, &raw mut said) })
    }
}

impl AsFd for Listener {
    /// Readable when a call waits; hung up when nobody is left who could call.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
