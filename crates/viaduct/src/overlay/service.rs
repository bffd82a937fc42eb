//! Event loop of a node: probes, the table socket, signals.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::net::{TcpListener, UdpSocket};
use tracing::{debug, error, info};
use viaduct_proto::flow::Registry;
use viaduct_proto::overlay::{Node, Table};
use viaduct_proto::time::Instant;
use viaduct_sys::clock;
use viaduct_sys::process::raise_fd_limit;

use super::config::Config;
use super::table_socket::TableSocket;
use crate::metrics::{self, Metrics, Page};
use crate::notify::{Phase, notify};
use crate::random::entropy;
use crate::settings::thread::ProxyThread;
use crate::signals::{SignalStreams, Signals};
use crate::watchdog::Watchdog;

/// Interval at which the table is published even if it is unchanged.
const PUBLISH_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between checks whether the last flow has ended.
const DRAIN_POLL: Duration = Duration::from_millis(50);
/// Size of the receive buffer in bytes, more than the length of any message.
const MAX_MESSAGE: usize = 2_048;

struct Service<'a> {
    path: &'a Path,
    registry: &'a Registry,
    config: Config,
    node: Node,
    socket: UdpSocket,
    /// Proxy for the flows that are routed over this node.
    flows: Option<ProxyThread>,
    /// Version of the last published table.
    published: u64,
}

/// Runs a node until a signal terminates it.
pub fn run(path: &Path, config: Config, registry: &Registry) -> Result<()> {
    // Each client of the table socket needs a descriptor.
    raise_fd_limit();
    let (runtime, signals) = Signals::register()?.into_parts();
    let node = Node::new(config.node.clone(), entropy(), now())?;
    let socket = config.socket();
    let done = runtime.block_on(async {
        let table_socket = TableSocket::open(&socket)?;
        let listen = config.listen;
        let udp = UdpSocket::bind(listen)
            .await
            .with_context(|| format!("listen: cannot use {listen}"))?;
        let metrics_listener = config.metrics.map(metrics::listen).transpose()?;
        let flows = config.socks.clone().map(ProxyThread::start).transpose().context("[socks]")?;
        let service = Service { path, registry, config, node, socket: udp, flows, published: 0 };
        service.serve(&table_socket, metrics_listener, signals).await
    });
    notify(Phase::Stopping);
    done
}

impl Service<'_> {
    async fn serve(
        mut self,
        table_socket: &TableSocket,
        metrics_listener: Option<TcpListener>,
        mut signals: SignalStreams,
    ) -> Result<()> {
        info!("overlay {}: probes at {}", self.config.node.name, self.config.listen);
        let (mut ticks, mut watchdog) = (tokio::time::interval(PUBLISH_INTERVAL), Watchdog::new());
        let mut buffer = [0; MAX_MESSAGE];
        let metrics = Metrics::default();
        self.publish(table_socket)?;
        notify(Phase::Ready);
        let mut draining = false;
        while !draining || self.flows.as_ref().is_some_and(|flows| !flows.engine.is_over()) {
            let wait = self.node.poll_timeout().map_or(PUBLISH_INTERVAL, |at| at.since(now()));
            tokio::select! {
                () = tokio::time::sleep(wait) => self.node.handle_timeout(now()),
                got = self.socket.recv_from(&mut buffer) => match got {
                    Ok((length, _)) => self.node.handle_datagram(now(), &buffer[..length]),
                    Err(error) => debug!("cannot receive a probe: {error}"),
                },
                _ = ticks.tick() => self.publish(table_socket)?,
                () = watchdog.due() => watchdog.answer(self.age()),
                () = table_socket.serve() => {}
                client = metrics::accept(metrics_listener.as_ref()) => {
                    let table = self.table();
                    let trouble = Some(table.troubles().join("\n")).filter(|all| !all.is_empty());
                    let counters = super::metrics::encode(&table);
                    metrics.answer(client, Page { counters, trouble });
                }
                _ = signals.hangup.recv() => {
                    self.reopen_log();
                    self.reload_and_log();
                }
                _ = signals.user1.recv() => self.reopen_log(),
                _ = signals.terminate.recv() => if self.begin_drain(&mut draining) { break },
                _ = signals.interrupt.recv() => if self.begin_drain(&mut draining) { break },
                () = tokio::time::sleep(DRAIN_POLL), if draining => {}
            }
            self.transmit();
            if self.node.version() != self.published {
                self.publish(table_socket)?;
            }
        }
        info!("stopping");
        self.flows.take().map_or(Ok(()), |flows| flows.engine.end())
    }

    /// Age of the oldest heartbeat of the proxy's event loops.
    fn age(&self) -> Duration {
        self.flows.as_ref().map(|flows| flows.engine.handle.age()).unwrap_or_default()
    }

    /// Stops accepting flows; existing flows may finish. Returns false at the first call. Returns
    /// true at further calls, upon which the service must end immediately.
    fn begin_drain(&self, draining: &mut bool) -> bool {
        if let Some(flows) = &self.flows {
            flows.engine.handle.drain();
        }
        std::mem::replace(draining, true)
    }

    fn transmit(&mut self) {
        while let Some((peer, datagram)) = self.node.poll_transmit() {
            let Some(to) = self.config.endpoints.get(peer) else { continue };
            // A probe that cannot be sent is not answered, and so counts as lost.
            if let Err(error) = self.socket.try_send_to(&datagram, *to) {
                debug!("cannot send a probe to {to}: {error}");
            }
        }
    }

    fn publish(&mut self, table_socket: &TableSocket) -> Result<()> {
        self.published = self.node.version();
        table_socket.publish(serde_json::to_vec(&self.table())?);
        Ok(())
    }

    fn table(&self) -> Table {
        Table { states: self.node.states(now()), ..self.node.table() }
    }

    /// Reopens the proxy's access log.
    fn reopen_log(&self) {
        self.flows.iter().for_each(|flows| flows.engine.handle.reopen_log());
    }

    fn reload_and_log(&mut self) {
        notify(Phase::Reloading);
        match self.reload() {
            Ok(()) => info!("the config was read again"),
            Err(error) => error!("not reloaded, nothing has changed: {error:#}"),
        }
        notify(Phase::Ready);
    }

    /// Reloads the config. After an error, the config is unchanged.
    fn reload(&mut self) -> Result<()> {
        let new = Config::load(self.path, self.registry)?;
        let same = |what: &str, same: bool| match same {
            true => Ok(()),
            false => bail!("{what}: has changed; that needs a restart"),
        };
        same("listen", new.listen == self.config.listen)?;
        same("name, run_dir", new.socket() == self.config.socket())?;
        same("metrics", new.metrics == self.config.metrics)?;
        same("[socks]", new.socks.is_some() == self.flows.is_some())?;
        new.try_node().with_context(|| self.path.display().to_string())?;
        if let (Some(flows), Some(socks)) = (&mut self.flows, &new.socks) {
            flows.reload(socks.clone()).context("[socks]")?;
        }
        self.node.reload(new.node.clone(), now())?;
        self.config = new;
        Ok(())
    }
}

fn now() -> Instant {
    Instant::from_nanos(clock::now())
}
