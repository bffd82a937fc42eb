//! Child processes that are killed when this process ends.
//!
//! The kernel's parent-death signal kills a child when its parent ends, even by `kill -9`. There
//! are two pitfalls: "parent" means the *thread* that forked, and the parent may end before the
//! child has requested the signal. [`Process::spawn`] therefore forks from one thread that lives as
//! long as the process. [`die_with_parent`] makes the child of a command request the signal, and
//! then check that the parent is still alive.
//!
//! A child in a PID namespace of its own sees no parent, and so cannot make that check.
//!
//! ```text
//!   Process::spawn ─command──> the spawner thread ──fork──> child: requests SIGKILL at parent's
//!        ^                                            |     death, checks the parent, execs
//!        └──────────────── Child ─────────────────────┘
//! ```
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, getppid, getrlimit, kill_process_group, pidfd_open,
    set_parent_process_death_signal, setrlimit,
};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// A child process. When this value is dropped, the child is killed, with its process group if it
/// has one of its own. When this process dies, the kernel kills the child if [`die_with_parent`]
/// was called for its command.
#[derive(Debug)]
pub struct Process {
    child: Child,
    own_group: bool,
}

impl Process {
    /// Starts `command` in a new process group, so that a Ctrl-C at the terminal reaches only this
    /// process, and the whole group can be killed.
    pub fn spawn(mut command: Command) -> io::Result<Process> {
        command.process_group(0);
        Ok(Process { child: spawn_in_thread(command, Command::spawn)?, own_group: true })
    }

    /// Starts `command` as the first process of a new PID namespace: it cannot signal, or otherwise
    /// refer to, a process outside. It ignores signals that it neither handles nor blocks. Errors:
    /// CAP_SYS_ADMIN is missing, or the program cannot be started.
    pub fn spawn_in_pid_namespace(mut command: Command) -> io::Result<Process> {
        command.process_group(0);
        let child = spawn_in_thread(command, spawn_in_pid_namespace)?;
        Ok(Process { child, own_group: true })
    }

    /// Starts `command` in our process group, for a program that uses the terminal.
    pub fn spawn_foreground(command: Command) -> io::Result<Process> {
        Ok(Process { child: spawn_in_thread(command, Command::spawn)?, own_group: false })
    }

    /// Waits until the child ends, `limit` has passed, or `cancelled` (called every 50 ms) returns
    /// true. `None` if the child is still running.
    pub fn wait_for(
        &mut self,
        limit: Duration,
        cancelled: impl Fn() -> bool,
    ) -> io::Result<Option<ExitStatus>> {
        const TICK: Duration = Duration::from_millis(50);
        let deadline = Instant::now() + limit;
        let pidfd = match self.child.try_wait()? {
            Some(status) => return Ok(Some(status)),
            None => pidfd_open(pid_of(&self.child), PidfdFlags::empty())?,
        };
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let tick = Timespec { tv_sec: 0, tv_nsec: TICK.min(left).subsec_nanos().into() };
            let ended = match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&tick)) {
                Ok(ready) => ready > 0,
                Err(rustix::io::Errno::INTR) => false,
                Err(e) => return Err(e.into()),
            };
            if ended {
                return self.child.wait().map(Some);
            }
            if left.is_zero() || cancelled() {
                return Ok(None);
            }
        }
    }

    /// Kills the child, with its process group if it has one of its own, and reaps it.
    pub fn kill(&mut self) -> io::Result<ExitStatus> {
        if self.child.try_wait()?.is_none() && self.own_group {
            // The child may have left its group.
            let _ = kill_process_group(pid_of(&self.child), Signal::KILL);
        }
        self.child.kill()?;
        self.child.wait()
    }
}

impl Deref for Process {
    type Target = Child;
    fn deref(&self) -> &Child {
        &self.child
    }
}

impl DerefMut for Process {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.child
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The child may have ended already.
        let _ = self.kill();
    }
}

/// Makes the child of `command` die when the *thread* that spawns it ends. [`Process`] spawns from
/// a thread that never ends; any other thread that spawns `command` must outlive the child.
pub fn die_with_parent(command: &mut Command) {
    let parent = std::process::id();
    // SAFETY: between fork and exec the closure makes two system calls; it neither allocates nor
    // takes a lock.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // If the parent died before this request, the signal is never sent.
            match getppid() {
                // The parent is outside the child's PID namespace.
                None => Ok(()),
                Some(pid) if pid.as_raw_nonzero().get().cast_unsigned() == parent => Ok(()),
                Some(_) => Err(io::ErrorKind::BrokenPipe.into()),
            }
        })
    };
}

/// Raises the limit of open descriptors of this process and its children to the hard limit. Returns
/// the limit.
pub fn raise_fd_limit() -> u64 {
    let limit = inherited_fd_limit();
    let limit = Rlimit { maximum: getrlimit(Resource::Nofile).maximum, ..limit };
    // Any process may raise its soft limit up to the hard limit.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Raises the soft and the hard limit of descriptors of this process and its children to `least`,
/// if the hard limit is lower and the process is privileged.
pub fn raise_hard_fd_limit(least: u64) {
    let found = inherited_fd_limit();
    if found.maximum.is_some_and(|most| most < least) {
        let lifted = Rlimit { current: Some(least), maximum: Some(least) };
        // Without the privilege the limit stays as it is.
        let _ = setrlimit(Resource::Nofile, lifted);
    }
}

/// Returns the limit of descriptors that this process was started with. The first call records the
/// limit, so that call must precede any change.
pub(crate) fn inherited_fd_limit() -> Rlimit {
    static INHERITED: OnceLock<Rlimit> = OnceLock::new();
    *INHERITED.get_or_init(|| getrlimit(Resource::Nofile))
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_child(child)
}

type Spawn = fn(&mut Command) -> io::Result<Child>;
type Job = (Command, Spawn, Sender<io::Result<Child>>);

/// Starts `command` by `spawn` in the spawner thread.
fn spawn_in_thread(command: Command, spawn: Spawn) -> io::Result<Child> {
    static SPAWNER: OnceLock<Sender<Job>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, jobs) = channel::<Job>();
        thread::spawn(move || {
            for (mut command, spawn, answer) in jobs {
                // If the requesting thread has ended, the child is dropped and nothing waits for
                // it.
                let _ = answer.send(spawn(&mut command));
            }
        });
        sender
    });
    let (answer, answered) = channel();
    spawner.send((command, spawn, answer)).map_err(|_| spawner_gone())?;
    answered.recv().map_err(|_| spawner_gone())?
}

/// Starts `command` in a new PID namespace. The calling thread itself stays in its namespace; only
/// its next child is placed in the new namespace.
fn spawn_in_pid_namespace(command: &mut Command) -> io::Result<Child> {
    let own = File::open("/proc/thread-self/ns/pid")?;
    let next_is_in_own =
        || move_into_link_name_space(own.as_fd(), Some(LinkNameSpaceType::ProcessID));
    // An earlier call may have failed at this step after it had started its child.
    next_is_in_own()?;
    // SAFETY: a new PID namespace unshares nothing that memory safety depends on.
    unsafe { unshare_unsafe(UnshareFlags::NEWPID) }?;
    let child = command.spawn();
    // The new namespace accepts no further process once its first process has ended.
    if let Err(error) = next_is_in_own() {
        if let Ok(mut child) = child {
            child.kill().and_then(|()| child.wait())?;
        }
        return Err(error.into());
    }
    child
}

fn spawner_gone() -> io::Error {
    io::Error::other("the thread that starts programs has ended")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper() -> Command {
        let mut command = Command::new("sleep");
        command.arg("60");
        die_with_parent(&mut command);
        command
    }

    #[test]
    fn a_child_outlives_the_thread_that_spawned_it() {
        let mut child = thread::spawn(|| Process::spawn(sleeper()).unwrap()).join().unwrap();
        let ended = child.wait_for(Duration::from_millis(200), || false).unwrap();
        assert_eq!(ended, None, "the child has died with the thread that requested it");
    }

    #[test]
    fn dropping_a_process_kills_and_reaps_the_child() {
        let child = Process::spawn(sleeper()).unwrap();
        let stat = format!("/proc/{}", child.id());
        assert!(std::path::Path::new(&stat).exists());
        drop(child);
        assert!(!std::path::Path::new(&stat).exists());
    }

    #[test]
    fn a_child_is_first_in_its_pid_namespace_and_later_children_are_not_affected() {
        let missing = Process::spawn_in_pid_namespace(Command::new("/nowhere"));
        missing.unwrap_err();
        let in_namespace = || {
            let mut command = Command::new("sh");
            command.args(["-c", "[ $$ = 1 ]"]);
            Process::spawn_in_pid_namespace(command).unwrap().wait().unwrap().success()
        };
        assert!(in_namespace() && in_namespace());
        let mut outside = Command::new("sh");
        outside.args(["-c", "[ $$ != 1 ]"]);
        assert!(Process::spawn(outside).unwrap().wait().unwrap().success());
    }

    #[test]
    fn grandchildren_are_killed_with_their_group() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "sleep 61 & echo $!; wait"]).stdout(std::process::Stdio::piped());
        let mut child = Process::spawn(shell).unwrap();
        let mut line = String::new();
        let mut out = io::BufReader::new(child.stdout.take().unwrap());
        io::BufRead::read_line(&mut out, &mut line).unwrap();
        drop(child);
        // Init reaps the orphan; until then it is a zombie, which counts as dead.
        let dead = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", line.trim()));
            stat.map_or(true, |s| s.contains(") Z ") || s.contains(") X "))
        };
        let deadline = Instant::now() + Duration::from_secs(5);
        while !dead() && Instant::now() < deadline {
            thread::yield_now();
        }
        assert!(dead(), "the grandchild still runs");
    }

    #[test]
    fn waiting_ends_with_the_child_or_when_cancelled() {
        let mut child = Process::spawn(Command::new("true")).unwrap();
        let status = child.wait_for(Duration::from_secs(10), || false).unwrap();
        assert!(status.expect("`true` ends immediately").success());
        let mut child = Process::spawn(sleeper()).unwrap();
        assert_eq!(child.wait_for(Duration::from_secs(10), || true).unwrap(), None);
    }
}
