//! Event loop of a node: probes, the status socket, signals.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::net::{TcpListener, UdpSocket};
use tracing::{debug, error, info};
use viaduct_proto::flow::Registry;
use viaduct_proto::overlay::{Node, Table};
use viaduct_proto::time::Instant;
use viaduct_sys::clock;

use super::config::Config;
use super::desk::Desk;
use super::families;
use crate::metrics::{self, Metrics, Page};
use crate::notify::{Phase, notify};
use crate::proxy::handle::Beside;
use crate::shell::entropy;
use crate::signals::{Heard, Signals};

/// Interval at which the table is published without a change.
const SECOND: Duration = Duration::from_secs(1);
/// Interval between checks for the end of the last flow.
const DRAINED: Duration = Duration::from_millis(50);
/// Buffer size: longer than any message.
const LONGEST: usize = 2_048;

struct Service<'a> {
    path: &'a Path,
    registry: &'a Registry,
    config: Config,
    node: Node,
    socket: UdpSocket,
    /// Proxy of the flows that go through this node.
    flows: Option<Beside>,
    /// Version of the last published table.
    told: u64,
}

/// Runs a node until a signal ends it.
pub fn run(path: &Path, config: Config, registry: &Registry) -> Result<()> {
    let (runtime, heard) = Signals::register()?.into_parts();
    let node = Node::new(config.node.clone(), entropy(), now())?;
    let socket = config.socket();
    let done = runtime.block_on(async {
        let desk = Desk::open(&socket)?;
        let listen = config.listen;
        let udp = UdpSocket::bind(listen).await.with_context(|| format!("listen: {listen}"))?;
        let doors = config.metrics.map(metrics::listen).transpose()?;
        let flows = config.socks.clone().map(Beside::start).transpose().context("[socks]")?;
        let service = Service { path, registry, config, node, socket: udp, flows, told: 0 };
        service.serve(&desk, doors, heard).await
    });
    notify(Phase::Stopping);
    done
}

impl Service<'_> {
    async fn serve(
        mut self,
        desk: &Desk,
        doors: Option<TcpListener>,
        mut heard: Heard,
    ) -> Result<()> {
        info!("overlay {}: probes at {}", self.config.node.name, self.config.listen);
        let mut second = tokio::time::interval(SECOND);
        let mut buffer = [0; LONGEST];
        let metrics = Metrics::default();
        self.tell(desk)?;
        notify(Phase::Ready);
        let mut draining = false;
        while !draining || self.flows.as_ref().is_some_and(|flows| !flows.is_over()) {
            let wait = self.node.poll_timeout().map_or(SECOND, |at| at.since(now()));
            tokio::select! {
                () = tokio::time::sleep(wait) => self.node.handle_timeout(now()),
                got = self.socket.recv_from(&mut buffer) => match got {
                    Ok((length, _)) => self.node.handle_datagram(now(), &buffer[..length]),
                    Err(error) => debug!("receive a probe: {error}"),
                },
                _ = second.tick() => self.tell(desk)?,
                () = desk.serve() => {}
                client = metrics::next(doors.as_ref()) => {
                    let table = self.table();
                    let trouble = Some(table.troubles().join("\n")).filter(|all| !all.is_empty());
                    metrics.answer(client, Page { counters: families::encode(&table), trouble });
                }
                _ = heard.hangup.recv() => {
                    self.reopen_log();
                    self.reload_and_say();
                }
                _ = heard.user1.recv() => self.reopen_log(),
                _ = heard.terminate.recv() => if self.ends(&mut draining) { break },
                _ = heard.interrupt.recv() => if self.ends(&mut draining) { break },
                () = tokio::time::sleep(DRAINED), if draining => {}
            }
            self.transmit();
            if self.node.version() != self.told {
                self.tell(desk)?;
            }
        }
        info!("stopping");
        self.flows.take().map_or(Ok(()), Beside::end)
    }

    /// Stops accepting flows through this node, and lets the existing ones finish. Returns true
    /// from the second call on, after which the service ends at once.
    fn ends(&self, draining: &mut bool) -> bool {
        if let Some(flows) = &self.flows {
            flows.handle.drain();
        }
        std::mem::replace(draining, true)
    }

    fn transmit(&mut self) {
        while let Some((peer, datagram)) = self.node.poll_transmit() {
            let Some(to) = self.config.endpoints.get(peer) else { continue };
            // A probe that cannot be sent counts as lost, like any other.
            if let Err(error) = self.socket.try_send_to(&datagram, *to) {
                debug!("send a probe to {to}: {error}");
            }
        }
    }

    fn tell(&mut self, desk: &Desk) -> Result<()> {
        self.told = self.node.version();
        desk.publish(serde_json::to_vec(&self.table())?);
        Ok(())
    }

    fn table(&self) -> Table {
        Table { states: self.node.states(now()), ..self.node.table() }
    }

    /// Reopens the access log of flows that go through this node.
    fn reopen_log(&self) {
        self.flows.iter().for_each(|flows| flows.handle.reopen_log());
    }

    fn reload_and_say(&mut self) {
        notify(Phase::Reloading);
        match self.reload() {
            Ok(()) => info!("the config was read again"),
            Err(error) => error!("nothing has changed: {error:#}"),
        }
        notify(Phase::Ready);
    }

    /// Reloads the config. All of it takes effect, or none.
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
            flows.handle.reload(socks.clone()).context("[socks]")?;
        }
        self.node.reload(new.node.clone(), now())?;
        self.config = new;
        Ok(())
    }
}

fn now() -> Instant {
    Instant::from_nanos(clock::now())
}
