//! A hop of the agent: its listeners, and its process, if one is running.
//!
//! ```text
//!   Idle ── a SYN, or a client ──▶ Running ── idle ──▶ Idle
//!    ▲                                └─ fails ──▶ Paused ── after a while ──▶ Idle
//! ```

use std::fs::File;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, Signal, getpid, kill_process, pidfd_open};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use viaduct_sys::capture::syn::SynSender;
use viaduct_sys::process::confine::Confinement;
use viaduct_sys::process::{Process, die_with_parent, inherited_fds, signals};
use viaduct_sys::socket::tcp::{self, TcpOptions};

use super::definition::Definition;
use super::directory;
use super::status::AgentHop;

/// Backlog of a listener.
const BACKLOG: u32 = 1024;
/// Pause after the first failure. Each further failure doubles the pause.
const RESTART_DELAY: Duration = Duration::from_millis(100);
/// Maximum pause after a failure.
const MAX_RESTART_DELAY: Duration = Duration::from_secs(10);
/// Uptime of a process after which its failure counts as a first failure.
const MIN_UPTIME: Duration = Duration::from_secs(30);

/// A hop.
pub struct Hop {
    /// Current definition.
    pub definition: Definition,
    /// Listeners; empty after the hop was removed.
    pub listeners: Vec<TcpListener>,
    /// User ID of the hop's processes; `None` if they run as the agent's user.
    pub user: Option<u32>,
    state: State,
    pause: Duration,
    starts: u64,
    failures: u64,
    fault: Option<String>,
}

/// State of a hop.
enum State {
    Idle,
    Running(Running),
    /// Until this time no process is started.
    Paused(Instant),
}

/// Process of a hop.
struct Running {
    process: Process,
    syns: Option<SynSender>,
    config: File,
    begun: Instant,
    /// Readable when the process has ended.
    ended: OwnedFd,
}

/// Outcome of a process, and the pause before the next process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The process has ended normally: the hop waits for the next client.
    Well,
    /// The process has failed: the hop waits for this time before it serves a client again.
    Failed(Duration),
}

/// Settings of the agent for all processes.
#[derive(Clone, Copy, Debug)]
pub struct ProcessSettings<'a> {
    /// Directory that contains the hops' own directories.
    pub directory: &'a Path,
    /// Maximum memory of a process, in bytes.
    pub memory: usize,
    /// True if processes log in JSON.
    pub log_json: bool,
}

impl Hop {
    /// Opens the listeners of a hop whose processes run as the agent's user. Errors: an address
    /// cannot be used.
    pub fn open(definition: Definition) -> Result<Hop> {
        let options = TcpOptions { save_syn: true, ..TcpOptions::default() };
        let open = |at| {
            let listener = tcp::listen(at, BACKLOG, options);
            listener.with_context(|| format!("cannot listen at {at}"))
        };
        let listeners = definition.listen.iter().copied().map(open).collect::<Result<_>>()?;
        let (state, pause) = (State::Idle, Duration::ZERO);
        let (starts, failures, user, fault) = (0, 0, None, None);
        Ok(Hop { definition, listeners, user, state, pause, starts, failures, fault })
    }

    /// Returns whether a client may start a process.
    pub fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    /// Returns whether a process runs.
    pub fn is_running(&self) -> bool {
        matches!(self.state, State::Running(_))
    }

    /// Starts a process. If the process needs SYNs, it gets `syn`, the SYN that caused the start,
    /// if the tap saw one.
    pub fn start(&mut self, syn: Option<&[u8]>, settings: ProcessSettings<'_>) -> Result<()> {
        let directory = directory::open(settings.directory, &self.definition.name, self.user)
            .with_context(|| {
                format!("cannot open its directory in {}", settings.directory.display())
            })?;
        let config = File::from(memfd_create("config", MemfdFlags::CLOEXEC)?);
        config.write_all_at(self.definition.config.as_bytes(), 0)?;
        let pair = self.definition.sees_syns.then(SynSender::pair).transpose()?;
        let (syns, tap) = pair.unzip();
        if let (Some(syns), Some(syn)) = (&syns, syn) {
            syns.send(syn)?;
        }
        let agent = pidfd_open(getpid(), PidfdFlags::empty())?;
        let command =
            self.command(settings, &directory, [agent.as_fd(), config.as_fd()], tap.as_ref());
        let process =
            Process::spawn_in_pid_namespace(command).context("cannot start its process")?;
        let ended = pidfd_open(Pid::from_child(&process), PidfdFlags::empty())?;
        let begun = Instant::now();
        self.state = State::Running(Running { process, syns, config, begun, ended });
        self.starts += 1;
        Ok(())
    }

    /// Descriptor that is readable when the process has ended, if there is one.
    pub fn process_end(&self) -> Option<BorrowedFd<'_>> {
        match &self.state {
            State::Running(running) => Some(running.ended.as_fd()),
            State::Idle | State::Paused(_) => None,
        }
    }

    fn command(
        &self,
        settings: ProcessSettings<'_>,
        directory: &OwnedFd,
        [agent, config]: [BorrowedFd<'_>; 2],
        tap: Option<&OwnedFd>,
    ) -> Command {
        let confinement = Confinement {
            user: self.user,
            memory: settings.memory as u64,
            descriptors: self.definition.descriptors,
            parent: agent.as_raw_fd(),
        };
        let listeners = self.listeners.iter().map(|listener| listener.as_fd());
        let mut open: Vec<BorrowedFd<'_>> = listeners.collect();
        let listen = open.iter().map(|fd| format!("listen={}", fd.as_raw_fd()));
        let tap_text = tap.iter().map(|tap| format!("tap={}", tap.as_raw_fd()));
        let inherited: Vec<_> = listen.chain(tap_text).collect();
        open.extend(tap.map(|tap| tap.as_fd()));
        open.extend([agent, config]);
        let mut command = Command::new("/proc/self/exe");
        command.args(settings.log_json.then_some("--log-json"));
        command.args(["proxy", "--config", &self.definition.name]);
        command.arg(format!("--told={}", config.as_raw_fd()));
        command.args(["--inherited", &inherited.join(",")]);
        command.arg(format!("--confined={confinement}"));
        // The directory is passed as a descriptor, because another user may have changed its path.
        command.current_dir(format!("/proc/self/fd/{}", directory.as_raw_fd()));
        command.env_remove("NOTIFY_SOCKET");
        inherited_fds::leave_open(&mut command, &open);
        // Signals that arrive early stay pending until the process handles them.
        signals::block_at_start(&mut command, &[SIGHUP, SIGUSR1, SIGTERM, SIGINT]);
        die_with_parent(&mut command);
        command
    }

    /// Passes a SYN to the running process. Errors are ignored: the process is ending, and the
    /// client waits at the listener for the next process.
    pub fn pass(&self, syn: &[u8]) {
        if let State::Running(Running { syns: Some(syns), .. }) = &self.state
            && !syn.is_empty()
        {
            let _ = syns.send(syn);
        }
    }

    /// Handles the end of the process.
    pub fn ended(&mut self) -> io::Result<Ended> {
        let State::Running(running) = &mut self.state else { return Ok(Ended::Well) };
        let status = running.process.wait()?;
        if status.success() {
            (self.state, self.pause, self.fault) = (State::Idle, Duration::ZERO, None);
            return Ok(Ended::Well);
        }
        if running.begun.elapsed() > MIN_UPTIME {
            self.pause = Duration::ZERO;
        }
        Ok(self.failed(format!("its process failed: {status}")))
    }

    /// Records that a process failed, or could not be started.
    pub fn failed(&mut self, why: String) -> Ended {
        self.failures += 1;
        self.fault = Some(why);
        self.pause = (self.pause * 2).clamp(RESTART_DELAY, MAX_RESTART_DELAY);
        self.state = State::Paused(Instant::now() + self.pause);
        Ended::Failed(self.pause)
    }

    /// Ends the pause after a failure, if its time has passed: the caller's timer may be that of a
    /// removed hop, whose key this one has.
    pub fn resume(&mut self) {
        if let State::Paused(until) = self.state
            && until <= Instant::now()
        {
            self.state = State::Idle;
        }
    }

    /// Changes the definition. If the config has changed, a running process reloads it. Errors: the
    /// addresses have changed, in which case the definition is unchanged; or the process cannot be
    /// notified.
    pub fn reload(&mut self, new: Definition) -> Result<()> {
        if new.listen != self.definition.listen {
            bail!(
                "hop {}: listen has changed; this needs another name, or a restart of the agent",
                new.name
            );
        }
        let has_changed = new.config != self.definition.config;
        self.definition = new;
        if let State::Running(Running { process, config, .. }) = &self.state
            && has_changed
        {
            let text = self.definition.config.as_bytes();
            config.write_all_at(text, 0)?;
            config.set_len(text.len() as u64)?;
            kill_process(Pid::from_child(process), Signal::HUP)?;
        }
        Ok(())
    }

    /// Closes the listeners, and makes the process end after its last flow.
    pub fn drain(&mut self) {
        self.listeners.clear();
        if let State::Running(running) = &self.state {
            let _ = kill_process(Pid::from_child(&running.process), Signal::TERM);
        }
    }

    /// Status for the operator.
    pub fn status(&self) -> AgentHop {
        let pid = match &self.state {
            State::Running(running) => Some(running.process.id()),
            State::Idle | State::Paused(_) => None,
        };
        AgentHop {
            name: self.definition.name.clone(),
            listen: self.definition.listen.clone(),
            pid,
            starts: self.starts,
            failures: self.failures,
            fault: self.fault.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_does_not_end_early_by_the_timer_of_another_hop() {
        let definition = Definition {
            name: "a".to_owned(),
            listen: vec![([127, 0, 0, 1], 0).into()],
            allow_from: Vec::new(),
            config: String::new(),
            descriptors: 0,
            sees_syns: false,
            meaning: String::new(),
        };
        let mut hop = Hop::open(definition).unwrap();
        assert_eq!(hop.failed("it failed".to_owned()), Ended::Failed(RESTART_DELAY));
        hop.resume();
        assert!(!hop.is_idle(), "the pause has just begun");
        std::thread::sleep(RESTART_DELAY);
        hop.resume();
        assert!(hop.is_idle());
    }
}
