//! The control side of a proxy: signals, the status socket, metrics. It carries no bytes of flows
//! and may be slow.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tracing::{error, info};
use viaduct_proto::flow::Registry;

use super::families;
use super::handle::Handle;
use super::options::ProxyOptions;
use super::settings::Settings;
use super::snapshot::ProxyStatus;
use crate::metrics::{Metrics, Page};
use crate::notify::{Phase, notify};
use crate::signals::{Heard, Signals};
use crate::status::socket::check_free;

/// How long a client of the status socket may take to read.
const READ_WITHIN: Duration = Duration::from_secs(5);
/// When a client that could not be accepted is tried again.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Everything but flows.
pub struct Control {
    options: Option<ProxyOptions>,
    registry: Registry,
    proxy: Handle,
    status: UnixListener,
    doors: Option<TcpListener>,
    metrics: Metrics,
}

/// Runs the control side beside the workers of `proxy`, in a thread of its own, until the process ends.
///
/// # Errors
/// The status socket or the metrics' address cannot be had.
pub fn start(
    options: Option<ProxyOptions>,
    registry: Registry,
    proxy: Handle,
    signals: Signals,
) -> Result<()> {
    let (runtime, heard) = signals.into_parts();
    let control = {
        let _entered = runtime.enter();
        Control {
            status: status_socket(proxy.settings())?,
            doors: proxy.settings().metrics.map(metrics).transpose()?,
            metrics: Metrics::default(),
            options,
            registry,
            proxy,
        }
    };
    let run = move || {
        if let Err(error) = runtime.block_on(control.serve(heard)) {
            error!("the control side has ended: {error:#}");
        }
    };
    std::thread::Builder::new().name("control".to_owned()).spawn(run)?;
    Ok(())
}

impl Control {
    async fn serve(mut self, mut heard: Heard) -> Result<()> {
        notify(Phase::Ready);
        let mut stopping = false;
        loop {
            tokio::select! {
                _ = heard.hangup.recv() => self.reload(),
                _ = heard.terminate.recv() => self.stop(&mut stopping),
                _ = heard.interrupt.recv() => self.stop(&mut stopping),
                client = asker(&self.status) => show(client, &self.proxy.status().await)?,
                client = next(self.doors.as_ref()) => {
                    let page = self.page().await;
                    self.metrics.answer(client, page);
                }
            }
        }
    }

    /// Lets flows end; the second time it lets nothing.
    fn stop(&self, stopping: &mut bool) {
        notify(Phase::Stopping);
        let again = std::mem::replace(stopping, true);
        if again { self.proxy.stop() } else { self.proxy.drain() }
    }

    /// Reads the config again; all of it takes effect, or none. No flow is cut.
    fn reload(&mut self) {
        notify(Phase::Reloading);
        let mut read = || {
            let Some(options) = self.options.as_ref().filter(|said| said.config.is_some()) else {
                bail!("there is no config file to read again (--config)");
            };
            self.proxy.reload(Settings::load(options, &self.registry)?)
        };
        match read() {
            Ok(()) => info!("the config was read again"),
            Err(error) => error!("nothing has changed: {error:#}"),
        }
        notify(Phase::Ready);
    }

    async fn page(&self) -> Page {
        let status = self.proxy.status().await;
        let passed_by = "rules of nftables or ip rule are missing: connections pass by";
        let trouble = match (status.hangs, status.missing) {
            (true, _) => Some("the proxy's loop does not answer".to_owned()),
            (_, true) => Some(passed_by.to_owned()),
            _ => None,
        };
        Page { counters: families::encode(&status), trouble }
    }
}

fn status_socket(settings: &Settings) -> Result<UnixListener> {
    let path = settings.socket();
    check_free(&path)?;
    fs::create_dir_all(&settings.run_dir)
        .with_context(|| format!("run-dir: {}", settings.run_dir.display()))?;
    let _ = fs::remove_file(&path);
    UnixListener::bind(&path).with_context(|| format!("status socket {}", path.display()))
}

fn metrics(at: SocketAddr) -> Result<TcpListener> {
    let bind = || {
        let listener = std::net::TcpListener::bind(at)?;
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    };
    bind().with_context(|| format!("metrics: cannot use {at}"))
}

/// Sends the status as one JSON object and closes.
fn show(mut client: UnixStream, status: &ProxyStatus) -> Result<()> {
    let text = serde_json::to_vec(status)?;
    tokio::spawn(tokio::time::timeout(READ_WITHIN, async move { client.write_all(&text).await }));
    Ok(())
}

/// The next client of the status socket.
async fn asker(listener: &UnixListener) -> UnixStream {
    loop {
        match listener.accept().await {
            Ok((client, _)) => return client,
            // Out of descriptors, say: spinning would not help.
            Err(_) => tokio::time::sleep(ACCEPT_AGAIN).await,
        }
    }
}

/// The next client of the metrics; never, where nobody listens.
async fn next(listener: Option<&TcpListener>) -> TcpStream {
    let Some(listener) = listener else { return std::future::pending().await };
    loop {
        match listener.accept().await {
            Ok((client, _)) => return client,
            Err(_) => tokio::time::sleep(ACCEPT_AGAIN).await,
        }
    }
}
