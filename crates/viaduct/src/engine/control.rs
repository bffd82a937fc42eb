//! The control side of a proxy: signals, the status socket, metrics. The control side moves no
//! bytes of flows, and may be slow.

use std::sync::Arc;

use anyhow::{Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::UnboundedReceiver;
use tracing::{error, info};

use super::config::EngineConfig;
use super::handle::Handle;
use crate::handover::{Outcome, Upgrader, next_outcome};
use crate::metrics::{self, Metrics, Page};
use crate::notify::{Phase, notify};
use crate::signals::{SignalStreams, Signals};
use crate::status_socket;
use crate::watchdog::Watchdog;

/// Control side: everything but flows.
pub struct Control {
    load: Option<Load>,
    proxy: Handle,
    status: UnixListener,
    metrics_listener: Option<TcpListener>,
    metrics: Metrics,
    upgrader: Option<Arc<Upgrader>>,
    outcomes: Option<UnboundedReceiver<Outcome>>,
}

/// Stage of the service in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Up,
    Stopping,
    /// Another process serves; this one only drains.
    Released,
}

/// Function that reads the config again from its file, and refuses changes that need a restart.
pub type Load = Box<dyn FnMut() -> Result<EngineConfig> + Send>;

/// Inputs of the control side.
#[derive(Default)]
pub struct ControlInputs {
    /// Function that reads the config again; `None` if there is no config file.
    pub load: Option<Load>,
    /// Listener of the metrics.
    pub metrics: Option<std::net::TcpListener>,
    /// Upgrader, which hands the service to a new process, and the receiver of its outcomes.
    pub upgrade: Option<(Arc<Upgrader>, UnboundedReceiver<Outcome>)>,
    /// True if this process takes over from a running one, whose status socket it replaces.
    pub takes_over: bool,
}

/// Control side that has not started.
pub struct Prepared {
    runtime: Runtime,
    control: Control,
    heard: SignalStreams,
    name: SocketName,
}

/// Name of the status socket.
enum SocketName {
    Ours(status_socket::Name),
    Unpublished(status_socket::Unpublished),
}

/// Opens the status socket of the control side of `proxy`.
///
/// # Errors
/// The status socket cannot be opened.
pub fn prepare(inputs: ControlInputs, proxy: Handle, signals: Signals) -> Result<Prepared> {
    let ControlInputs { load, metrics, upgrade, takes_over } = inputs;
    let (runtime, heard) = signals.into_parts();
    let entered = runtime.enter();
    let metrics_listener = metrics.map(TcpListener::from_std).transpose()?;
    let path = proxy.config().socket();
    let (status, name) = if takes_over {
        let (status, name) = status_socket::beside(&path, |path| UnixListener::bind(path))?;
        (status, SocketName::Unpublished(name))
    } else {
        let (status, name) = status_socket::open(&path)?;
        (status, SocketName::Ours(name))
    };
    drop(entered);
    let (upgrader, outcomes) = upgrade.unzip();
    let metrics = Metrics::default();
    let control = Control { load, proxy, status, metrics_listener, metrics, upgrader, outcomes };
    Ok(Prepared { runtime, control, heard, name })
}

impl Prepared {
    /// Runs the control side in a thread of its own, until the process ends. Returns the name of
    /// the status socket. The caller removes the socket by dropping this value, because the thread
    /// does not notice the end of the process.
    ///
    /// # Errors
    /// The status socket cannot be named, or no thread can be started.
    pub fn start(self) -> Result<status_socket::Name> {
        let Prepared { runtime, control, heard, name } = self;
        let name = match name {
            SocketName::Ours(name) => name,
            SocketName::Unpublished(name) => name.publish()?,
        };
        let run = move || {
            if let Err(error) = runtime.block_on(control.serve(heard)) {
                error!("the control side has ended: {error:#}");
            }
        };
        std::thread::Builder::new().name("control".to_owned()).spawn(run)?;
        Ok(name)
    }
}

impl Control {
    async fn serve(mut self, mut heard: SignalStreams) -> Result<()> {
        notify(Phase::Ready);
        let (mut stage, mut watchdog) = (Stage::Up, Watchdog::new());
        loop {
            tokio::select! {
                () = watchdog.due() => watchdog.answer(self.proxy.age()),
                _ = heard.hangup.recv() => {
                    self.proxy.reopen_log();
                    if stage != Stage::Released {
                        self.upgrade_or_reload();
                    }
                }
                outcome = next_outcome(self.outcomes.as_mut()) => match outcome {
                    Outcome::Failed => if stage == Stage::Up { self.reload() },
                    Outcome::Released => {
                        self.metrics_listener = None;
                        stage = Stage::Released;
                    }
                },
                _ = heard.user1.recv() => self.proxy.reopen_log(),
                _ = heard.terminate.recv() => self.stop(&mut stage),
                _ = heard.interrupt.recv() => self.stop(&mut stage),
                client = status_socket::accept(&self.status) => {
                    status_socket::show(client, &self.proxy.status().await)?;
                }
                client = metrics::accept(self.metrics_listener.as_ref()) => {
                    let page = self.page().await;
                    self.metrics.answer(client, page);
                }
            }
        }
    }

    /// Lets flows end. A second call, or the first one after another process has taken over, ends
    /// the workers immediately. An upgrade in progress is aborted; if the new process has just
    /// taken over, the signal is passed on to it.
    fn stop(&self, stage: &mut Stage) {
        if *stage == Stage::Up
            && let Some(successor) = self.upgrader.as_ref().and_then(|upgrader| upgrader.settle())
        {
            if let Some(process) = Pid::from_raw(successor.cast_signed()) {
                let _ = kill_process(process, Signal::TERM);
            }
            return;
        }
        if *stage != Stage::Released {
            notify(Phase::Stopping);
        }
        match std::mem::replace(stage, Stage::Stopping) {
            Stage::Up => self.proxy.drain(),
            Stage::Stopping | Stage::Released => self.proxy.stop(),
        }
    }

    /// Upgrades if an upgrade is due, and otherwise reloads.
    fn upgrade_or_reload(&mut self) {
        let Some(upgrader) = self.upgrader.as_ref().filter(|upgrader| upgrader.is_due()) else {
            return self.reload();
        };
        if let Err(error) = upgrader.begin() {
            error!("not upgraded: cannot start a thread: {error}");
            self.reload();
        }
    }

    /// Reads the config again; either all of it takes effect, or none. Open flows continue.
    fn reload(&mut self) {
        notify(Phase::Reloading);
        let mut read = || {
            let Some(load) = &mut self.load else {
                bail!("there is no config file to read again (--config)");
            };
            self.proxy.reload(load()?);
            Ok(())
        };
        match read() {
            Ok(()) => info!("the config was read again"),
            Err(error) => error!("nothing has changed: {error:#}"),
        }
        notify(Phase::Ready);
    }

    async fn page(&self) -> Page {
        let status = self.proxy.status().await;
        Page { counters: super::metrics::encode(&status), trouble: status.trouble() }
    }
}
