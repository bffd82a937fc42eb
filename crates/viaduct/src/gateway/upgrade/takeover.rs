//! The new process's side of a gateway's upgrade.

use std::net::TcpListener;
use std::os::fd::{OwnedFd, RawFd};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use viaduct_proto::flow::Registry;
use viaduct_proto::repair::Local;
use viaduct_proto::time::Instant;
use viaduct_proto::upgrade::{GatewayRecord, TakerStep};
use viaduct_sys::clock;
use viaduct_sys::process::inherited_fds;
use viaduct_sys::socket::udp::UdpBatch;

use super::{Sockets, UpgradeCommand, WorkerState};
use crate::gateway::commands::Command;
use crate::gateway::config::Config;
use crate::gateway::fake_tcp::FakeTcpPort;
use crate::gateway::injector::Injector;
use crate::gateway::ports::Ports;
use crate::gateway::site::Site;
use crate::gateway::system::System;
use crate::gateway::tls::TlsTunnels;
use crate::gateway::{ConfigSource, Gateway, Parts, local};
use crate::handover::{ConfigText, Takeover, config_text};
use crate::signals::Signals;

/// Time for which the new process receives without sending. In this time its store fills with
/// packets, and it receives the peers' reports on the links, which come once a second.
const WARM_UP: Duration = Duration::from_millis(1_500);

/// State and descriptors that the old process sends before it stops.
struct Inheritance {
    record: GatewayRecord,
    config: String,
    sockets: Sockets,
    /// Listener of the metrics, and socket of the packet cache.
    listeners: [Option<OwnedFd>; 2],
    state: WorkerState,
}

/// Continues the gateway of the process at the other end of the inherited descriptor `socket`.
pub fn run(path: &Path, registry: Registry, socket: RawFd) -> Result<()> {
    let signals = Signals::register()?;
    let socket = inherited_fds::take(socket).context("there is no process to take over from")?;
    let mut takeover = Takeover::begin(socket)?;
    let inheritance = receive(&mut takeover)?;
    let isn_key = inheritance.record.isn_key;
    let prepared = prepare(path, registry, inheritance);
    let mut gateway = takeover.or_refuse(prepared)?;
    takeover.wait(WARM_UP)?;
    takeover.ready()?;
    let state = receive_state(&mut takeover, isn_key)?;
    // From here on this process is responsible, even if the old one is killed.
    gateway.system.own();
    takeover.confirm();
    gateway.to_workers[0].send(Command::Upgrade(UpgradeCommand::Take(Box::new(state))));
    gateway.run(signals)
}

fn receive(takeover: &mut Takeover) -> Result<Inheritance> {
    let (TakerStep::PrepareGateway(record), fds) = takeover.next()? else {
        bail!("the old process has sent no gateway");
    };
    let mut state = WorkerState { isn_key: record.isn_key, ..WorkerState::default() };
    for _ in 0..record.peers {
        match takeover.next()? {
            (TakerStep::KeepPeer(peer), _) => state.peers.push(*peer),
            _ => bail!("the old process has sent something other than peers"),
        }
    }
    let mut fds = fds.into_iter();
    let mut next = || fds.next().context("a descriptor is missing");
    let (config, udp) = (next()?, next()?);
    let mut next_if = |has: bool| if has { next().map(Some) } else { Ok(None) };
    let tun = next_if(record.has_tun)?;
    let listeners = [next_if(record.has_metrics)?, next_if(record.has_cache)?];
    let sockets = Sockets { udp, tun, fake_tcp: fds.collect() };
    let config = takeover.or_refuse(config_text(config))?;
    Ok(Inheritance { record, config, sockets, listeners, state })
}

/// Receives the state that the old process had when it stopped.
fn receive_state(takeover: &mut Takeover, isn_key: [u64; 4]) -> Result<WorkerState> {
    let mut state = WorkerState { isn_key, ..WorkerState::default() };
    loop {
        match takeover.next()?.0 {
            TakerStep::KeepPeer(peer) => state.peers.push(*peer),
            TakerStep::KeepConnections(some) => state.connections.extend(some),
            TakerStep::KeepCut(cut) => state.cut = cut,
            TakerStep::Serve => return Ok(state),
            _ => bail!("the old process has sent something other than peers"),
        }
    }
}

/// Prepares a gateway with the config in force. The gateway sends nothing until it takes over.
fn prepare(path: &Path, registry: Registry, inheritance: Inheritance) -> Result<Gateway> {
    let Inheritance { record, config: text, sockets, listeners, state } = inheritance;
    let config = Config::parse(path, &text, None).context("the config in force")?;
    ensure!(
        config.secret.public().to_string() == record.key,
        "[site] key has changed; that needs a restart"
    );
    ensure!(config.peers.iter().all(|peer| !peer.split), "split mode needs a restart");
    ensure!(config.workers == 1, "several workers need a restart");
    ensure!(config.wans.is_empty(), "two WANs need a restart");
    let mut site = Site::new(config).with_context(|| path.display().to_string())?;
    // The routes of the slices are those that the old process has set, if it has set them.
    site.is_serving = !record.lacks_routes;
    let now = Instant::from_nanos(clock::now());
    let local = local(&site.config);
    let fake_tcp = fake_tcp(&mut site, sockets.fake_tcp, &local, now)?;
    let udp = UdpBatch::inherited(sockets.udp).context("[site] listen")?;
    let mut injector = Injector::new(&site);
    if let Some(tun) = sockets.tun {
        injector.take_over(tun)?;
    }
    let system = System::take_over(&site, record.offloads_off, record.mark as usize)?;
    let source = ConfigSource::new(path, registry, ConfigText::new(Some(text)));
    let ports = Ports { udp, second: None, fake_tcp, injector };
    let inherited = Some((state, listeners));
    let flows = (None, TlsTunnels::new(&site.config));
    Parts { source, site, system, flows, local, ports, inherited }.start()
}

/// Ports of fake TCP, if the old process has some.
fn fake_tcp(
    site: &mut Site,
    listeners: Vec<OwnedFd>,
    local: &Local,
    now: Instant,
) -> Result<Option<FakeTcpPort>> {
    if listeners.is_empty() {
        return Ok(None);
    }
    let listeners = listeners.into_iter().map(TcpListener::from).collect();
    let port = FakeTcpPort::with_listeners(site, local.entropy.clone(), now, listeners)?;
    site.fake_tcp = port.addresses()?;
    Ok(Some(port))
}
