//! `viaduct run`: handlers under any program (TESLA, section 3).
//!
//! ```text
//!   viaduct run +shape:rate=2M -- curl …            the wrapper: stands for the program towards
//!     │ socket: what the program does, what to say    its parent, and ends as it ends
//!   viaduct run, as the master                      its own session, outlives the wrapper while
//!     │    │ a proxy's worker: chains of handlers     a program that it serves is left
//!     │    └──── Call ◀──── interposer              sees connects: where they wait, their targets
//!   curl  ══ its own socket ══▶ the master ══ handlers ══▶ the far end
//!         ── its datagrams ── held by the kernel until handlers let them on ──▶ the far end
//! ```
//!
//! With `--master N` the second process still hears the program's calls (`joined`), but a
//! shared master ([`crate::master`]) carries the flows. With handlers of its own it runs those,
//! above that master (`above`).

pub mod above;
mod admission;
mod agree;
mod aware;
mod carried;
pub mod carrier;
mod daemons;
mod datagrams;
mod desk;
mod diverted;
mod explain;
mod freezing;
mod fronts;
mod hall;
pub mod joined;
mod keep;
mod master;
mod names;
mod preload;
mod relayed;
mod report;
mod road;
pub mod rules;
mod seccomp;
mod transport;
mod via;
mod waiting;
mod words;
mod wrapper;

use std::env;
use std::ffi::OsString;
use std::os::fd::RawFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use viaduct_proto::flow::{HandlerSpec, Offload, Registry, offload};
use viaduct_proto::wrap::Rules;
use viaduct_proto::wrap::wire::Welcome;

pub use words::{meant, unfold};

use self::report::Report;
use crate::engine::chain_io::Factories;
use crate::engine::outbound::Outbound;
use crate::engine::settings::ProgramTimes;
use crate::run_dir::RunDir;
use crate::value_parser::wait;

/// Exit status if viaduct itself fails, the same as env(1)'s.
pub const OUR_FAULT: u8 = 125;

/// Arguments of `viaduct run`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    override_usage = "viaduct run [+HANDLER[:KEY=VALUE,...]]... [OPTIONS] -- COMMAND [ARG...]",
    after_help = "The handlers of the chain, the program's first, stand before the options: \
    +NAME[:KEY=VALUE,...], or +NAME -KEY=VALUE ... as in\n  \
    viaduct run +compress +crypt -key=site.key -- ssh host\n\
    The exit status is the program's; 125 if viaduct fails, 126 if the command is no program, 127 \
    if \
    it is not there."
)]
pub struct RunArgs {
    /// A handler, as +NAME[:KEY=VALUE,...] says it
    #[arg(long = "handler", value_name = "NAME[:KEY=VALUE,...]", hide = true)]
    handlers: Vec<HandlerSpec>,
    /// Interposer that sees the program's calls
    #[arg(long, value_enum, default_value_t)]
    via: via::Via,
    #[command(flatten)]
    rules: rules::RuleArgs,
    #[command(flatten)]
    agree: agree::AgreeArgs,
    #[command(flatten)]
    names: names::NameArgs,
    /// Have flows pass Viaduct even where the kernel could do all of the chain's work on the
    /// program's own socket
    #[arg(long)]
    no_offload: bool,
    #[command(flatten)]
    times: ProgramTimes,
    /// Idle time of datagrams between two ends after which their handlers forget them
    #[arg(long, value_name = "TIME", value_parser = wait, default_value = "60s")]
    datagram_idle: Duration,
    /// Say at the end, on standard error, what became of the program's flows
    #[arg(long)]
    report: bool,
    /// List the handlers
    #[arg(long, exclusive = true)]
    list: bool,
    /// Explain a handler and its settings; --help HANDLER does the same
    #[arg(long, value_name = "HANDLER", exclusive = true)]
    explain: Option<String>,
    /// Have the flows carried by this master, which `viaduct master` runs; handlers given here
    /// run above it
    #[arg(long, value_name = "NAME")]
    master: Option<String>,
    #[command(flatten)]
    run_dir: RunDir,
    /// The socket to the wrapper, in its master
    #[arg(long, hide = true)]
    master_fd: Option<RawFd>,
    /// The socket that keeps the master's descriptors, in the wrapper
    #[arg(long, hide = true)]
    keep_fd: Option<RawFd>,
    /// The socket to the master, in the holder of its capture namespace
    #[arg(long, hide = true)]
    hall_fd: Option<RawFd>,
    /// Hold datagrams in the namespace, with --hall-fd
    #[arg(long, hide = true)]
    hall_datagrams: bool,
    /// The program and its arguments
    #[arg(
        last = true,
        required_unless_present_any = ["list", "explain", "hall_fd"],
        value_name = "COMMAND"
    )]
    command: Vec<OsString>,
}

/// Treatment of the program's flows, from the arguments.
#[derive(Debug)]
struct Plan {
    chain: Factories,
    /// Transport by which flows continue from the end of the chain.
    by: Outbound,
    /// Negotiation with far ends, if any.
    agree: Option<agree::Agreed>,
    rules: Rules,
    /// Resolver of names at the far end, if names are looked up there.
    names: Option<Arc<names::Remote>>,
    /// Set if the kernel can do all of the chain's work.
    offload: Option<Offload>,
    /// Idle time of datagrams after which their handlers forget them.
    datagram_idle: Duration,
    /// Set if a shared master is strict: nothing may go around it, and it carries streams only.
    streams_alone: bool,
    report: Option<Report>,
}

impl Plan {
    fn new(args: &RunArgs, registry: &Registry) -> Result<Plan> {
        let (handlers, by) = transport::split(&args.handlers)?;
        let chain = registry.chain(handlers).map_err(|what| anyhow!(what))?;
        let agree = args.agree.load(handlers, &chain, registry)?;
        let straight = by == Outbound::Direct;
        if agree.is_some() && !straight {
            bail!(
                "--prefer and --require: handlers are offered to far ends by TCP: not with +{by}"
            );
        }
        if args.master.is_some() && !straight {
            bail!("--master: it carries flows by TCP; +{by} would go past it");
        }
        let mut rules = args.rules.load(registry.guards(handlers))?;
        let names = args.names.load(&chain, &mut rules)?;
        let report = args.report.then(|| Report::new(names.clone()));
        let offload = if args.no_offload || !straight { None } else { offload(&chain) };
        let datagram_idle = args.datagram_idle;
        let streams_alone = false;
        Ok(Plan { offload, chain, by, agree, rules, names, datagram_idle, streams_alone, report })
    }

    /// Returns the part of the plan that the carrier of datagrams needs, which starts with the
    /// first of them.
    fn for_datagrams(&self) -> Plan {
        Plan {
            chain: self.chain.clone(),
            by: self.by.clone(),
            agree: None,
            rules: self.rules,
            names: self.names.clone(),
            offload: self.offload,
            datagram_idle: self.datagram_idle,
            streams_alone: self.streams_alone,
            report: self.report.clone(),
        }
    }

    /// Adopts what a shared master announces: its rules and its offload.
    fn join(&mut self, welcome: &Welcome, no_offload: bool) -> Result<()> {
        self.rules = self.rules.both(&welcome.rules)?;
        self.streams_alone = self.rules.strict;
        let rate = |bytes: u64| (bytes > 0).then(|| bytes.saturating_mul(8));
        let offload = welcome.offload.filter(|_| !no_offload);
        self.offload = offload.map(|bytes| Offload { rate: rate(bytes) });
        Ok(())
    }

    /// Adopts what a master below announces.
    fn stand_above(&mut self, welcome: &Welcome) -> Result<()> {
        self.rules = self.rules.above(&welcome.rules)?;
        // Flows that pass the handlers continue to that master, not on the program's own socket.
        self.offload = None;
        self.streams_alone = welcome.rules.strict;
        Ok(())
    }
}

/// Runs the program, and ends as it does.
pub fn run(args: &RunArgs, registry: &Registry) -> Result<ExitCode> {
    if let Some(fd) = args.hall_fd {
        return hall::keep(fd, args.hall_datagrams).map(|()| ExitCode::SUCCESS);
    }
    if args.list {
        explain::list(registry);
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(name) = &args.explain {
        return explain::one(registry, name).map(|()| ExitCode::SUCCESS);
    }
    if args.command.is_empty() {
        bail!("no program is given");
    }
    let plan = Plan::new(args, registry)?;
    match args.master_fd {
        Some(fd) => master::run(fd, args, plan),
        None => wrapper::run(unfold(env::args_os())),
    }
}
