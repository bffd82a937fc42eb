//! `viaduct gateway -c site.toml`: a site's gateway.
//!
//! ```text
//!   site.toml ─▶ Config ─▶ Site ──┬─▶ system: offloads, TUN, route MTU, MSS clamp (journalled)
//!                                 ├─▶ worker threads: taps, packet plane, repairs, injections
//!                                 └─▶ control: signals, status socket, metrics, packet cache,
//!                                     reload, upgrade
//! ```
//!
//! Everything in `site.toml` is checked before anything is changed. Changes are reverted at exit
//! or, after a kill -9, at the next start.

mod cache_service;
mod check;
mod clocks;
mod commands;
pub mod config;
mod control;
mod datagrams;
mod endpoints;
mod fake_tcp;
mod injector;
mod listeners;
pub mod metrics;
mod misroutes;
mod own_addresses;
mod path_choice;
mod peers;
mod poll_interval;
mod ports;
mod preflight;
mod reload;
mod second_wan;
mod site;
mod slice_routes;
pub mod snapshot;
mod split;
pub mod status;
mod stray_warning;
mod system;
mod tap_reader;
mod taps;
mod ticks;
mod tls;
mod upgrade;
mod visibility;
mod wan;
mod wan_port;
mod worker;
mod workers;

use std::os::fd::{OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow};
use ring::rand::{SecureRandom, SystemRandom};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tracing::{info, warn};
use viaduct_proto::flow::Registry;
use viaduct_proto::keys::Entropy;
use viaduct_proto::repair::{Local, PathChange, Plane};
use viaduct_proto::time::Instant;
use viaduct_sys::clock;
use viaduct_sys::route::qdisc::QdiscDrops;

pub use check::{check, warnings};
use clocks::ClockFile;
use commands::{Command, Commands};
use config::Config;
use control::Control;
use path_choice::PathChoice;
use ports::Ports;
use second_wan::SecondWan;
use site::Site;
use snapshot::Published;
use system::System;
use taps::Taps;
use tls::TlsTunnels;
use upgrade::{HeldPackets, Role, WorkerState};
use wan_port::WanPort;
use worker::Worker;
use workers::{ToWorkers, WorkerLife, Workers};

use crate::handover::{ConfigText, ProgramFile};
use crate::notify::{Phase, notify};
use crate::settings::Settings;
use crate::settings::thread::ProxyThread;
use crate::signals::{Pause, Signals};
use crate::status_socket::check_free;

/// Interval between checks for missing prerequisites.
const WAIT_EVERY: Duration = Duration::from_secs(1);

/// Runs a gateway until a signal ends it. `takeover` is the descriptor of an inherited socket. If
/// it is given, this process continues the gateway of the process at the socket's other end.
pub fn run(path: &Path, registry: Registry, takeover: Option<RawFd>) -> Result<()> {
    preflight::check_capabilities()?;
    if let Some(socket) = takeover {
        return upgrade::run(path, registry, socket);
    }
    let mut signals = Signals::register()?;
    let source = ConfigSource::new(path, registry, ConfigText::default())?;
    let Some((mut site, split)) = wait_for_prerequisites(&source, &mut signals)? else {
        return Ok(());
    };
    for warning in site.warnings() {
        warn!("{warning}");
    }
    check_free(&site.config.socket())?;
    let (mut system, injector) = System::prepare(&site)?;
    let tls = TlsTunnels::new(&site.config);
    let flows = split.map(|split| ProxyThread::start(tls.applied(&split))).transpose()?;
    if let Some(flows) = &flows {
        system.intercept(&site, flows)?;
    }
    let local = local(&site.config);
    let ports = Ports::open(&mut site, &local, injector)?;
    let flows = (flows, tls);
    let gateway = Parts { source, site, system, flows, local, ports, inherited: None }.start()?;
    gateway.run(signals)
}

/// Parts of a gateway that is not running yet.
struct Parts {
    source: ConfigSource,
    site: Site,
    system: System,
    flows: (Option<ProxyThread>, TlsTunnels),
    local: Local,
    ports: Ports,
    /// Packet thread's state and listeners of the old process, if this process takes over a
    /// gateway.
    inherited: Option<(WorkerState, [Option<OwnedFd>; 2])>,
}

/// Gateway whose packet threads run.
struct Gateway {
    system: System,
    control: Control,
    to_workers: ToWorkers,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl Parts {
    /// Starts the packet threads. If this process takes over a gateway, its packet thread sends
    /// nothing until it is told to.
    fn start(self) -> Result<Gateway> {
        let Parts { source, site, system, flows, local, ports, inherited } = self;
        let (state, listeners) = inherited.unzip();
        let (taps, fanouts) = Taps::open_all(&site)?;
        let (mut built, mut to, mut all_published) = (Vec::new(), Vec::new(), Vec::new());
        let (path_changes, paths) = unbounded_channel();
        for (index, (taps, ports)) in taps.into_iter().zip(ports.of_workers(&site)?).enumerate() {
            let published = Arc::new(Published::default());
            let (sender, commands) = commands::channel().context("cannot create an eventfd")?;
            to.push(sender);
            all_published.push(published.clone());
            let path_changes = path_changes.clone();
            let channel = Channel { index, commands, published, path_changes };
            let ways = (local.clone(), taps, ports);
            built.push(build_worker(&site, ways, channel, state.as_ref())?);
        }
        let (workers, lives) = Workers::new(&site, to, all_published, fanouts)?;
        let to_workers = workers.to_all();
        let (wan, peers) = (site.config.wan.clone(), site.config.peers.len());
        let (name, count) = (site.config.name.clone(), built.len());
        let paths = PathChoice::new(paths);
        let control = Control::new(source, site, (workers, paths), flows, listeners)?;
        let threads = built.into_iter().zip(lives).map(|(worker, life)| spawn(worker, life));
        let threads = threads.collect::<Result<_>>()?;
        match count {
            1 => info!(site = name, wan, peers, "up"),
            workers => info!(site = name, wan, peers, workers, "up"),
        }
        Ok(Gateway { system, control, to_workers, threads })
    }
}

/// Starts the thread of a worker.
fn spawn(worker: Worker, mut life: WorkerLife) -> Result<JoinHandle<Result<()>>> {
    let name = match worker.index {
        0 => "packets".to_owned(),
        index => format!("packets-{index}"),
    };
    std::thread::Builder::new()
        .name(name)
        .spawn(move || {
            let done = worker.run();
            life.end();
            done
        })
        .context("cannot start the packet thread")
}

impl Gateway {
    /// Runs until a signal ends it, or until another process has taken over.
    fn run(self, signals: Signals) -> Result<()> {
        let Gateway { mut system, control, to_workers, threads } = self;
        let (upgrader, done) = control.run(&mut system, signals);
        to_workers.iter().for_each(|worker| worker.send(Command::Stop));
        let count = threads.len();
        let ended = threads.into_iter().map(|thread| match thread.join() {
            Ok(ended) => ended,
            // The other threads have taken over the lanes of a thread that panicked.
            Err(_) if count > 1 && done.is_ok() => Ok(()),
            Err(_) => Err(anyhow!("the packet thread panicked")),
        });
        let ended = ended.fold(Ok(()), Result::and);
        let restored = match upgrader.settle() {
            Some(_) => {
                system.leave();
                Ok(())
            }
            None => system.restore(),
        };
        ended.context("the packet thread failed; traffic continues unprotected")?;
        restored?;
        done
    }
}

/// Reads the config, and waits until the interfaces and the addresses that it names exist: at boot
/// they may appear after the gateway has started. `None` if a signal ends the wait.
fn wait_for_prerequisites(
    source: &ConfigSource,
    signals: &mut Signals,
) -> Result<Option<(Site, Option<Settings>)>> {
    let mut reported = None;
    loop {
        let (config, text) = Config::load_with_text(&source.path)?;
        let Some(missing) = preflight::missing_prerequisite(&config) else {
            if reported.is_some() {
                info!("the interface and the addresses in the config exist now");
            }
            source.text.set(Some(text));
            return resolve(config, &source.path, &source.registry).map(Some);
        };
        // Readiness is reported before the wait ends, because the service manager would abort a
        // start that takes too long.
        if reported.is_none() {
            notify(Phase::Ready);
        }
        notify(Phase::Alive);
        if reported.as_ref() != Some(&missing) {
            warn!("waiting: {missing}");
        }
        reported = Some(missing);
        if signals.pause(WAIT_EVERY) == Pause::End {
            info!("stopping");
            notify(Phase::Stopping);
            return Ok(None);
        }
    }
}

/// Resolves `config`, read from `path`, on this machine: interface, MTU, settings of split mode.
fn resolve(config: Config, path: &Path, registry: &Registry) -> Result<(Site, Option<Settings>)> {
    let resolve_all = |config: Config| -> Result<_> {
        let flows = split::settings(&config, registry)?;
        Ok((Site::new(config)?, flows))
    };
    resolve_all(config).with_context(|| path.display().to_string())
}

/// Path of the config, the text of the config in force, the handlers that it may name, and the file
/// of the program that reads it.
#[derive(Debug)]
struct ConfigSource {
    path: PathBuf,
    registry: Registry,
    text: ConfigText,
    program: ProgramFile,
}

impl ConfigSource {
    /// Must be called right after the start: later the program's file may have been replaced.
    fn new(path: &Path, registry: Registry, text: ConfigText) -> Result<ConfigSource> {
        let program = ProgramFile::running()?;
        Ok(ConfigSource { path: path.to_owned(), registry, text, program })
    }

    /// Loads the config, and resolves it on this machine, for packets and for flows. Also returns
    /// its text.
    fn load(&self) -> Result<(Site, Option<Settings>, String)> {
        let (config, text) = Config::load_with_text(&self.path)?;
        let (site, flows) = resolve(config, &self.path, &self.registry)?;
        Ok((site, flows, text))
    }

    /// Returns whether the file's text differs from that of the config in force.
    fn is_changed(&self) -> bool {
        let read = crate::text::read(&self.path, config::MAX_CONFIG);
        read.ok() != self.text.get()
    }
}

/// Packet thread's end of its channels to the control side.
struct Channel {
    /// Index of the worker.
    index: usize,
    commands: Commands,
    published: Arc<Published>,
    path_changes: UnboundedSender<PathChange>,
}

/// Builds a packet thread, which continues the work of another one if there is a `state`.
fn build_worker(
    site: &Site,
    (local, taps, ports): (Local, Taps, Ports),
    channel: Channel,
    state: Option<&WorkerState>,
) -> Result<Worker> {
    let now = Instant::from_nanos(clock::now());
    let (config, index) = (&site.config, channel.index);
    let own_queue =
        QdiscDrops::of(&config.wan).context("cannot read the WAN's queueing discipline")?;
    let shares = workers::shares(&workers::owners(config.lanes, config.workers), index);
    let mut plane = Plane::with_shares(local, site.peers(), shares, now)?;
    if let Some(path) = config.clocks() {
        plane.remember(ClockFile::read(&path));
    }
    plane.set_passive(state.is_some());
    let mut worker = Worker {
        index,
        plane,
        wan: WanPort {
            taps,
            udp: ports.udp,
            listen: config.listen,
            own_queue,
            earlier_drops: [0; 2],
        },
        second: SecondWan::open(site, ports.second)?,
        path_changes: channel.path_changes,
        fake_tcp: ports.fake_tcp,
        injector: ports.injector,
        role: state.map_or(Role::Active, |_| Role::Standby(HeldPackets::default())),
        own: own_addresses::OwnAddresses::default(),
        left: Duration::ZERO,
        cut: Vec::new(),
        commands: channel.commands,
        published: channel.published,
        panic_at: worker::panic_at(index),
    };
    if let Some(state) = state {
        worker.resume(state, now)?;
    }
    Ok(worker)
}

fn local(config: &Config) -> Local {
    let random = SystemRandom::new();
    let entropy: Entropy = Arc::new(move |out: &mut [u8]| {
        random.fill(out).expect("the kernel's random source does not fail once it has been seeded");
    });
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let unix = u64::try_from(unix.as_nanos()).unwrap_or(u64::MAX);
    let unix_nanos_at_zero = unix.saturating_sub(clock::now());
    Local { secret: config.secret.clone(), entropy, unix_nanos_at_zero, lanes: config.lanes }
}
