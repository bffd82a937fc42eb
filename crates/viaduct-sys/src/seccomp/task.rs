//! Access to the memory and the descriptors of the thread that made a call.

use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::seccomp::epoll_watches::Epolls;

/// `PIDFD_THREAD`: the pidfd refers to a thread, not to its process (6.9 and later).
const THREAD: PidfdFlags = PidfdFlags::from_bits_retain(0o200);

/// A thread of a program. [`Task::duplicate`] uses a pidfd, so it never reaches a process that
/// reuses the thread's ID. If the task is not [exact](Task::is_exact), it reaches the thread's
/// process also after the thread's end. The other methods use the thread's ID, which may be reused
/// after the thread's end: [`Listener::read`](super::Listener::read) and
/// [`Listener::write`](super::Listener::write) check that the thread still waits.
#[derive(Debug)]
pub struct Task {
    pid: Pid,
    fd: OwnedFd,
    /// True if the pidfd refers to a thread, or to a process whose main thread this is.
    is_exact: bool,
    pub(crate) epolls: Epolls,
}

impl Task {
    /// Opens the thread with this ID. Errors: the thread has ended.
    pub fn open(thread: u32) -> io::Result<Task> {
        let pid = i32::try_from(thread).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(io::ErrorKind::NotFound)?;
        match pidfd_open(pid, THREAD) {
            Ok(fd) => Ok(Task { pid, fd, is_exact: true, epolls: Epolls::default() }),
            Err(_) => Task::open_process(pid),
        }
    }

    /// Opens a thread by a pidfd of its process, for kernels without `PIDFD_THREAD`.
    fn open_process(pid: Pid) -> io::Result<Task> {
        let process = process_of(pid);
        let fd = pidfd_open(process, PidfdFlags::empty())?;
        Ok(Task { pid, fd, is_exact: process == pid, epolls: Epolls::default() })
    }

    /// Returns whether [`Task::duplicate`] fails once the thread's ID may be reused. Otherwise the
    /// task may be used for a single call only, while the thread waits.
    pub fn is_exact(&self) -> bool {
        self.is_exact
    }

    /// Duplicates the thread's descriptor `fd`. Errors: the thread has no such descriptor, or
    /// access is denied because the thread belongs to another user or is not dumpable
    /// (`PR_SET_DUMPABLE`).
    pub fn duplicate(&self, fd: i32) -> io::Result<OwnedFd> {
        if fd < 0 {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        Ok(pidfd_getfd(&self.fd, fd, PidfdGetfdFlags::empty())?)
    }

    /// Returns whether the thread's descriptor `fd` is close-on-exec. Errors: the thread has no
    /// such descriptor, or access is denied.
    pub fn closes_on_exec(&self, fd: i32) -> io::Result<bool> {
        let info = std::fs::read_to_string(format!("/proc/{}/fdinfo/{fd}", self.pid))?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
        Ok(flags.ok_or(io::ErrorKind::InvalidData)? & libc::O_CLOEXEC != 0)
    }

    /// Returns whether the thread is in this process's network namespace; true if unknown.
    pub fn is_in_this_netns(&self) -> bool {
        let network = |whose: &str| std::fs::read_link(format!("/proc/{whose}/ns/net")).ok();
        let theirs = network(&self.pid.to_string());
        theirs.is_none_or(|theirs| network("self").is_none_or(|ours| ours == theirs))
    }

    /// Reads the thread's memory at `from`, up to the first unmapped byte. Returns the number of
    /// bytes read. Errors: the memory is not mapped, or access is denied.
    pub fn read(&self, from: u64, to: &mut [u8]) -> io::Result<usize> {
        let ours = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
        let theirs = libc::iovec { iov_base: from as *mut _, iov_len: to.len() };
        let pid = self.pid.as_raw_nonzero().get();
        // SAFETY: the kernel writes at most the length of `to`; the kernel checks the other
        // address, which is in the thread's memory.
        let read =
            unsafe { libc::process_vm_readv(pid, &raw const ours, 1, &raw const theirs, 1, 0) };
        usize::try_from(read).map_err(|_| io::Error::last_os_error())
    }

    /// Writes `bytes` to the thread's memory at `to`. Errors: the memory is not writable, or access
    /// is denied.
    pub fn write(&self, to: u64, bytes: &[u8]) -> io::Result<()> {
        let ours = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let theirs = libc::iovec { iov_base: to as *mut _, iov_len: bytes.len() };
        let pid = self.pid.as_raw_nonzero().get();
        // SAFETY: the kernel reads `bytes`; the kernel checks the other address, which is in the
        // thread's memory.
        let wrote =
            unsafe { libc::process_vm_writev(pid, &raw const ours, 1, &raw const theirs, 1, 0) };
        match usize::try_from(wrote) {
            Ok(wrote) if wrote == bytes.len() => Ok(()),
            Ok(_) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }
}

/// Duplicates the socket with this inode number from any process that has it open.
pub fn find_socket(inode: u64) -> Option<OwnedFd> {
    let name = format!("socket:[{inode}]");
    let number = |entry: &std::fs::DirEntry| entry.file_name().to_str()?.parse::<i32>().ok();
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    for process in processes {
        let Some(pid) = number(&process) else { continue };
        let Ok(open) = std::fs::read_dir(process.path().join("fd")) else { continue };
        let is = |to: std::path::PathBuf| to.as_os_str() == name.as_str();
        let mut open = open.flatten();
        let found = open.find(|entry| std::fs::read_link(entry.path()).is_ok_and(is));
        let Some(fd) = found.as_ref().and_then(number) else { continue };
        let socket = Task::open(pid.cast_unsigned()).and_then(|task| task.duplicate(fd));
        // The descriptor may have been closed, and its number reused.
        if let Ok(socket) = socket
            && rustix::fs::fstat(&socket).is_ok_and(|stat| stat.st_ino == inode)
        {
            return Some(socket);
        }
    }
    None
}

/// Returns a thread's process, for kernels without `PIDFD_THREAD`; the thread itself if unknown.
fn process_of(thread: Pid) -> Pid {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let id = status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok());
    id.and_then(Pid::from_raw).unwrap_or(thread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pidfd_of_a_process_is_exact_for_its_main_thread_only() {
        let main = Task::open_process(rustix::process::getpid()).unwrap();
        // Tests run in threads of their own.
        let thread = Task::open_process(rustix::thread::gettid()).unwrap();
        assert_eq!((main.is_exact(), thread.is_exact()), (true, false));
    }
}
