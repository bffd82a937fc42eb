//! Interception of a program's system calls: seccomp's user notification.
//!
//! The child installs the filter between fork and exec, and writes the number of its listener
//! descriptor to its parent: passing the descriptor itself would take a call that the filter
//! may trap. From then on a call that the filter traps waits until it is answered here. The
//! program's children inherit the filter, static programs and other runtimes included. No
//! privilege is needed: without one, the program cannot gain any either (`no_new_privs`), so
//! that set-user-ID programs run as their caller.
//!
//! ```text
//!   spawn ──fork──▶ child: filter ── the listener's number ──▶ parent: pidfd_getfd
//!                     │ exec                                          │
//!                   program ── connect(2) ──▶ waits ─────────▶ Listener::receive
//!                                               │                     │ Task: memory, descriptors
//!                                               ◀──────────────── Listener::reply
//! ```
//!
//! The supervisor must live as long as the program: without it, trapped calls fail with
//! `ENOSYS`.
#![allow(unsafe_code)]

mod abi;
pub mod epoll_watches;
mod families;
mod filter;
mod landlock;
mod listener;
mod task;

use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::thread;

pub use families::restrict_families;
pub use filter::calls;
pub use listener::{Listener, Notification, Reply};
pub use task::{Task, find_socket};

use crate::capture::filter::BpfInsn;
use crate::os;
use crate::socket::seqpacket;

/// Calls that are trapped, beside `connect` and Fast Open sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traps {
    /// Sends that may have an address.
    pub sends: bool,
    /// Opening of IP sockets that are not streams.
    pub datagrams: bool,
    /// Opening of sockets of families that may leave this host in other ways.
    pub families: bool,
    /// `getpeername` and `getsockname`, `getsockopt` of `SO_ERROR`; `setsockopt` and
    /// `getsockopt` of options that are [mirrored](crate::socket::tcp::Mirrored), even with the
    /// word.
    pub names: bool,
    /// `bind`, `listen`, `accept` and `epoll_create`; with `names`, also `getsockopt` of
    /// `SO_REUSEADDR` and `SO_REUSEPORT`, even with the word.
    pub listeners: bool,
    /// Forbids the program to connect a TCP socket by itself, where the kernel can (Landlock):
    /// the supervisor connects for it.
    pub confined: bool,
    /// Marker behind a call's arguments that exempts the call: its caller has asked already. It
    /// guards against oversight, not against programs that want to evade the filter.
    pub word: Option<u64>,
}

/// Errors of starting a program.
#[derive(Debug, thiserror::Error)]
pub enum SeccompError {
    /// Another supervisor traps this process's calls.
    #[error(
        "seccomp: another supervisor traps this process's calls already (another viaduct run, \
            or a \
         container's); use --via preload or --via cgroup"
    )]
    Nested,
    /// The kernel lacks user notification.
    #[error("seccomp: the kernel lacks user notification ({0}), which Linux 5.6 and later have")]
    Missing(io::Error),
    /// The listener was not handed over.
    #[error("seccomp: the filter's listener was not handed over: {0}")]
    Handover(io::Error),
    /// The program could not be started.
    #[error(transparent)]
    Spawn(io::Error),
}

impl Traps {
    /// Starts `command`. The calls of the program, and of all that it starts, are reported to
    /// the listener.
    ///
    /// # Errors
    /// The program cannot be started, or the filter cannot be installed.
    pub fn spawn(self, mut command: Command) -> Result<(Child, Listener), SeccompError> {
        let ours = self.put_on(&mut command).map_err(SeccompError::Handover)?;
        // The child waits for its parent before exec, and spawn for the child's exec.
        let (spawned, taken) = thread::scope(|scope| {
            let taker = scope.spawn(|| take_over(&ours));
            let spawned = command.spawn();
            // No other message will come; what has come is still read.
            let _ = rustix::net::shutdown(&ours, rustix::net::Shutdown::Both);
            (spawned, taker.join().unwrap_or(Err(SeccompError::Handover(ErrorKind::Other.into()))))
        });
        match (spawned, taken) {
            (Ok(child), Ok(listener)) => Ok((child, listener)),
            (Ok(mut child), Err(error)) => {
                // Without a listener the program could not do anything.
                let _ = child.kill().and_then(|()| child.wait());
                Err(error)
            }
            (Err(_), Err(error @ (SeccompError::Nested | SeccompError::Missing(_)))) => Err(error),
            (Err(error), _) => Err(SeccompError::Spawn(error)),
        }
    }

    /// Makes `command` install the filter before its exec and wait there for its parent, which
    /// takes the listener by the returned socket. The program does not start if the socket is
    /// closed instead.
    fn put_on(self, command: &mut Command) -> io::Result<OwnedFd> {
        let program = self.filter();
        let (ours, theirs) = seqpacket::pair()?;
        let number = ours.as_raw_fd();
        let hand_over = move || {
            // SAFETY: this is the child's copy, which has no owner there. As long as it is open
            // the child waits on, although its parent has been killed.
            unsafe { libc::close(number) };
            hand_over(&program, self.confined, &theirs)
        };
        // SAFETY: between fork and exec the closure makes system calls only; it neither
        // allocates nor takes a lock.
        unsafe { command.pre_exec(hand_over) };
        Ok(ours)
    }
}

/// Returns whether a supervisor traps this process's calls already; only one can.
pub fn is_traced() -> bool {
    // The thread of its own ends with its filter.
    let probe = || install(&filter::nothing());
    let probed = thread::scope(|scope| scope.spawn(probe).join());
    matches!(probed, Ok(Err(error)) if error.raw_os_error() == Some(libc::EBUSY))
}

/// Runs in the child: installs the filter, and sends the listener's number, or the negated
/// error.
fn hand_over(program: &[BpfInsn], confined: bool, parent: &OwnedFd) -> io::Result<()> {
    let installed = install(program);
    if confined {
        landlock::keep_from_connecting();
    }
    let said = match &installed {
        Ok(listener) => listener.as_raw_fd(),
        Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
    };
    // A write, not a send, which may be trapped.
    let said = (u64::from(std::process::id()) << 32) | u64::from(said.cast_unsigned());
    rustix::io::write(parent, &said.to_ne_bytes())?;
    if rustix::io::read(parent, &mut [0; 1])? == 0 {
        return Err(io::Error::from_raw_os_error(libc::ECANCELED));
    }
    installed.map(drop)
}

/// Runs in the parent: takes the listener of a child that has installed the filter.
fn take_over(child: &OwnedFd) -> Result<Listener, SeccompError> {
    let failed = SeccompError::Handover;
    let mut said = [0; 8];
    let length = rustix::io::read(child, &mut said).map_err(|errno| failed(errno.into()))?;
    if length < said.len() {
        return Err(failed(ErrorKind::UnexpectedEof.into()));
    }
    let said = u64::from_ne_bytes(said);
    let taken = match (said as u32).cast_signed() {
        errno if errno == -libc::EBUSY => Err(SeccompError::Nested),
        errno @ ..0 => Err(SeccompError::Missing(io::Error::from_raw_os_error(-errno))),
        number => Task::open((said >> 32) as u32)
            .and_then(|task| task.duplicate(number))
            .map(Listener::new)
            .map_err(failed),
    };
    // A child that has ended needs no reply.
    let _ = rustix::io::write(child, b"!");
    taken
}

/// Installs the filter on this thread. Where the kernel can (5.19), signals that do not kill
/// leave a call waiting whose notification was received: runtimes that interrupt their threads,
/// such as Go's, would else repeat the call again and again.
fn install(program: &[BpfInsn]) -> io::Result<OwnedFd> {
    let listen = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    let patient = listen | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    let fd = match set_filter(patient, program) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => set_filter(listen, program),
        other => other,
    }?;
    // SAFETY: the kernel has just opened it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Installs `program` on this thread. With the privilege, the process keeps it, and its
/// set-user-ID programs theirs; without it, `no_new_privs` is set for good.
fn set_filter(flags: libc::c_ulong, program: &[BpfInsn]) -> io::Result<RawFd> {
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| ErrorKind::InvalidInput)?,
        filter: program.as_ptr().cast_mut().cast(),
    };
    let set = || {
        let mode = libc::SECCOMP_SET_MODE_FILTER;
        // SAFETY: the kernel reads the program, which lives through the call.
        let fd = unsafe { libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program) };
        let fd = RawFd::try_from(fd).map_err(|_| ErrorKind::InvalidData)?;
        os::check(fd).map(|()| fd)
    };
    set().or_else(|error| {
        if error.raw_os_error() != Some(libc::EACCES) {
            return Err(error);
        }
        rustix::thread::set_no_new_privs(true)?;
        set()
    })
}

#[cfg(test)]
mod tests;
