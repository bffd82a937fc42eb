//! `viaduct master`: handlers that programs share (TESLA, section 3.7).
//!
//! ```text
//!   viaduct run --master N -- curl …  ──┐ Session: calls, and sockets beside them
//!   viaduct run --master N -- git …   ──┼──▶ viaduct master --name N +congestion ══▶ far ends
//!   viaduct run --master N +crypt -- ssh ┘        one worker, one chain's factories: shared state
//! ```
//!
//! Each run handles the calls of its own program; the master carries the flows. It serves its
//! own user and root, or all users (`--all-users`), at a socket `NAME.master` beside its status
//! socket. With a master below (`--master`) it sends its flows on to that one
//! ([`crate::run::above`]).

mod outbox;
mod quota;
mod remote;
mod session;

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::{fs, io};

use anyhow::{Result, anyhow, bail};
use viaduct_proto::flow::{HandlerSpec, Registry, offload};
use viaduct_proto::wrap::wire::Welcome;
use viaduct_sys::process::raise_fd_limit;
use viaduct_sys::socket::seqpacket;

use self::quota::{Limits, Quota};
use self::session::Desk;
use crate::engine;
use crate::engine::outbound::Outbound;
use crate::engine::parent_master::ParentMaster;
use crate::engine::settings::{ProgramTimes, Settings};
use crate::run::above::Above;
use crate::run::carrier::Carrier;
use crate::run::joined::Joined;
use crate::run::rules::RuleArgs;
use crate::run_dir::{RunDir, SYSTEM};
use crate::signals::Signals;
use crate::status_socket::check_free;
use crate::text;

/// Options of `viaduct master`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    override_usage = "viaduct master --name NAME [+HANDLER[:KEY=VALUE,...]]... [OPTIONS]",
    after_help = "The handlers stand before or behind the options: +NAME[:KEY=VALUE,...], or +NAME \
    -KEY=VALUE ... as in\n  viaduct master --name site +congestion\n\
    Programs join it by `viaduct run --master NAME`; `viaduct status --name NAME` shows what it \
    sees."
)]
pub struct MasterArgs {
    /// Name by which programs join the master
    #[arg(long, value_name = "NAME")]
    name: String,
    /// A handler, as +NAME[:KEY=VALUE,...] says it
    #[arg(long = "handler", value_name = "NAME[:KEY=VALUE,...]", hide = true)]
    handlers: Vec<HandlerSpec>,
    #[command(flatten)]
    rules: RuleArgs,
    /// Have flows pass Viaduct even where the kernel could do all of the chain's work on
    /// programs' own sockets
    #[arg(long)]
    no_offload: bool,
    /// Serve every user of this machine, and not its own and root alone: what they send goes on
    /// from this process, with its user's rights and its handlers' keys
    #[arg(long)]
    all_users: bool,
    /// Concurrent runs per user, except root and the master's own
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = at_least_one)]
    user_runs: usize,
    /// Flows at once of one such user; without it a quarter of those that there are descriptors
    /// for. An eighth of all is kept for root and this master's own user
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    user_flows: Option<usize>,
    /// Of them, connects that wait for their far end; without it half of the flows
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    user_calls: Option<usize>,
    /// Stand above this master: it carries on what this one sends
    #[arg(long, value_name = "NAME")]
    master: Option<String>,
    #[command(flatten)]
    times: ProgramTimes,
    /// Address at which Prometheus fetches the metrics
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    run_dir: RunDir,
}

/// Runs until a signal ends the master. `log` sets up the log, after the arguments have been
/// checked.
pub fn run(args: &MasterArgs, registry: &Registry, log: impl FnOnce()) -> Result<ExitCode> {
    text::check_name(&args.name).map_err(|what| anyhow!("--name: {what}"))?;
    let chain = registry.chain(&args.handlers).map_err(|what| anyhow!(what))?;
    let rules = args.rules.load(registry.guards(&args.handlers))?;
    log();
    let below =
        args.master.as_ref().map(|name| Joined::to(name, &args.run_dir.path())).transpose()?;
    let offload = if args.no_offload || below.is_some() { None } else { offload(&chain) };
    let offload = offload.map(|of| of.rate.map_or(0, |bits| (bits / 8).max(1)));
    let mut welcome = Welcome { rules, meeting: [None; 2], offload, tells: false, heard: false };
    let above = match below {
        None => None,
        Some((joined, said)) => {
            welcome.rules = rules.above(&said.rules)?;
            Some(Arc::new(Above::new(joined, &said)?))
        }
    };
    let (name, run_dir) = (args.name.clone(), args.run_dir.path());
    let by = Outbound::Direct;
    let mut settings = Settings::for_programs(name, chain, by, args.times, run_dir);
    settings.metrics = args.metrics;
    let max_runs = quota::max_runs(raise_fd_limit());
    settings.leave_descriptors(max_runs);
    let (flows, user_flows) = (settings.limits.flows, args.user_flows);
    let limits = Limits::new(flows, max_runs, args.user_runs, user_flows, args.user_calls);
    let refused = Arc::<AtomicU64>::default();
    settings.over_limit = Some(refused.clone());
    settings.parent = above.clone().map(|above| above as Arc<dyn ParentMaster>);
    check_free(&settings.socket())?;
    let signals = Signals::register()?;
    let door = door(&args.run_dir.path(), &args.name);
    let mut door_name = None;
    let ended = engine::carry(&settings, signals, |worker| {
        let worker = worker.clone();
        let carrier = match above {
            None => Carrier::Own(worker),
            Some(above) => Carrier::Above(worker, above, Box::new(rules)),
        };
        let quota = Quota::new(limits, refused);
        let (desk, name) = Desk::open(&door, args.all_users)?;
        door_name = Some(name);
        desk.start(welcome, carrier, quota)
    });
    drop(door_name);
    ended.map(|()| ExitCode::SUCCESS)
}

/// Path of the socket of the master `name`.
pub fn door(run_dir: &Path, name: &str) -> PathBuf {
    run_dir.join(format!("{name}.master"))
}

/// Path of the socket of the master `name`: this user's own, or else the machine's.
pub fn find(run_dir: &Path, name: &str) -> PathBuf {
    let (own, system) = (door(run_dir, name), door(Path::new(SYSTEM), name));
    if !own.exists() && system.exists() { system } else { own }
}

/// Inode number of this process's network namespace.
pub fn network() -> io::Result<u64> {
    fs::metadata("/proc/self/ns/net").map(|of| of.ino())
}

/// Parses a limit per user.
fn at_least_one(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|n| *n > 0);
    number.ok_or_else(|| "a number from 1 on is expected, such as 500".to_owned())
}

/// Removes the socket of a master that was killed, and fails if a master of this name runs.
fn clear(door: &Path) -> Result<()> {
    match seqpacket::connect(&door.to_string_lossy()) {
        Ok(_) => {
            bail!("{}: a master of this name runs; give this one another name", door.display())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(door).map_err(|error| cannot_be(door, &error))
        }
        Err(error) => Err(cannot_be(door, &error)),
    }
}

/// Error message for a socket or directory that cannot be created at `path`, with a remedy.
fn cannot_be(path: &Path, error: &io::Error) -> anyhow::Error {
    let short = match error.kind() {
        io::ErrorKind::InvalidFilename => " of less than 100 bytes",
        _ => "",
    };
    anyhow!("{}: {error}; --run-dir names another directory{short}", path.display())
}
