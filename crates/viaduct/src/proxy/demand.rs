//! `--on-demand`: a small parent that holds the doors open, and a proxy that runs while there is
//! something to do.
//!
//! ```text
//!   parent:  doors and rules ──▶ wait for a SYN, unread ──▶ start a proxy, wait for its end ─┐
//!                                     ▲                                                      │
//!                                     └── idle: at once;  crashed: later and later ◀─────────┘
//!   proxy:   the same doors: it finds the SYN where the parent left it, and forwards it early
//! ```

use std::env;
use std::io::Read as _;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::low_level::pipe;
use tracing::{error, info, warn};
use viaduct_sys::process::{Process, die_with_parent};
use viaduct_sys::{inherit, memory, signals};

use super::doors::{Doors, Syns};
use super::keeper::Interception;
use super::told::Told;
use crate::notify::{Phase, notify};

/// The pause after a crash, and the longest; each further one doubles it.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// A proxy that ran for so long did not crash at once.
const WELL: Duration = Duration::from_secs(30);

/// The parent.
pub struct Demand {
    doors: Doors,
    signals: SignalPipes,
    told: Told,
    /// What leads clients to the doors, if not their own will.
    interception: Arc<Interception>,
}

/// Signals, each kind a byte at the end of a pipe. From when this is made on none ends the process by
/// itself.
#[derive(Debug)]
pub struct SignalPipes {
    /// Readable when one asks for the end.
    end: UnixStream,
    /// Readable when one asks for the config to be read again.
    again: UnixStream,
    /// Readable when one asks for log files to be opened again.
    reopen: UnixStream,
}

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    Work,
    Signal,
    Time,
}

impl SignalPipes {
    /// Hears signals from now on.
    ///
    /// # Errors
    /// The kernel gives no descriptors.
    pub fn register() -> Result<SignalPipes> {
        let (end, ends) = UnixStream::pair()?;
        pipe::register(SIGTERM, ends.try_clone()?)?;
        pipe::register(SIGINT, ends)?;
        let told_of = |signal| -> Result<UnixStream> {
            let (read, write) = UnixStream::pair()?;
            pipe::register(signal, write)?;
            // Any number of them is one.
            read.set_nonblocking(true)?;
            Ok(read)
        };
        Ok(SignalPipes { end, again: told_of(SIGHUP)?, reopen: told_of(SIGUSR1)? })
    }

    fn is_end(&self) -> bool {
        wait(&[&self.end], Some(Duration::ZERO)) == Woken::Work
    }

    /// Whether one has come that the proxy is to hear of.
    fn is_for_proxy(&self) -> bool {
        wait(&[&self.again, &self.reopen], Some(Duration::ZERO)) == Woken::Work
    }
}

/// Whether a signal has come by this pipe, since this was asked last.
fn has_come(mut pipe: &UnixStream) -> bool {
    let mut bytes = [0; 64];
    let came = pipe.read(&mut bytes).is_ok();
    while pipe.read(&mut bytes).is_ok() {}
    came
}

impl Demand {
    /// Waits at `doors`; proxies are told what this process was, and the config that `told` has.
    pub fn new(
        doors: Doors,
        signals: SignalPipes,
        told: Told,
        interception: Arc<Interception>,
    ) -> Demand {
        Demand { doors, signals, told, interception }
    }

    /// Starts a proxy that ends before it serves: whatever keeps it from starting is found now, and not
    /// by the first client.
    pub fn rehearse(&self) -> Result<()> {
        let status = self.start(&["--rehearse"])?.wait()?;
        if !status.success() {
            bail!("on-demand: the proxy cannot start, for the reason above");
        }
        Ok(())
    }

    /// Runs until a signal, and then until the proxy that runs has ended.
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
            let mut proxy = self.start(&[])?;
            info!(pid = proxy.id(), "started");
            let pid = Pid::from_child(&proxy);
            let ended = pidfd_open(pid, PidfdFlags::empty())?;
            if self.wait_or_signal(&[&ended], None, Some(pid)) == Woken::Signal {
                return self.drain(proxy, pid, &ended);
            }
            let status = proxy.wait()?;
            if status.success() {
                pause = Duration::ZERO;
                continue;
            }
            if begun.elapsed() > WELL {
                pause = Duration::ZERO;
            }
            pause = (pause * 2).clamp(PAUSE, LONGEST_PAUSE);
            warn!(
                "the proxy ended: {status}; the next one starts in {pause:?}, when it is asked for"
            );
            // Nobody will say what becomes of the SYNs that it held.
            if let Syns::Queue(queue) = &self.doors.syns {
                queue.reset().context("begin the queue of SYNs anew")?;
            }
        }
    }

    /// Waits for a SYN, or a connection where SYNs are not seen.
    fn wait_for_work(&mut self) -> Woken {
        // Whatever this has run so far, it will not need it for some time.
        let _ = memory::let_go_of_start();
        loop {
            let (open, _) = self.doors.legacy();
            let all: Vec<&dyn AsFd> = open.iter().map(|fd| fd as &dyn AsFd).collect();
            match self.look(&all, None) {
                Some(woken) => return woken,
                None => self.heed(None),
            }
        }
    }

    /// Waits for `work`; the proxy that runs, if there is one, hears of a reload, and that logs are to be opened again.
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
                None => self.heed(proxy),
            }
        }
    }

    /// Waits for something; `None` if it is a signal that the proxy is to hear of.
    fn look(&self, work: &[&dyn AsFd], at_most: Option<Duration>) -> Option<Woken> {
        let SignalPipes { end, again, reopen } = &self.signals;
        let calls: [&dyn AsFd; 3] = [end, again, reopen];
        match wait(&[&calls, work].concat(), at_most) {
            Woken::Work if self.signals.is_end() => Some(Woken::Signal),
            Woken::Work if self.signals.is_for_proxy() => None,
            woken => Some(woken),
        }
    }

    /// Does what signals have asked for. Log files are the proxy's own: one that starts later opens them anew.
    fn heed(&mut self, proxy: Option<Pid>) {
        if has_come(&self.signals.reopen) {
            proxy.map(|pid| kill_process(pid, Signal::USR1));
        }
        if has_come(&self.signals.again) {
            self.read_again(proxy);
        }
    }

    /// Reads the config again: proxies are told what was found right.
    fn read_again(&mut self, proxy: Option<Pid>) {
        notify(Phase::Reloading);
        match self.told.read_again() {
            Ok(()) => {
                info!("the config was read again");
                // One that has just ended reads it when it starts.
                proxy.map(|pid| kill_process(pid, Signal::HUP));
            }
            Err(error) => {
                error!("nothing has changed: {error:#}");
                // SIGHUP opens logs again, too.
                proxy.map(|pid| kill_process(pid, Signal::USR1));
            }
        }
        notify(Phase::Ready);
    }

    /// Starts a proxy that has the same doors, and is told `more`.
    fn start(&self, more: &[&str]) -> Result<Process> {
        let (mut open, doors) = self.doors.legacy();
        let doors: Vec<_> = doors.iter().map(ToString::to_string).collect();
        let mut command = Command::new("/proc/self/exe");
        command.args(env::args_os().skip(1)).arg("--doors").arg(doors.join(","));
        command.args(self.told.number().map(|fd| format!("--told={fd}"))).args(more);
        open.extend(self.told.legacy());
        // The manager hears of us.
        command.env_remove("NOTIFY_SOCKET");
        inherit::keep(&mut command, &open);
        // It reads the config and opens logs after it has begun to hear them.
        signals::ignore_at_start(&mut command, &[SIGHUP, SIGUSR1]);
        die_with_parent(&mut command);
        let proxy = Process::spawn(command).context("start a proxy")?;
        Ok(proxy)
    }

    /// Closes the doors and has the proxy end its flows; a second signal ends it at once.
    fn drain(self, mut proxy: Process, pid: Pid, ended: &OwnedFd) -> Result<()> {
        notify(Phase::Stopping);
        let Demand { doors, signals: SignalPipes { mut end, .. }, interception, .. } = self;
        // Before nobody answers them here.
        interception.pass_by();
        drop(doors);
        // One byte a signal: the first is known.
        let _ = end.read(&mut [0]);
        kill_process(pid, Signal::TERM)?;
        wait(&[ended, &end], None);
        if proxy.try_wait()?.is_none() {
            proxy.kill()?;
        }
        Ok(())
    }
}

/// Waits until one of these can be read, for ever if no time is given.
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
