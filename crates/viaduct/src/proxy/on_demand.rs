//! `--on-demand`: a small parent process that keeps the listeners open, and a proxy that runs only
//! while there is work.
//!
//! ```text
//!   parent:  listen set, rules ─▶ wait for a SYN, unread ──▶ start a proxy, wait for its end ─┐
//!                                     ▲                                                      │
//!                                     └── idle: immediately;  failed: after a pause ◀────────┘
//!   proxy:   inherits the sockets, reads the SYN that the parent left there, and connects early
//! ```

use std::env;
use std::io::Read as _;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::low_level::pipe;
use tracing::{error, info, warn};
use viaduct_sys::process::{Process, die_with_parent};
use viaduct_sys::process::{inherited_fds, memory, signals};

use super::config_handoff::ConfigHandoff;
use crate::engine::intercept::InterceptState;
use crate::engine::listen_set::{ListenSet, SynSource};
use crate::notify::{Phase, notify};
use crate::watchdog;

/// Pause after a failure, which each further failure doubles, and its maximum.
const RESTART_DELAY: Duration = Duration::from_millis(100);
const MAX_RESTART_DELAY: Duration = Duration::from_secs(10);
/// Uptime of a proxy after which its failure counts as a first failure: the pause is
/// [`RESTART_DELAY`] again.
const MIN_UPTIME: Duration = Duration::from_secs(30);

/// Parent of on-demand proxies.
pub struct OnDemandParent {
    listen_set: ListenSet,
    signals: SignalPipes,
    handoff: ConfigHandoff,
    /// State of the rules, if any, that divert clients to the listeners.
    intercept_state: Arc<InterceptState>,
}

/// Signals as bytes in pipes. Once the handlers are registered, these signals no longer terminate
/// the process by default.
#[derive(Debug)]
pub struct SignalPipes {
    /// Readable after SIGTERM or SIGINT: terminate.
    end: UnixStream,
    /// Readable after SIGHUP: reload the config.
    again: UnixStream,
    /// Readable after SIGUSR1: reopen log files.
    reopen: UnixStream,
}

/// Reason why a wait has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    /// A descriptor is readable.
    Work,
    /// SIGTERM or SIGINT has arrived; never a result of [`wait`] itself.
    Signal,
    /// The timeout has passed.
    Time,
}

impl SignalPipes {
    /// Registers the signal handlers.
    ///
    /// # Errors
    /// No descriptor is available.
    pub fn register() -> Result<SignalPipes> {
        let (end, ends) = UnixStream::pair()?;
        pipe::register(SIGTERM, ends.try_clone()?)?;
        pipe::register(SIGINT, ends)?;
        let pipe_for = |signal| -> Result<UnixStream> {
            let (read, write) = UnixStream::pair()?;
            pipe::register(signal, write)?;
            // `has_come` empties the pipe: several pending signals count as one.
            read.set_nonblocking(true)?;
            Ok(read)
        };
        Ok(SignalPipes { end, again: pipe_for(SIGHUP)?, reopen: pipe_for(SIGUSR1)? })
    }

    fn is_end(&self) -> bool {
        wait(&[&self.end], Some(Duration::ZERO)) == Woken::Work
    }

    /// Returns whether a signal to reload or to reopen logs, which concerns the proxy, is pending.
    fn is_for_proxy(&self) -> bool {
        wait(&[&self.again, &self.reopen], Some(Duration::ZERO)) == Woken::Work
    }
}

/// Empties `pipe`, and returns whether a signal has arrived in it since the last call.
fn has_come(mut pipe: &UnixStream) -> bool {
    let mut bytes = [0; 64];
    let came = pipe.read(&mut bytes).is_ok();
    while pipe.read(&mut bytes).is_ok() {}
    came
}

impl OnDemandParent {
    /// Creates a parent that waits for clients at `listen_set`. Proxies get this process's
    /// arguments, and the config of `handoff`.
    pub fn new(
        listen_set: ListenSet,
        signals: SignalPipes,
        handoff: ConfigHandoff,
        intercept_state: Arc<InterceptState>,
    ) -> OnDemandParent {
        OnDemandParent { listen_set, signals, handoff, intercept_state }
    }

    /// Starts a proxy that exits before it serves clients, so that errors of the start are reported
    /// now, not when the first client connects.
    pub fn rehearse(&self) -> Result<()> {
        let status = self.start(&["--rehearse"])?.wait()?;
        if !status.success() {
            bail!("on-demand: the proxy cannot start, for the reason above");
        }
        Ok(())
    }

    /// Runs until SIGTERM or SIGINT, and then until the running proxy has ended.
    pub fn run(mut self) -> Result<()> {
        let mut pause = Duration::ZERO;
        notify(Phase::Ready);
        loop {
            if self.wait_or_signal(&[], Some(pause), None) == Woken::Signal
                || self.wait_for_work() == Woken::Signal
            {
                return Ok(());
            }
            let begun = Instant::now();
            let failure = match self.start_watched() {
                Ok((mut proxy, ended)) => {
                    let pid = Pid::from_child(&proxy);
                    if self.wait_or_signal(&[&ended], None, Some(pid)) == Woken::Signal {
                        return self.drain(proxy, pid, &ended);
                    }
                    let status = proxy.wait()?;
                    if status.success() {
                        pause = Duration::ZERO;
                        continue;
                    }
                    anyhow!("the proxy failed: {status}")
                }
                Err(error) => error,
            };
            if begun.elapsed() > MIN_UPTIME {
                pause = Duration::ZERO;
            }
            pause = (pause * 2).clamp(RESTART_DELAY, MAX_RESTART_DELAY);
            warn!("{failure:#}; the next proxy starts on demand, after {pause:?}");
            // The SYNs that the proxy held would otherwise never get a verdict.
            if let SynSource::Queue(queue) = &self.listen_set.syns {
                queue.reset().context("cannot reset the queue of SYNs")?;
            }
        }
    }

    /// Waits for a SYN, or for a connection if SYNs cannot be seen.
    fn wait_for_work(&mut self) -> Woken {
        // The parent does not need the pages used so far while it waits.
        let _ = memory::drop_clean_pages();
        loop {
            let (open, _) = self.listen_set.exported();
            let all: Vec<&dyn AsFd> = open.iter().map(|fd| fd as &dyn AsFd).collect();
            match self.look(&all, None) {
                Some(woken) => return woken,
                None => self.handle_proxy_signals(None),
            }
        }
    }

    /// Waits until a descriptor of `work` is readable, SIGTERM or SIGINT arrives, or `at_most` has
    /// passed. In the meantime handles signals to reload and to reopen logs, and passes them to
    /// `proxy`, if it is running.
    fn wait_or_signal(
        &mut self,
        work: &[&OwnedFd],
        at_most: Option<Duration>,
        proxy: Option<Pid>,
    ) -> Woken {
        let work: Vec<&dyn AsFd> = work.iter().map(|fd| fd as &dyn AsFd).collect();
        loop {
            match self.look(&work, at_most) {
                Some(woken) => return woken,
                None => self.handle_proxy_signals(proxy),
            }
        }
    }

    /// Waits for `work`, a signal or the timeout. `None` if a signal for the proxy is pending.
    fn look(&self, work: &[&dyn AsFd], at_most: Option<Duration>) -> Option<Woken> {
        let SignalPipes { end, again, reopen } = &self.signals;
        let calls: [&dyn AsFd; 3] = [end, again, reopen];
        match wait_and_answer(&[&calls, work].concat(), at_most) {
            Woken::Work if self.signals.is_end() => Some(Woken::Signal),
            Woken::Work if self.signals.is_for_proxy() => None,
            woken => Some(woken),
        }
    }

    /// Handles signals that concern the proxy. Without a running proxy, log files need not be
    /// reopened, because each proxy opens them at its start.
    fn handle_proxy_signals(&mut self, proxy: Option<Pid>) {
        if has_come(&self.signals.reopen) {
            proxy.map(|pid| kill_process(pid, Signal::USR1));
        }
        if has_come(&self.signals.again) {
            self.read_again(proxy);
        }
    }

    /// Reads the config again. If it is valid, signals the proxy to reload.
    fn read_again(&mut self, proxy: Option<Pid>) {
        notify(Phase::Reloading);
        match self.handoff.read_again() {
            Ok(()) => {
                info!("the config was read again");
                // If the proxy has just ended, the next proxy starts with the new config.
                proxy.map(|pid| kill_process(pid, Signal::HUP));
            }
            Err(error) => {
                error!("not reloaded, nothing has changed: {error:#}");
                // SIGHUP is also a request to reopen logs, for which the proxy gets SIGUSR1.
                proxy.map(|pid| kill_process(pid, Signal::USR1));
            }
        }
        notify(Phase::Ready);
    }

    /// Starts a proxy. Returns it with a descriptor that is readable once the proxy has ended.
    fn start_watched(&self) -> Result<(Process, OwnedFd)> {
        let proxy = self.start(&[])?;
        let ended = pidfd_open(Pid::from_child(&proxy), PidfdFlags::empty())
            .context("cannot watch a proxy")?;
        info!(pid = proxy.id(), "started");
        Ok((proxy, ended))
    }

    /// Starts a proxy with the same listeners and the additional arguments `more`.
    fn start(&self, more: &[&str]) -> Result<Process> {
        let (mut open, inherited) = self.listen_set.exported();
        let inherited: Vec<_> = inherited.iter().map(ToString::to_string).collect();
        let mut command = Command::new("/proc/self/exe");
        command.args(env::args_os().skip(1)).arg("--inherited").arg(inherited.join(","));
        command.args(self.handoff.number().map(|fd| format!("--told={fd}"))).args(more);
        open.extend(self.handoff.exported());
        // Only this process notifies the service manager.
        command.env_remove("NOTIFY_SOCKET");
        inherited_fds::leave_open(&mut command, &open);
        // The proxy ignores these signals until its handlers are registered. No request is lost,
        // because the proxy reads the config and opens logs only after that.
        signals::ignore_at_start(&mut command, &[SIGHUP, SIGUSR1]);
        die_with_parent(&mut command);
        let proxy = Process::spawn(command).context("cannot start a proxy")?;
        Ok(proxy)
    }

    /// Closes the listeners, and makes the proxy drain its flows. A second signal kills the proxy
    /// immediately.
    fn drain(self, mut proxy: Process, pid: Pid, ended: &OwnedFd) -> Result<()> {
        notify(Phase::Stopping);
        let OnDemandParent {
            listen_set,
            signals: SignalPipes { mut end, .. },
            intercept_state,
            ..
        } = self;
        // Interception ends before the listeners are closed; otherwise diverted connections would
        // find no listener.
        intercept_state.pass_by();
        drop(listen_set);
        // Each signal is one byte; this discards the byte of the first signal.
        let _ = end.read(&mut [0]);
        kill_process(pid, Signal::TERM)?;
        wait(&[ended, &end], None);
        if proxy.try_wait()?.is_none() {
            proxy.kill()?;
        }
        Ok(())
    }
}

/// Waits like [`wait`], and answers the service manager's watchdog in the meantime.
fn wait_and_answer(readable: &[&dyn AsFd], at_most: Option<Duration>) -> Woken {
    let Some(expected) = watchdog::expected() else { return wait(readable, at_most) };
    let (begun, turn) = (Instant::now(), watchdog::answer_interval(expected));
    loop {
        notify(Phase::Alive);
        let left = at_most.map(|time| time.saturating_sub(begun.elapsed()));
        match wait(readable, Some(left.map_or(turn, |left| left.min(turn)))) {
            Woken::Time if left.is_none_or(|left| left > turn) => {}
            woken => return woken,
        }
    }
}

/// Waits until one of `readable` is readable. `None` for `at_most` means no timeout.
pub(super) fn wait(readable: &[&dyn AsFd], at_most: Option<Duration>) -> Woken {
    let mut fds: Vec<_> =
        readable.iter().map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)).collect();
    let timeout = at_most.map(|time| Timespec {
        tv_sec: time.as_secs().cast_signed(),
        tv_nsec: time.subsec_nanos().into(),
    });
    loop {
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) => return Woken::Time,
            Err(rustix::io::Errno::INTR) => {}
            _ => return Woken::Work,
        }
    }
}
