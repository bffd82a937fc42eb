//! The new process's side of a gateway's upgrade.

use std::net::TcpListener;
use std::os::fd::{OwnedFd, RawFd};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use viaduct_proto::flow::Registry;
use viaduct_proto::repair::Local;
use viaduct_proto::time::Instant;
use viaduct_proto::upgrade::{GatewayRecord, TakerStep};
use viaduct_sys::clock;
use viaduct_sys::process::inherited_fds;
use viaduct_sys::socket::udp::UdpBatch;

use super::{Sockets, UpgradeCommand, WorkerState};
use crate::engine::handle::WaitingLoops;
use crate::engine::upgrade;
use crate::gateway::commands::Command;
use crate::gateway::config::Config;
use crate::gateway::fake_tcp::FakeTcpPort;
use crate::gateway::injector::Injector;
use crate::gateway::ports::Ports;
use crate::gateway::site::Site;
use crate::gateway::system::System;
use crate::gateway::tls::TlsTunnels;
use crate::gateway::{ConfigSource, Gateway, Parts, local, resolve};
use crate::handover::{ConfigText, Takeover, config_text};
use crate::settings::thread::ProxyThread;
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
    /// Instance locks of the rules.
    locks: Vec<(String, OwnedFd)>,
    /// Proxy of split mode.
    flows: Option<upgrade::Inheritance>,
}

/// Continues the gateway of the process at the other end of the inherited descriptor `socket`.
pub fn run(path: &Path, registry: Registry, socket: RawFd) -> Result<()> {
    let signals = Signals::register()?;
    let socket = inherited_fds::take(socket).context("there is no process to take over from")?;
    let mut takeover = Takeover::begin(socket)?;
    let inheritance = receive(&mut takeover)?;
    let isn_key = inheritance.record.isn_key;
    let prepared = prepare(path, registry, inheritance);
    let (mut gateway, mut loops) = takeover.or_refuse(prepared)?;
    takeover.wait(WARM_UP)?;
    takeover.ready()?;
    let states = receive_states(&mut takeover, isn_key, loops.as_mut())?;
    let is_complete = match states.len() == gateway.to_workers.len() {
        true => Ok(()),
        false => Err(anyhow!("the old process has {} packet threads", states.len())),
    };
    takeover.or_refuse(is_complete)?;
    // From here on this process is responsible, even if the old one is killed.
    gateway.system.own();
    takeover.confirm();
    for (worker, state) in gateway.to_workers.iter().zip(states) {
        worker.send(Command::Upgrade(UpgradeCommand::Take(Box::new(state))));
    }
    loops.into_iter().for_each(WaitingLoops::start);
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
    let second = next_if(record.has_second)?;
    let locks = record.locks.iter().map(|name| Ok((name.clone(), next()?)));
    let locks = locks.collect::<Result<_>>()?;
    let sockets = Sockets { udp, second, tun, fake_tcp: fds.collect() };
    let config = takeover.or_refuse(config_text(config))?;
    let flows = record.has_flows.then(|| upgrade::Inheritance::receive(takeover)).transpose()?;
    Ok(Inheritance { record, config, sockets, listeners, state, locks, flows })
}

/// Receives the states that the packet threads of the old process had when they stopped; `loops`
/// get the old process's flows. Each returned state has the peers of all threads.
fn receive_states(
    takeover: &mut Takeover,
    isn_key: [u64; 4],
    mut loops: Option<&mut WaitingLoops>,
) -> Result<Vec<WorkerState>> {
    let (mut peers, mut connections, mut states) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        let (step, fds) = takeover.next()?;
        match step {
            TakerStep::Keep(worker, flows) => {
                let waiting = loops.as_mut().context("flows without split mode");
                let restored = waiting.and_then(|of| of.loops.restore(worker, &flows, fds));
                takeover.or_refuse(restored)?;
            }
            TakerStep::KeepPeer(peer) => peers.push(*peer),
            TakerStep::KeepConnections(some) => connections.extend(some),
            TakerStep::KeepCut(cut) => {
                let connections = std::mem::take(&mut connections);
                states.push(WorkerState { isn_key, connections, cut, ..WorkerState::default() });
            }
            TakerStep::Serve => {
                if let Some((last, others)) = states.split_last_mut() {
                    others.iter_mut().for_each(|state| state.peers.clone_from(&peers));
                    last.peers = peers;
                }
                return Ok(states);
            }
            _ => bail!("the old process has sent something other than peers and flows"),
        }
    }
}

/// Prepares a gateway with the config in force. The gateway sends nothing until it takes over, and
/// the loops of its proxy still have to be started.
fn prepare(
    path: &Path,
    registry: Registry,
    inheritance: Inheritance,
) -> Result<(Gateway, Option<WaitingLoops>)> {
    let Inheritance { record, config: text, sockets, listeners, state, locks, flows } = inheritance;
    let config = Config::parse(path, &text, None).context("the config in force")?;
    ensure!(
        config.secret.public().to_string() == record.key,
        "[site] key has changed; that needs a restart"
    );
    ensure!(
        config.wans.is_empty() != record.has_second,
        "the number of WANs has changed; that needs a restart"
    );
    let (mut site, split) = resolve(config, path, &registry)?;
    // The routes of the slices are those that the old process has set, if it has set them.
    site.is_serving = !record.lacks_routes;
    let now = Instant::from_nanos(clock::now());
    let local = local(&site.config);
    let fake_tcp = fake_tcp(&mut site, sockets.fake_tcp, &local, now)?;
    let udp = UdpBatch::inherited(sockets.udp).context("[site] listen")?;
    let second =
        sockets.second.map(UdpBatch::inherited).transpose().context("[[site.wan]] listen")?;
    let mut injector = Injector::new(&site);
    if let Some(tun) = sockets.tun {
        injector.take_over(tun)?;
    }
    let mut tls = TlsTunnels::new(&site.config);
    tls.dial_again(&record.tls);
    let flows = match (split, flows) {
        (None, None) => None,
        (Some(split), Some(old)) => Some(ProxyThread::take_over(tls.applied(&split), old)?),
        _ => bail!("split mode has changed; that needs a restart"),
    };
    let (flows, loops) = flows.unzip();
    let marks = (record.offloads_off, record.mark as usize);
    let system = System::take_over(&site, marks, locks, flows.as_ref())?;
    let source = ConfigSource::new(path, registry, ConfigText::new(Some(text)))?;
    let ports = Ports { udp, second, fake_tcp, injector };
    let inherited = Some((state, listeners));
    let flows = (flows, tls);
    let gateway = Parts { source, site, system, flows, local, ports, inherited }.start()?;
    Ok((gateway, loops))
}

/// Ports of fake TCP, if the old process uses it.
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
