//! `viaduct master`: handlers that programs share (section 3.7 of the TESLA paper).
//!
//! ```text
//!   viaduct run --master N -- curl …  ──┐ Session: requests, with sockets
//!   viaduct run --master N -- git …   ──┼──▶ viaduct master --name N +congestion ══▶ far ends
//!   viaduct run --master N +crypt -- ssh ┘      handlers share their state across runs
//! ```
//!
//! Each run handles the calls of its own program ([`client`]); the master carries the flows. The
//! master serves its own user and root, or all users (`--all-users`), at the socket `NAME.master`
//! in the directory of its status socket. A master with a parent (`--master`) passes its flows to
//! the parent ([`nested`]).

pub mod carrier;
pub mod client;
mod connect;
pub mod nested;
mod outbox;
pub mod program_times;
mod quota;
mod remote;
mod session;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::{fs, io};

use anyhow::{Result, anyhow, bail};
use tracing::debug;
use viaduct_proto::flow::{HandlerSpec, Registry, offload};
use viaduct_proto::wrap::wire::{Answer, WELCOME, Welcome};
use viaduct_sys::process::raise_fd_limit;
use viaduct_sys::socket::seqpacket;

use self::carrier::Carrier;
use self::client::MasterClient;
use self::nested::NestedMaster;
use self::program_times::ProgramTimes;
use self::quota::{Limits, Quota};
use self::session::RunListener;
use crate::engine;
use crate::engine::config::EngineConfig;
use crate::engine::destination::Target;
use crate::engine::outbound::{Outbound, OutboundSpec};
use crate::engine::policy::{Policies, SHARING};
use crate::rule_args::RuleArgs;
use crate::run_dir::{ROOT, RunDir, SYSTEM};
use crate::signals::Signals;
use crate::status_socket::check_free;
use crate::text;
use crate::value_parser::workers;

/// Options of `viaduct master`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    override_usage = "viaduct master --name NAME [+HANDLER[:KEY=VALUE,...]]... [OPTIONS]",
    after_help = "The handlers precede or follow the options: +NAME[:KEY=VALUE,...], or +NAME \
    -KEY=VALUE ... as in\n  viaduct master --name site +congestion\n\
    Start programs with `viaduct run --master NAME`; `viaduct status --name NAME` shows its state."
)]
pub struct MasterArgs {
    /// Name under which programs join the master
    #[arg(long, value_name = "NAME")]
    name: String,
    /// Handler, written +NAME[:KEY=VALUE,...]
    #[arg(long = "handler", value_name = "NAME[:KEY=VALUE,...]", hide = true)]
    handlers: Vec<HandlerSpec>,
    #[command(flatten)]
    rules: RuleArgs,
    /// Carry flows through Viaduct even if the kernel could do all of the chain's work on
    /// programs' own sockets (kernel offload)
    #[arg(long)]
    no_offload: bool,
    /// Serve all users of this machine, instead of only root and the master's own user; their
    /// flows then use the privileges of the master's user and the keys of its handlers
    #[arg(long)]
    all_users: bool,
    /// Maximum number of concurrent runs per user; root and the master's own user are exempt
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = at_least_one)]
    user_runs: usize,
    /// Maximum number of concurrent flows per user; root and the master's own user are exempt, and
    /// an eighth of all flows is reserved for them [default: a quarter of the flows that the limit
    /// of descriptors allows]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    user_flows: Option<usize>,
    /// Maximum number of pending connects per user; root and the master's own user are exempt
    /// [default: half of --user-flows]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    user_calls: Option<usize>,
    /// Number of event loops that share the flows, one thread each; 0: one for each core. The far
    /// end's host determines a flow's loop; handlers share state only within a loop
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = workers)]
    workers: u16,
    /// Parent master, to which this master passes its flows
    #[arg(long, value_name = "NAME")]
    master: Option<String>,
    #[command(flatten)]
    times: ProgramTimes,
    /// Listen address of the Prometheus metrics
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    run_dir: RunDir,
}

/// Runs until a signal terminates the master. `log` sets up the log after the arguments are
/// checked.
pub fn run(args: &MasterArgs, registry: &Registry, log: impl FnOnce()) -> Result<ExitCode> {
    text::check_name(&args.name).map_err(|what| anyhow!("--name: {what}"))?;
    let chain = registry.chain(&args.handlers).map_err(|what| anyhow!(what))?;
    let rules = args.rules.load(registry.guards(&args.handlers))?;
    log();
    let parent = args
        .master
        .as_ref()
        .map(|name| MasterClient::join(name, &args.run_dir.path()))
        .transpose()?;
    let offload = if args.no_offload || parent.is_some() { None } else { offload(&chain) };
    let offload = offload.map(|of| of.rate.map_or(0, |bits| (bits / 8).max(1)));
    let mut welcome =
        Welcome { rules, rendezvous: [None; 2], offload, reports: false, has_seccomp: false };
    let nested = match parent {
        None => None,
        Some((client, announced)) => {
            welcome.rules = rules.above(&announced.rules)?;
            Some(Arc::new(NestedMaster::new(client, &announced)?))
        }
    };
    let (name, run_dir) = (args.name.clone(), args.run_dir.path());
    let refused = Arc::<AtomicU64>::default();
    let workers = engine::workers::count(args.workers);
    if workers > 1 && chain.iter().any(|of| of.shares() || of.gathers()) {
        bail!("--workers: {workers} are not possible with {SHARING}; 1 is");
    }
    let config = EngineConfig {
        policies: Policies::uniform(OutboundSpec::Direct, chain),
        workers,
        parent: nested.clone().map(|nested| nested as Arc<dyn Outbound>),
        over_limit: Some(refused.clone()),
        ..EngineConfig::new(name, run_dir, Target::Program, args.times.limits())
    };
    let mut config = config.fitted();
    let max_runs = quota::max_runs(raise_fd_limit());
    config.leave_descriptors(max_runs);
    let (flows, user_flows) = (config.limits.flows, args.user_flows);
    let limits = Limits::new(flows, max_runs, args.user_runs, user_flows, args.user_calls);
    check_free(&config.socket())?;
    let signals = Signals::register()?;
    let socket_path = socket_path(&args.run_dir.path(), &args.name);
    let mut socket_name = None;
    let ended = engine::carry(&config, args.metrics, signals, |workers| {
        let carrier = match nested {
            None => Carrier::Own(workers),
            Some(nested) => Carrier::Nested(workers, nested, Box::new(rules)),
        };
        let quota = Quota::new(limits, refused);
        let (listener, name) = RunListener::open(&socket_path, args.all_users)?;
        socket_name = Some(name);
        listener.start(welcome, carrier, quota)
    });
    drop(socket_name);
    ended.map(|()| ExitCode::SUCCESS)
}

/// Path of the socket of the master `name`.
pub fn socket_path(run_dir: &Path, name: &str) -> PathBuf {
    run_dir.join(format!("{name}.master"))
}

/// Path of the socket of the master `name`: the first existing one of `run_dir`, the system's
/// directory and root's; if none exists, that of `run_dir`.
pub fn find_socket(run_dir: &Path, name: &str) -> PathBuf {
    let own = socket_path(run_dir, name);
    let others = [SYSTEM, ROOT].map(|directory| socket_path(Path::new(directory), name));
    let all = std::iter::once(own.clone()).chain(others);
    all.into_iter().find(|path| path.exists()).unwrap_or(own)
}

/// Inode number of this process's network namespace.
pub fn netns_inode() -> io::Result<u64> {
    fs::metadata("/proc/self/ns/net").map(|of| of.ino())
}

/// Sends an answer to a run or to a program. Failures are only logged, because the peer may have
/// gone.
pub fn send_answer(socket: &OwnedFd, answer: &Answer) {
    let mut bytes = [0; WELCOME];
    let length = answer.emit(&mut bytes);
    if let Err(error) = seqpacket::send(socket, &bytes[..length], None) {
        debug!("cannot send an answer: {error}");
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|n| *n > 0);
    number.ok_or_else(|| "a number of at least 1 is expected, such as 500".to_owned())
}

/// Removes the socket of a master that was killed. Errors: a master of this name runs.
fn remove_stale_socket(path: &Path) -> Result<()> {
    match seqpacket::connect(&path.to_string_lossy()) {
        Ok(_) => {
            bail!("{}: a master of this name runs; give this one another name", path.display())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|error| creation_error(path, &error))
        }
        Err(error) => Err(creation_error(path, &error)),
    }
}

/// Error message for a socket or directory that cannot be created at `path`, with a remedy.
fn creation_error(path: &Path, error: &io::Error) -> anyhow::Error {
    let short = match error.kind() {
        io::ErrorKind::InvalidFilename => " of less than 100 bytes",
        _ => "",
    };
    anyhow!("{}: {error}; choose another directory{short} with --run-dir", path.display())
}
