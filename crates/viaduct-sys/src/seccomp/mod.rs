//! Interception of a program's system calls by seccomp's user notification.
//!
//! The child installs the filter between fork and exec, and writes the number of its listener
//! descriptor to its parent. It does not send the descriptor itself, as the filter may trap
//! `sendmsg`. From then on a trapped call waits until this process answers it. The program's
//! children inherit the filter, including static programs and other language runtimes. No privilege
//! is needed. If the caller is unprivileged, the program cannot gain privileges either
//! (`no_new_privs`): set-user-ID programs run as their caller.
//!
//! ```text
//!   spawn ──fork──▶ child: filter ── the listener's number ──▶ parent: pidfd_getfd
//!                     │ exec                                          │
//!                   program ── connect(2) ──▶ waits ─────────▶ Listener::receive
//!                                               │                     │ Task: memory, descriptors
//!                                               ◀──────────────── Listener::reply
//! ```
//!
//! The supervisor must outlive the program: without a supervisor, trapped calls fail with `ENOSYS`.
#![allow(unsafe_code)]

mod abi;
pub mod epoll_watches;
mod families;
mod filter;
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
use crate::process::landlock::{CONNECT_TCP, Ruleset};
use crate::socket::seqpacket;

/// Calls that are trapped in addition to `connect`, Fast Open sends, and `socket` for MPTCP or
/// SMC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traps {
    /// Sends that may have a destination address.
    pub sends: bool,
    /// `socket` for IP sockets that are not streams.
    pub datagrams: bool,
    /// `socket` for families other than IP that may reach other hosts.
    pub families: bool,
    /// `getpeername`, `getsockname`, and `getsockopt` of `SO_ERROR`. Also `setsockopt` and
    /// `getsockopt` of [mirrored](crate::socket::tcp::Mirrored) options, which `word` does not
    /// exempt.
    pub names: bool,
    /// `bind`, `listen`, `accept` and `epoll_create`. With `names`, also `getsockopt` of
    /// `SO_REUSEADDR` and `SO_REUSEPORT`. `word` exempts none of them.
    pub listeners: bool,
    /// Keeps the program from connecting TCP sockets itself, if the kernel supports this
    /// (Landlock). The supervisor connects on its behalf.
    pub confined: bool,
    /// Value that exempts a call if it is in the argument after the call's last one. It is passed
    /// by callers that have already consulted the supervisor, and does not protect against programs
    /// that want to evade the filter.
    pub word: Option<u64>,
}

/// Errors of starting a program.
#[derive(Debug, thiserror::Error)]
pub enum SeccompError {
    /// Another supervisor traps this process's calls.
    #[error(
        "seccomp: another supervisor traps this process's calls already (another viaduct run, \
         or a container's); use --via preload or --via cgroup"
    )]
    Nested,
    /// The kernel lacks user notification.
    #[error("seccomp: the kernel lacks user notification (Linux 5.6 and later have it): {0}")]
    Missing(io::Error),
    /// The kernel did not install the filter for another reason.
    #[error("seccomp: cannot install the filter: {0}")]
    Install(io::Error),
    /// The child did not hand over its listener.
    #[error("seccomp: cannot take the filter's listener from the child: {0}")]
    Handover(io::Error),
    /// The program could not be started.
    #[error(transparent)]
    Spawn(io::Error),
}

impl Traps {
    /// Starts `command`. The trapped calls of the program and of its descendants are reported to
    /// the listener. Errors: the program cannot be started, or the filter cannot be installed.
    pub fn spawn(self, mut command: Command) -> Result<(Child, Listener), SeccompError> {
        let ours = self.install_before_exec(&mut command).map_err(SeccompError::Handover)?;
        // The child waits for its parent before exec, while `spawn` waits for the child's exec, so
        // another thread takes the listener.
        let (spawned, taken) = thread::scope(|scope| {
            let taker = scope.spawn(|| take_over(&ours));
            let spawned = command.spawn();
            // No further message is expected; a message that has arrived is still read.
            let _ = rustix::net::shutdown(&ours, rustix::net::Shutdown::Both);
            (spawned, taker.join().unwrap_or(Err(SeccompError::Handover(ErrorKind::Other.into()))))
        });
        match (spawned, taken) {
            (Ok(child), Ok(listener)) => Ok((child, listener)),
            (Ok(mut child), Err(error)) => {
                // Without a listener the program's trapped calls would fail.
                let _ = child.kill().and_then(|()| child.wait());
                Err(error)
            }
            (Err(error), Ok(_) | Err(SeccompError::Handover(_) | SeccompError::Spawn(_))) => {
                Err(SeccompError::Spawn(error))
            }
            (Err(_), Err(error)) => Err(error),
        }
    }

    /// Makes the child of `command` install the filter before its exec, and wait until the parent
    /// has taken the listener with [`take_over`] on the returned socket. If the socket is closed
    /// instead, the program does not start.
    fn install_before_exec(self, command: &mut Command) -> io::Result<OwnedFd> {
        let program = self.filter();
        let (ours, theirs) = seqpacket::pair()?;
        let number = ours.as_raw_fd();
        let hand_over = move || {
            // SAFETY: this is the child's copy of the parent's end, which nothing in the child
            // owns. If it stayed open, the child would wait forever after its parent was killed.
            unsafe { libc::close(number) };
            hand_over(&program, self.confined, &theirs)
        };
        // SAFETY: between fork and exec the closure makes system calls only; it neither
        // allocates nor takes a lock.
        unsafe { command.pre_exec(hand_over) };
        Ok(ours)
    }
}

/// Returns whether a supervisor traps this process's calls already. A process can have only one.
pub fn is_traced() -> bool {
    // The filter is installed in a new thread, and ends with that thread.
    let probe = || install(&filter::nothing());
    let probed = thread::scope(|scope| scope.spawn(probe).join());
    matches!(probed, Ok(Err(error)) if error.raw_os_error() == Some(libc::EBUSY))
}

/// Runs in the child: installs the filter; sends the listener's number, or a negated error.
fn hand_over(program: &[BpfInsn], confined: bool, parent: &OwnedFd) -> io::Result<()> {
    let installed = install(program);
    if confined {
        // If a trapped call continued in the kernel, the kernel would read the call's descriptor
        // and memory again, and another thread of the program may have changed both meanwhile. If
        // the chain must not be bypassed, the program may therefore not connect TCP sockets at all.
        // The supervisor, which is not confined, connects duplicates of its sockets.
        let _ = Ruleset::of_tcp(CONNECT_TCP).and_then(Ruleset::restrict);
    }
    let said = match &installed {
        Ok(listener) => listener.as_raw_fd(),
        Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
    };
    // Uses `write`, as `send` may be trapped.
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
        errno @ ..0 => Err(install_error(io::Error::from_raw_os_error(-errno))),
        number => Task::open((said >> 32) as u32)
            .and_then(|task| task.duplicate(number))
            .map(Listener::new)
            .map_err(failed),
    };
    // Fails if the child has ended; it then needs no reply.
    let _ = rustix::io::write(child, b"!");
    taken
}

/// Attributes the error of an installation.
fn install_error(error: io::Error) -> SeccompError {
    match error.raw_os_error() {
        Some(libc::EBUSY) => SeccompError::Nested,
        Some(libc::EINVAL | libc::ENOSYS) => SeccompError::Missing(error),
        _ => SeccompError::Install(error),
    }
}

/// Installs the filter on this thread. Since Linux 5.19, only fatal signals interrupt a call whose
/// notification was received: runtimes that interrupt their threads, such as Go's, would otherwise
/// restart the call again and again.
fn install(program: &[BpfInsn]) -> io::Result<OwnedFd> {
    let listen = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    let killable = listen | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    let fd = match set_filter(killable, program) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => set_filter(listen, program),
        other => other,
    }?;
    // SAFETY: the kernel has just opened it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Installs `program` on this thread. If the process lacks CAP_SYS_ADMIN, `no_new_privs` is set
/// permanently; otherwise the process and its set-user-ID programs keep their privileges.
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
