//! `viaduct gateway -c site.toml`: a site's gateway.
//!
//! ```text
//!   site.toml ─▶ Config ─▶ Site ──┬─▶ system: offloads, TUN, route MTU, MSS clamp (journalled)
//!                                 ├─▶ worker thread: taps, packet plane, repairs, injections
//!                                 └─▶ control: signals, status socket, metrics, packet cache
//! ```
//!
//! Everything in `site.toml` is checked before anything is changed. Changes are reverted at exit
//! or, after a kill -9, at the next start.

mod cache_service;
mod clocks;
pub mod config;
mod control;
mod endpoints;
mod fake_tcp;
mod injector;
mod listeners;
pub mod metrics;
mod peers;
mod poll_interval;
mod preflight;
mod site;
pub mod snapshot;
mod split;
mod stray_warning;
mod system;
mod taps;
mod visibility;
mod wan;
mod worker;

use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow};
use ipnet::IpNet;
use ring::rand::{SecureRandom, SystemRandom};
use tokio::sync::oneshot;
use tracing::{info, warn};
use viaduct_proto::flow::Registry;
use viaduct_proto::keys::Entropy;
use viaduct_proto::repair::{Local, Plane, Transport, TransportChoice};
use viaduct_proto::time::Instant;
use viaduct_sys::clock;
use viaduct_sys::poll::Waker;
use viaduct_sys::route::qdisc::QdiscDrops;
use viaduct_sys::socket::udp::UdpBatch;

use clocks::ClockFile;
use config::Config;
use control::{Control, ToWorker};
use fake_tcp::FakeTcpPort;
use injector::Injector;
use site::Site;
use snapshot::Published;
use system::System;
use taps::Taps;
use worker::Worker;

use crate::notify::{Phase, notify};
use crate::settings::Settings;
use crate::settings::thread::ProxyThread;
use crate::signals::{Pause, Signals};
use crate::status_socket::check_free;

/// Interval between checks for missing prerequisites.
const WAIT_EVERY: Duration = Duration::from_secs(1);

/// Runs a gateway until a signal ends it.
pub fn run(path: &Path, registry: Registry) -> Result<()> {
    preflight::check_capabilities()?;
    let mut signals = Signals::register()?;
    let Some((mut site, split)) = wait_for_prerequisites(path, &registry, &mut signals)? else {
        return Ok(());
    };
    for warning in site.warnings() {
        warn!("{warning}");
    }
    check_free(&site.config.socket())?;
    let (mut system, injector) = System::prepare(&site)?;
    let flows = split.map(ProxyThread::start).transpose()?;
    if let Some(intercept) = flows.as_ref().and_then(|f| f.settings().intercept.clone()) {
        system.intercept(&site, intercept)?;
    }
    let published = Arc::new(Published::default());
    let (send, commands) = mpsc::channel();
    let waker = Arc::new(Waker::new().context("cannot create an eventfd")?);
    let worker = build_worker(&mut site, injector, commands, waker.clone(), published.clone())?;
    // Dropped when the thread ends, also by a panic.
    let (alive, gone) = oneshot::channel::<()>();
    let thread = std::thread::Builder::new()
        .name("packets".to_owned())
        .spawn(move || {
            let _alive = alive;
            worker.run()
        })
        .context("cannot start the packet thread")?;
    info!(site = site.config.name, wan = site.config.wan, peers = site.config.peers.len(), "up");
    let to_worker = ToWorker::new(send, waker);
    let source = ConfigSource { path: path.to_owned(), registry };
    let done = Control::new(source, site, to_worker.clone(), flows, published)
        .and_then(|control| control.run(&mut system, gone, signals));
    to_worker.send(worker::Command::Stop);
    let ended = thread.join().unwrap_or_else(|_| Err(anyhow!("the packet thread panicked")));
    let restored = system.restore();
    ended.context("the packet thread failed; traffic continues unprotected")?;
    restored?;
    done
}

/// Reads the config, and waits until the interface and the addresses that it names exist: at boot
/// they may appear later than the gateway starts. `None` if a signal ends the wait.
fn wait_for_prerequisites(
    path: &Path,
    registry: &Registry,
    signals: &mut Signals,
) -> Result<Option<(Site, Option<Settings>)>> {
    let mut reported = None;
    loop {
        let config = Config::load(path)?;
        let Some(missing) = preflight::missing_prerequisite(&config) else {
            if reported.is_some() {
                info!("the interface and the addresses in the config exist now");
            }
            return resolve(config, path, registry).map(Some);
        };
        // Reports readiness: the service manager would abort a start that takes too long.
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

/// Loads the config at `path`, and resolves it on this machine, for packets and for flows.
fn load(path: &Path, registry: &Registry) -> Result<(Site, Option<Settings>)> {
    resolve(Config::load(path)?, path, registry)
}

/// Resolves `config`, read from `path`, on this machine: interface, MTU, settings of split mode.
fn resolve(config: Config, path: &Path, registry: &Registry) -> Result<(Site, Option<Settings>)> {
    let resolve_all = |config: Config| -> Result<_> {
        let flows = split::settings(&config, registry)?;
        Ok((Site::new(config)?, flows))
    };
    resolve_all(config).with_context(|| path.display().to_string())
}

/// Path of the config, and the handlers that may be named in it.
#[derive(Debug)]
struct ConfigSource {
    path: PathBuf,
    registry: Registry,
}

impl ConfigSource {
    fn load(&self) -> Result<(Site, Option<Settings>)> {
        load(&self.path, &self.registry)
    }
}

fn build_worker(
    site: &mut Site,
    injector: Injector,
    commands: mpsc::Receiver<worker::Command>,
    waker: Arc<Waker>,
    published: Arc<Published>,
) -> Result<Worker> {
    let now = Instant::from_nanos(clock::now());
    let local = local(&site.config);
    let fake_tcp = open_fake_tcp(site, local.entropy.clone(), now)?;
    let config = &site.config;
    let udp = UdpBatch::bind(config.listen)
        .with_context(|| format!("[site] listen: cannot use {}", config.listen))?;
    udp.block_receive().context("cannot filter the repair socket")?;
    let taps = Taps::open(site)?;
    let own_queue =
        QdiscDrops::of(&config.wan).context("cannot read the WAN's queueing discipline")?;
    let mut plane = Plane::new(local, site.peers(), now)?;
    if let Some(path) = config.clocks() {
        plane.remember(ClockFile::read(&path));
    }
    Ok(Worker {
        plane,
        taps,
        udp,
        fake_tcp,
        own_queue,
        listen: config.listen,
        injector,
        cut: Vec::new(),
        commands,
        waker,
        published,
    })
}

/// Opens the ports of fake TCP if a peer may use it. If they are taken, peers with `transport =
/// "auto"` use UDP.
fn open_fake_tcp(site: &mut Site, entropy: Entropy, now: Instant) -> Result<Option<FakeTcpPort>> {
    if !site.wants_fake_tcp() {
        return Ok(None);
    }
    match FakeTcpPort::open(site, entropy, now) {
        Ok(port) => {
            site.fake_tcp = port.addresses()?;
            Ok(Some(port))
        }
        Err(error) if site.forces_fake_tcp() => Err(error),
        Err(error) => {
            warn!("{error:#}; peers are reached by UDP alone");
            Ok(None)
        }
    }
}

fn local(config: &Config) -> Local {
    let random = SystemRandom::new();
    let entropy: Entropy = Arc::new(move |out: &mut [u8]| {
        random.fill(out).expect("the kernel's random source does not fail once it has been seeded");
    });
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let unix = u64::try_from(unix.as_nanos()).unwrap_or(u64::MAX);
    let unix_nanos_at_zero = unix.saturating_sub(clock::now());
    Local { secret: config.secret.clone(), entropy, unix_nanos_at_zero }
}

/// Warnings of `viaduct gateway --check` about `config` on this machine; its error, if the machine
/// lacks anything that the config names.
pub fn warnings(config: Config) -> Vec<String> {
    match Site::new(config) {
        Ok(site) => site.warnings(),
        Err(error) => vec![format!("{error:#}")],
    }
}

/// Checks a config against this machine, prints its meaning, and changes nothing.
pub fn check(path: &Path, registry: &Registry) -> Result<()> {
    let config = Config::load(path)?;
    if let Some(missing) = preflight::missing_prerequisite(&config) {
        split::settings(&config, registry).with_context(|| path.display().to_string())?;
        println!("site {}: public key {}", config.name, config.secret.public());
        println!("warning: {missing}; the gateway keeps trying");
        println!("ok, with a warning");
        return Ok(());
    }
    let (site, flows) = resolve(config, path, registry)?;
    let config = &site.config;
    println!("site {}: public key {}", config.name, config.secret.public());
    println!("  hosts {}; wan {} (MTU {})", list(&config.prefixes), config.wan, site.wan_mtu);
    println!("  repairs arrive at UDP {}", config.listen);
    for peer in &config.peers {
        let code = peer.coding.as_ref().map_or("no repairs".to_owned(), ToString::to_string);
        let room = match site.clamp(peer) {
            Some(longest) => format!("packets limited to {longest} bytes (route MTU, MSS)"),
            None => "no packet is altered".to_owned(),
        };
        let endpoint = match (&peer.endpoint, &peer.endpoint_name) {
            (Some(at), _) => format!("at {at}"),
            (None, Some((host, port))) => format!("at {host}:{port}"),
            (None, None) => "(no endpoint: the peer connects first)".to_owned(),
        };
        println!("peer {} {endpoint}: public key {}", peer.name, peer.key);
        println!("  hosts {}; {code}; {room}", list(&peer.prefixes));
        println!("  datagrams by {}", transports(peer.transport));
    }
    if let Some(flows) = flows {
        print!("split mode, {flows}");
    }
    for (what, listen) in [("metrics", config.metrics), ("cache", config.cache)] {
        println!("{what}: {}", listen.map_or("off".to_owned(), |at| at.to_string()));
    }
    let routes = system::plan(&site).with_context(|| path.display().to_string())?;
    let obstacles = [preflight::check_capabilities(), preflight::check_run_dir(config)];
    let obstacles = obstacles.into_iter().filter_map(Result::err).map(|e| format!("{e:#}"));
    let warnings =
        [site.warnings(), routes, preflight::ports_in_use(config), obstacles.collect()].concat();
    for warning in &warnings {
        println!("warning: {warning}");
    }
    match warnings.len() {
        0 => println!("ok"),
        1 => println!("ok, with a warning"),
        n => println!("ok, with {n} warnings"),
    }
    Ok(())
}

fn transports(choice: TransportChoice) -> &'static str {
    match choice {
        TransportChoice::Auto => "UDP, or by fake TCP while UDP is not answered",
        TransportChoice::Only(Transport::Udp) => "UDP",
        TransportChoice::Only(Transport::FakeTcp) => "fake TCP",
    }
}

fn list(prefixes: &[IpNet]) -> String {
    prefixes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
