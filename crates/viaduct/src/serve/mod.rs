//! `viaduct serve DIR`: serves static files.
//!
//! ```text
//!   TCP ──────▶ tcp: reads a head ─┐                        ┌─▶ files: lookup of the path
//!                                  ├─▶ proto::web::Request ─┤
//!   Trickles ─▶ trickles: events ──┘                        └─▶ proto::web::plan ─▶ head, bytes
//! ```
//!
//! [`viaduct_proto::web`] determines the responses, which are the same over both transports. Over
//! Trickles the server keeps no state per client; over TCP the kernel and a task keep the
//! connection's state.

mod connection;
mod descriptors;
mod disk;
mod file_cache;
mod files;
mod outgoing;
mod pages;
mod replicas;
mod sources;
pub mod status;
mod tcp;
mod trickles;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use tokio::net::{TcpListener, UnixListener};
use tokio::task::LocalSet;
use tracing::{info, warn};
use viaduct_proto::trickles::crypt::ServerCrypt;
use viaduct_trickles::{Secrets, ServerSettings};

use crate::access_log::{AccessLog, AccessLogArgs};
use crate::dead_after::DeadAfter;
use crate::key;
use crate::metrics::{self, Metrics, Page};
use crate::notify::{Phase, notify};
use crate::random::entropy;
use crate::run_dir::RunDir;
use crate::signals::{SignalStreams, Signals};
use crate::status_socket;
use crate::value_parser::{memory, size, socket_addr};
use crate::watchdog::Watchdog;
use disk::Disk;
use file_cache::FileCache;
use files::Root;
use outgoing::Limits;
use replicas::{Replicas, Source};
use status::ServeStatus;
use tcp::ServerState;
use trickles::{PacketFormats, Service, ServiceConfig, WorkerResources};

/// Options of `viaduct serve`.
#[derive(Args, Debug)]
pub struct ServeArgs {
    /// Directory to serve. Files outside the directory are not served, not even through symbolic
    /// links. Names that begin with one dot are not served either, except .well-known
    dir: PathBuf,
    /// Addresses to listen at
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        default_value = "[::]:8080",
        value_parser = socket_addr
    )]
    listen: Vec<SocketAddr>,
    /// Maximum number of concurrent TCP connections; further connections wait [default: 4096]
    #[arg(long, value_name = "N", conflicts_with = "encrypted_only",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_connections: Option<u32>,
    /// Maximum number of concurrent TCP connections from one source (an IPv4 address or an IPv6
    /// /64); further connections are closed [default: 1024]
    #[arg(long, value_name = "N", conflicts_with = "encrypted_only",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_per_source: Option<u32>,
    /// Minimum rate at which a TCP client must receive a response, in bytes per second, averaged
    /// over a minute; slower connections are reset. 0: no limit [default: 1K]
    #[arg(long, value_name = "BYTES", conflicts_with = "encrypted_only",
          value_parser = bytes_a_second)]
    min_rate: Option<u64>,
    #[command(flatten)]
    dead_after: DeadAfter,
    /// Maximum number of names in a directory page; a page states whether there are more names
    /// [default: 10000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_listed: Option<u32>,
    /// Memory for directory pages, including those being sent; when it is full, requests for other
    /// pages get 503 [default: 32M]
    #[arg(long, value_name = "BYTES", conflicts_with = "encrypted_only", value_parser = memory)]
    page_memory: Option<usize>,
    /// Packet formats in which Trickles is served, at the same ports
    #[arg(long, value_name = "HOW", value_enum, default_value = "auto")]
    trickles: PacketFormats,
    /// File of the secrets that seal Trickles' continuations, shared by replicas. Each line has a
    /// number (0 to 255) and 64 hexadecimal digits; the first line is for new continuations. The
    /// file is read again when it changes. Without a file, connections end with this process
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Source of root secrets from which all replicas derive the secrets of Trickles'
    /// continuations, a new secret for each period: a file (viaduct key replicas), or
    /// etcd://HOST:PORT/KEY with the same content. The source is read again when it changes, and on
    /// SIGHUP
    #[arg(long, value_name = "FILE|etcd://...", conflicts_with = "key")]
    replicas: Option<Source>,
    /// File of the server's secret key (viaduct key new), shared by replicas: Trickles is encrypted
    /// for clients that use the public key
    #[arg(long, value_name = "FILE")]
    identity: Option<PathBuf>,
    /// Serve only encrypted Trickles, and nothing over TCP
    #[arg(long, requires = "identity", conflicts_with = "dead_after")]
    encrypted_only: bool,
    /// Packets of one connection are balanced among several servers: do not compensate for requests
    /// that this server has not received, because another server may have answered them
    #[arg(long)]
    balanced: bool,
    /// Memory for answered requests of Trickles [default: 16M]
    #[arg(long, value_name = "BYTES", value_parser = memory)]
    replay: Option<usize>,
    /// Number of threads for Trickles. A client's port selects the thread for its packets; the
    /// threads share --replay evenly. 0: one for each core [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=64))]
    workers: Option<u32>,
    /// Maximum length of packets that Trickles sends, 576 to 1500 bytes; lower if an interface or a
    /// router requires it [default: 1500]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(576..=1500))]
    mtu: Option<u16>,
    /// Send each packet of Trickles separately, through this machine's firewall rules for output.
    /// By default several packets to one client are sent together, which takes less time but
    /// bypasses these rules
    #[arg(long)]
    one_by_one: bool,
    /// Listen address of the Prometheus metrics
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    run_dir: RunDir,
    #[command(flatten)]
    access_log: AccessLogArgs,
}

/// Memory of the replay windows, in bytes.
const REPLAY: usize = 16 << 20;
const MAX_CONNECTIONS: u32 = 4096;
const MAX_PER_SOURCE: u32 = 1024;
/// Bytes per second.
const MIN_RATE: u64 = 1024;
const MAX_LISTED: u32 = 10_000;
/// Memory for directory pages, in bytes.
const PAGE_MEMORY: usize = 32 << 20;
const MTU: u16 = 1500;

/// Parses the minimum rate of a client; 0 means no limit.
fn bytes_a_second(text: &str) -> Result<u64, String> {
    size(text, 0..=1 << 30)
}

impl ServeArgs {
    /// Name of an option that is set and applies only to Trickles, if there is one.
    fn of_trickles(&self) -> Option<&'static str> {
        let given = [
            ("key", self.key.is_some()),
            ("replicas", self.replicas.is_some()),
            ("identity", self.identity.is_some()),
            ("replay", self.replay.is_some()),
            ("workers", self.workers.is_some()),
            ("mtu", self.mtu.is_some()),
            ("one-by-one", self.one_by_one),
        ];
        given.into_iter().find(|(_, given)| *given).map(|(name, _)| name)
    }
}

/// Serves until a signal terminates the process.
pub fn run(args: &ServeArgs) -> Result<()> {
    let (runtime, signals) = Signals::register()?.into_parts();
    let files = Arc::new(root(args)?);
    let log = args.access_log.open()?;
    let workers = if args.trickles == PacketFormats::Off { 0 } else { workers(args.workers) };
    if args.balanced && args.key.is_none() && args.replicas.is_none() {
        bail!("--balanced needs secrets that the servers share: --key or --replicas");
    }
    let replicas = match &args.replicas {
        None => None,
        Some(source) => {
            let copy = replicas::copy_path(&args.run_dir.path(), &name(args));
            Some(runtime.block_on(Replicas::open(source.clone(), copy)).context("replicas")?)
        }
    };
    let quotas = descriptors::divide(workers, args.max_connections.unwrap_or(MAX_CONNECTIONS));
    let trickles = start_trickles(args, workers, quotas.files, replicas.as_deref(), &log)?;
    let disk = Disk::new(files, args.page_memory.unwrap_or(PAGE_MEMORY));
    let per_source = args.max_per_source.unwrap_or(MAX_PER_SOURCE);
    let state = ServerState::new(disk, log.clone(), limits(args), quotas.connections, per_source);
    let sources = (trickles, replicas);
    let serving = serve(args, Rc::new(state), sources, signals);
    let ended = LocalSet::new().block_on(&runtime, serving);
    log.flush();
    ended
}

/// Opens the served directory.
fn root(args: &ServeArgs) -> Result<Root> {
    let most = args.max_listed.unwrap_or(MAX_LISTED);
    let root = Root::open(&args.dir, most as usize);
    root.with_context(|| format!("cannot serve {}", args.dir.display()))
}

/// Starts the threads of Trickles; `max_files` limits the open files of each thread. `None` if
/// Trickles is off.
fn start_trickles(
    args: &ServeArgs,
    threads: u32,
    max_files: usize,
    replicas: Option<&Replicas>,
    log: &AccessLog,
) -> Result<Option<Service>> {
    if args.trickles == PacketFormats::Off {
        if let Some(name) = args.of_trickles() {
            bail!("--{name} applies to Trickles only, which --trickles off disables");
        }
        return Ok(None);
    }
    let resources = |_| -> Result<WorkerResources> {
        let key = args.identity.as_deref().map(key::read).transpose()?;
        let crypt = key
            .map(|key| ServerCrypt::new(key, args.encrypted_only, entropy()).of_threads(threads));
        let files = FileCache::new(root(args)?, max_files).with_log(log.clone());
        Ok(WorkerResources { crypt, files })
    };
    let resources = (0..threads).map(resources).collect::<Result<Vec<_>>>()?;
    let config = ServiceConfig {
        formats: args.trickles,
        port: port(args),
        replay: args.replay.unwrap_or(REPLAY),
        balanced: args.balanced,
        secrets: match replicas {
            None => secrets(args.key.as_deref())?,
            Some(replicas) => Secrets::rotating(replicas.rotation()),
        },
    };
    Service::start(&config, resources).map(Some)
}

/// Reads the secrets in a file, and warns if other users can read the file. Without a file,
/// generates a secret, which is lost when this process exits.
fn secrets(file: Option<&Path>) -> Result<Secrets> {
    let secrets = Secrets::new(file.map(key::accessible).as_deref())?;
    file.inspect(|file| key::warn_if_readable("key", file));
    Ok(secrets)
}

fn workers(wanted: Option<u32>) -> u32 {
    let cores = || std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    match wanted {
        Some(0) => cores().min(64),
        wanted => wanted.unwrap_or(1),
    }
}

/// Settings of Trickles' port, at the addresses at which TCP listens.
fn port(args: &ServeArgs) -> ServerSettings {
    let mut listen = args.listen.clone();
    for at in &args.listen {
        // A TCP socket at [::] also accepts IPv4 connections.
        let v4 = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), at.port());
        if at.is_ipv6() && at.ip().is_unspecified() && !listen.contains(&v4) {
            listen.push(v4);
        }
    }
    ServerSettings {
        listen,
        tcp: true,
        udp: true,
        mtu: args.mtu.unwrap_or(MTU).into(),
        untracked: true,
        gso: !args.one_by_one,
        run_dir: args.run_dir.path(),
        share: None,
    }
}

fn limits(args: &ServeArgs) -> Limits {
    Limits { min_rate: args.min_rate.unwrap_or(MIN_RATE), dead_after: args.dead_after.limit() }
}

async fn serve(
    args: &ServeArgs,
    state: Rc<ServerState>,
    (trickles, replicas): (Option<Service>, Option<Rc<Replicas>>),
    mut signals: SignalStreams,
) -> Result<()> {
    let start = Instant::now();
    let log = &state.log;
    for &address in args.listen.iter().filter(|_| !args.encrypted_only) {
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| format!("cannot listen at {address}"))?;
        info!(address = %listener.local_addr()?, dir = %args.dir.display(), "serving");
        tokio::task::spawn_local(tcp::accept(listener, state.clone()));
    }
    if let Some(replicas) = replicas.clone() {
        tokio::task::spawn_local(async move { replicas.follow().await });
    }
    let metrics_listener = args.metrics.map(metrics::listen).transpose()?;
    let (status_listener, metrics) = (status_socket(args), Metrics::default());
    let mut watchdog = Watchdog::new();
    let status = || ServeStatus {
        serving: args.dir.display().to_string(),
        name: name(args),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        uptime: start.elapsed().as_secs_f64(),
        tcp: state.status(),
        trickles: trickles.as_ref().map(Service::status),
        access_log: log.stats(),
        replicas: replicas.as_ref().map(|replicas| replicas.status()),
    };
    notify(Phase::Ready);
    loop {
        tokio::select! {
            _ = signals.terminate.recv() => break,
            _ = signals.interrupt.recv() => break,
            () = watchdog.due() => {
                watchdog.answer(trickles.as_ref().map(Service::age).unwrap_or_default());
            }
            _ = signals.hangup.recv() => {
                log.reopen();
                // Changed secrets are also detected without a signal, but later.
                replicas.iter().for_each(|replicas| replicas.reload());
            }
            _ = signals.user1.recv() => log.reopen(),
            client = status_client(status_listener.as_ref()) => {
                status_socket::show(client, &status())?;
            }
            client = metrics::accept(metrics_listener.as_ref()) => {
                metrics.answer(client, Page { counters: status().exposition(), trouble: None });
            }
        }
    }
    notify(Phase::Stopping);
    Ok(())
}

/// Opens the status socket. If this fails, the server runs without a status socket.
fn status_socket(args: &ServeArgs) -> Option<(UnixListener, status_socket::Name)> {
    let opened = status_socket::open(&args.run_dir.path().join(format!("{}.sock", name(args))));
    opened.inspect_err(|error| warn!("cannot open the status socket: {error:#}")).ok()
}

fn name(args: &ServeArgs) -> String {
    let port = args.listen.first().map_or(0, SocketAddr::port);
    format!("serve-{port}")
}

async fn status_client(
    socket: Option<&(UnixListener, status_socket::Name)>,
) -> tokio::net::UnixStream {
    match socket {
        Some((listener, _)) => status_socket::accept(listener).await,
        None => std::future::pending().await,
    }
}
