//! The control side of a proxy: signals, the status socket, metrics. It moves no bytes of flows,
//! and may be slow.

use std::net::SocketAddr;

use anyhow::{Result, bail};
use tokio::net::{TcpListener, UnixListener};
use tracing::{error, info};

use super::config::EngineConfig;
use super::handle::Handle;
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
}

/// Reads the config again from its file, and refuses changes that need a restart.
pub type Load = Box<dyn FnMut() -> Result<EngineConfig> + Send>;

/// Runs the control side beside the workers of `proxy`, in a thread of its own, until the process
/// ends. Returns the name of the status socket, which the caller removes by dropping it: the thread
/// does not notice the end of the process. `load` reads the config again; `None` if there is no
/// config file. `metrics` is the address of the metrics. Errors: the status socket or the metrics'
/// address cannot be opened.
pub fn start(
    load: Option<Load>,
    proxy: Handle,
    metrics: Option<SocketAddr>,
    signals: Signals,
) -> Result<status_socket::Name> {
    let (runtime, heard) = signals.into_parts();
    let entered = runtime.enter();
    let metrics_listener = metrics.map(metrics::listen).transpose()?;
    let (status, name) = status_socket::open(&proxy.config().socket())?;
    drop(entered);
    let metrics = Metrics::default();
    let control = Control { load, proxy, status, metrics_listener, metrics };
    let run = move || {
        if let Err(error) = runtime.block_on(control.serve(heard)) {
            error!("the control side has ended: {error:#}");
        }
    };
    std::thread::Builder::new().name("control".to_owned()).spawn(run)?;
    Ok(name)
}

impl Control {
    async fn serve(mut self, mut heard: SignalStreams) -> Result<()> {
        notify(Phase::Ready);
        let (mut stopping, mut watchdog) = (false, Watchdog::new());
        loop {
            tokio::select! {
                () = watchdog.due() => watchdog.answer(self.proxy.age()),
                _ = heard.hangup.recv() => {
                    self.proxy.reopen_log();
                    self.reload();
                }
                _ = heard.user1.recv() => self.proxy.reopen_log(),
                _ = heard.terminate.recv() => self.stop(&mut stopping),
                _ = heard.interrupt.recv() => self.stop(&mut stopping),
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

    /// Lets flows end; the second call ends the workers at once.
    fn stop(&self, stopping: &mut bool) {
        notify(Phase::Stopping);
        let again = std::mem::replace(stopping, true);
        if again { self.proxy.stop() } else { self.proxy.drain() }
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
