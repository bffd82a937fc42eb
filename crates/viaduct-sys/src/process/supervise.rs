//! Supervision of wrapped programs: changes of their state, and reaping of orphans.
#![allow(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::process::{
    Pid, WaitOptions, WaitStatus, getpgid, getpgrp, getpid, getsid, set_child_subreaper, setsid,
    waitpid,
};
use serde::{Deserialize, Serialize};

use crate::os;

/// State change of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StateChange {
    /// Stopped by this signal.
    Stopped(i32),
    /// Continued.
    Continued,
    /// Exited with this status.
    Exited(i32),
    /// Killed by this signal.
    Killed(i32),
}

/// Makes the child of `command` join the cgroup whose `cgroup.procs` is open as `members`.
pub fn join_cgroup(command: &mut Command, members: BorrowedFd<'_>) {
    let members = members.as_raw_fd();
    let join_cgroup = move || {
        // SAFETY: a system call that reads one constant byte; it fails if the number is not open.
        let wrote = unsafe { libc::write(members, b"0".as_ptr().cast(), 1) };
        if wrote == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: between fork and exec the closure makes one system call; it neither allocates nor
    // takes a lock.
    unsafe { command.pre_exec(join_cgroup) };
}

/// Waits for a state change of child `pid`, and reaps orphans meanwhile. Errors: no such child.
pub fn wait(pid: u32) -> io::Result<StateChange> {
    loop {
        if let Some(change) = changed(pid)? {
            return Ok(change);
        }
        match peek(libc::WEXITED | libc::WSTOPPED | libc::WCONTINUED) {
            Ok(Some(other)) if other.as_raw_pid().cast_unsigned() != pid => {
                if !reap_orphan(other) {
                    thread::sleep(REAP_POLL_INTERVAL);
                }
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns child `pid`'s state change since the last call, without waiting. Errors: no such child.
pub fn changed(pid: u32) -> io::Result<Option<StateChange>> {
    look(pid, WaitOptions::NOHANG)
}

fn look(pid: u32, how: WaitOptions) -> io::Result<Option<StateChange>> {
    let pid = Pid::from_raw(pid.cast_signed()).ok_or(io::ErrorKind::InvalidInput)?;
    match waitpid(Some(pid), how | WaitOptions::UNTRACED | WaitOptions::CONTINUED) {
        Ok(waited) => Ok(waited.map(|(_, status)| change(status))),
        Err(rustix::io::Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn change(status: WaitStatus) -> StateChange {
    if let Some(signal) = status.stopping_signal() {
        StateChange::Stopped(signal)
    } else if let Some(signal) = status.terminating_signal() {
        StateChange::Killed(signal)
    } else if status.continued() {
        StateChange::Continued
    } else {
        StateChange::Exited(status.exit_status().unwrap_or_default())
    }
}

/// Reaps orphans that have ended, without waiting.
pub fn reap() {
    let _ = reap_all();
}

/// Reaps orphans like [`reap`]. Returns true if no child is left.
pub fn reap_all() -> bool {
    loop {
        match peek(libc::WEXITED | libc::WNOHANG) {
            Ok(Some(ended)) if reap_orphan(ended) => {}
            Ok(_) => return false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return true,
        }
    }
}

/// Poll interval while another thread reaps the child.
const REAP_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Returns a child with a state change of the kinds in `how`, without consuming the change.
fn peek(how: libc::c_int) -> io::Result<Option<Pid>> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: the kernel writes one `siginfo_t`, which lives through the call.
    os::check(unsafe { libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), how | libc::WNOWAIT) })?;
    // SAFETY: all zeros are a valid `siginfo_t`; the kernel has written it if a child's state has
    // changed.
    Ok(Pid::from_raw(unsafe { info.assume_init().si_pid() }))
}

/// Consumes the state change of `child` if it is an orphan. Children in this process's own group
/// were started by this process, and the code that started them waits for them. Orphans that a
/// master adopts are never in its group: the master leads a session of its own, and the orphans are
/// in another session.
fn reap_orphan(child: Pid) -> bool {
    let own = is_in_own_group(child.as_raw_pid().cast_unsigned());
    let how = WaitOptions::NOHANG | WaitOptions::UNTRACED | WaitOptions::CONTINUED;
    !own && waitpid(Some(child), how).is_ok()
}

/// Returns whether `pid` is stopped.
pub fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The process name, in parentheses, precedes the state; the name may contain parentheses
    // itself.
    stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'))
}

/// Returns whether `pid` is in this process's group, which signals from a terminal reach.
pub fn is_in_own_group(pid: u32) -> bool {
    getpgid(Pid::from_raw(pid.cast_signed())).is_ok_and(|of| of == getpgrp())
}

/// Makes this process the parent of descendants whose parent ends (subreaper).
pub fn adopt_orphans() -> io::Result<()> {
    Ok(set_child_subreaper(Pid::from_raw(1))?)
}

/// Returns whether this process leads its session: the leader gets a terminal's hang-up signal.
pub fn leads_session() -> bool {
    getsid(None).is_ok_and(|leader| leader == getpid())
}

/// Detaches this process from the terminal: the terminal no longer sends it signals, and no
/// standard descriptor refers to the terminal. Errors: this process leads a process group.
pub fn detach_from_terminal() -> io::Result<()> {
    setsid()?;
    let nowhere = detach_stdio()?;
    Ok(rustix::stdio::dup2_stderr(&nowhere)?)
}

/// Replaces standard input and output with `/dev/null`. If they were pipes, this process no longer
/// keeps them open: the other end sees the close once all other processes have closed them. Errors:
/// there is no `/dev/null`.
pub fn detach_stdio() -> io::Result<File> {
    let nowhere = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nowhere)?;
    rustix::stdio::dup2_stdout(&nowhere)?;
    Ok(nowhere)
}
