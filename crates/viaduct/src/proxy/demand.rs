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
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::low_level::pipe;
use tracing::{info, warn};
use viaduct_sys::process::{Process, die_with_parent};
use viaduct_sys::{inherit, memory};

use super::doors::{Doors, Syns};
use crate::notify::{Phase, notify};

/// The pause after a crash, and the longest; each further one doubles it.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How often a parent whose proxy runs looks for a signal to reload.
const LOOK_UP: Duration = Duration::from_secs(1);
/// A proxy that ran for so long did not crash at once.
const WELL: Duration = Duration::from_secs(30);

/// The parent.
pub struct Demand {
    doors: Doors,
    /// Readable when a signal asks for the end.
    signals: UnixStream,
    /// Whether a signal asked for the config to be read again.
    reload: Arc<AtomicBool>,
}

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    Work,
    Signal,
    Time,
}

impl Demand {
    /// Waits at `doors`; proxies are told what this process was.
    pub fn new(doors: Doors) -> Result<Demand> {
        let (signals, told) = UnixStream::pair()?;
        for signal in [SIGTERM, SIGINT] {
            pipe::register(signal, told.try_clone()?)?;
        }
        let reload = Arc::default();
        flag::register(SIGHUP, Arc::clone(&reload))?;
        Ok(Demand { doors, signals, reload })
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
    pub fn run(self) -> Result<()> {
        let mut pause = Duration::ZERO;
        notify(Phase::Ready);
        loop {
            if wait(&[&self.signals], Some(pause)) == Woken::Work
                || self.wait_for_work() == Woken::Signal
            {
                return Ok(());
            }
            let begun = Instant::now();
            let mut proxy = self.start(&[])?;
            info!(pid = proxy.id(), "started");
            let pid = Pid::from_child(&proxy);
            let ended = pidfd_open(pid, PidfdFlags::empty())?;
            if self.wait_for_end(pid, &ended)? == Woken::Signal {
                return self.drain(proxy, pid);
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
    fn wait_for_work(&self) -> Woken {
        // Whatever this has run so far, it will not need it for some time.
        let _ = memory::let_go_of_start();
        let (open, _) = self.doors.legacy();
        let all: Vec<&dyn AsFd> = open.iter().map(|fd| fd as &dyn AsFd).collect();
        self.wait_or_signal(&all, None)
    }

    /// Waits until the proxy has ended; one that is there hears of a reload.
    fn wait_for_end(&self, pid: Pid, ended: &OwnedFd) -> Result<Woken> {
        loop {
            let woken = self.wait_or_signal(&[ended], Some(LOOK_UP));
            if woken != Woken::Time {
                return Ok(woken);
            }
            if self.reload.swap(false, Ordering::Relaxed) {
                kill_process(pid, Signal::HUP)?;
            }
        }
    }

    fn wait_or_signal(&self, work: &[&dyn AsFd], at_most: Option<Duration>) -> Woken {
        let all = [&[&self.signals as &dyn AsFd], work].concat();
        match wait(&all, at_most) {
            Woken::Work if wait(&[&self.signals], Some(Duration::ZERO)) == Woken::Work => {
                Woken::Signal
            }
            woken => woken,
        }
    }

    /// Starts a proxy that has the same doors, and is told `more`.
    fn start(&self, more: &[&str]) -> Result<Process> {
        let (open, doors) = self.doors.legacy();
        let doors: Vec<_> = doors.iter().map(ToString::to_string).collect();
        let mut command = Command::new("/proc/self/exe");
        command.args(env::args_os().skip(1)).arg("--doors").arg(doors.join(","));
        command.args(more);
        // The manager hears of us.
        command.env_remove("NOTIFY_SOCKET");
        inherit::keep(&mut command, &open);
        die_with_parent(&mut command);
        let proxy = Process::spawn(command).context("start a proxy")?;
        Ok(proxy)
    }

    /// Closes the doors and has the proxy end its flows; a second signal ends it at once.
    fn drain(self, mut proxy: Process, pid: Pid) -> Result<()> {
        notify(Phase::Stopping);
        let Demand { doors, mut signals, .. } = self;
        drop(doors);
        // One byte a signal: the first is known.
        let _ = std::io::Read::read(&mut signals, &mut [0]);
        let ended = pidfd_open(pid, PidfdFlags::empty())?;
        kill_process(pid, Signal::TERM)?;
        wait(&[&ended, &signals], None);
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
