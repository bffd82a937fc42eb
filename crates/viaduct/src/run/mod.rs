//! `viaduct run`: handlers under any program (section 3 of the TESLA paper).
//!
//! ```text
//!   viaduct run +shape:rate=2M -- curl …            the wrapper: its parent sees it as the
//!     │ socket: state of the program, log lines       program; it ends as the program ends
//!   viaduct run, as the master                      in its own session; outlives the wrapper
//!     │    │ a worker: chains of handlers             while processes or flows of the run exist
//!     │    └──── Call ◀──── interposer              sees connects: pending sockets, destinations
//!   curl  ══ its own socket ══▶ the master ══ handlers ══▶ the far end
//!         ── its datagrams ── held by the kernel until handlers release them ──▶ the far end
//! ```
//!
//! With `--master NAME` the second process of the drawing still handles the program's calls, but a
//! shared master carries the flows ([`crate::master::client`]). If the run has handlers of its own,
//! the second process runs them, and is nested under the shared master ([`crate::master::nested`]).

mod admission;
mod aware;
mod capture_ns;
mod cgroup;
mod command_line;
mod control_socket;
mod daemons;
mod datagrams;
mod descriptor_store;
mod explain;
mod freezer;
mod held_udp;
mod master;
mod names;
mod negotiate;
mod pending;
mod preload;
mod public_listeners;
mod report;
mod seccomp;
mod transport;
mod udp_associate;
mod user_udp;
mod via;
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

pub use command_line::{expand, suggestion};

use self::report::Report;
use crate::engine::chain_io::Factories;
use crate::engine::outbound::OutboundSpec;
use crate::master::program_times::ProgramTimes;
use crate::rule_args::RuleArgs;
use crate::run_dir::RunDir;
use crate::value_parser::wait;

/// Exit status if viaduct itself fails, the same as that of env(1).
pub const OUR_FAULT: u8 = 125;

/// Arguments of `viaduct run`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    override_usage = "viaduct run [+HANDLER[:KEY=VALUE,...]]... [OPTIONS] -- COMMAND [ARG...]",
    after_help = "The handlers of the chain precede the options, the one next to the program \
    first: +NAME[:KEY=VALUE,...], or +NAME -KEY=VALUE ... as in\n  \
    viaduct run +compress +crypt -key=site.key -- ssh host\n\
    The exit status is the program's; 125 if viaduct fails, 126 if the command cannot be \
    executed, 127 if it is not found."
)]
pub struct RunArgs {
    /// Handler, written +NAME[:KEY=VALUE,...]
    #[arg(long = "handler", value_name = "NAME[:KEY=VALUE,...]", hide = true)]
    handlers: Vec<HandlerSpec>,
    /// Interposer that reports the program's connects
    #[arg(long, value_enum, default_value_t)]
    via: via::Via,
    #[command(flatten)]
    rules: RuleArgs,
    #[command(flatten)]
    negotiate: negotiate::NegotiateArgs,
    #[command(flatten)]
    names: names::NameArgs,
    /// Carry flows through Viaduct even if the kernel could do all of the chain's work on the
    /// program's own socket (kernel offload)
    #[arg(long)]
    no_offload: bool,
    #[command(flatten)]
    times: ProgramTimes,
    /// Idle timeout of a datagram flow, after which the handlers discard its state
    #[arg(long, value_name = "TIME", value_parser = wait, default_value = "60s")]
    datagram_idle: Duration,
    /// Print a report of the program's flows on standard error at the end
    #[arg(long)]
    report: bool,
    /// List the handlers
    #[arg(long, exclusive = true)]
    list: bool,
    /// Explain a handler and its settings; --help HANDLER does the same
    #[arg(long, value_name = "HANDLER", exclusive = true)]
    explain: Option<String>,
    /// Shared master, started by `viaduct master`, that carries the flows; the handlers given
    /// here, if any, run before those of the master
    #[arg(long, value_name = "NAME")]
    master: Option<String>,
    #[command(flatten)]
    run_dir: RunDir,
    /// Socket to the wrapper, inherited by the master
    #[arg(long, hide = true)]
    master_fd: Option<RawFd>,
    /// Socket of the descriptor store, whose other end the wrapper holds
    #[arg(long, hide = true)]
    store_fd: Option<RawFd>,
    /// Socket to the master, inherited by the holder of its capture namespace
    #[arg(long, hide = true)]
    netns_fd: Option<RawFd>,
    /// Hold datagrams in the namespace, with --netns-fd
    #[arg(long, hide = true)]
    netns_datagrams: bool,
    /// The program and its arguments
    #[arg(
        last = true,
        required_unless_present_any = ["list", "explain", "netns_fd"],
        value_name = "COMMAND"
    )]
    command: Vec<OsString>,
}

/// Treatment of the program's flows, from the arguments.
#[derive(Clone, Debug)]
struct Plan {
    chain: Factories,
    /// Transport of flows from the end of the chain to the far end.
    by: OutboundSpec,
    /// Negotiation with far ends, if any.
    negotiation: Option<Arc<negotiate::RunNegotiation>>,
    rules: Rules,
    /// Resolver that answers programs' queries with fake IPs, if names are looked up at the far
    /// end.
    names: Option<Arc<names::RemoteNames>>,
    /// Set if the kernel can do all of the chain's work.
    offload: Option<Offload>,
    /// Idle timeout of a datagram flow.
    datagram_idle: Duration,
    /// Set if a shared master, which carries only streams, may not be bypassed (`--strict`).
    streams_alone: bool,
    report: Option<Report>,
}

impl Plan {
    fn new(args: &RunArgs, registry: &Registry) -> Result<Plan> {
        let (handlers, by) = transport::split(&args.handlers)?;
        let chain = registry.chain(handlers).map_err(|what| anyhow!(what))?;
        let negotiation = args.negotiate.load(handlers, &chain, registry)?.map(Arc::new);
        let is_direct = by == OutboundSpec::Direct;
        if negotiation.is_some() && !is_direct {
            bail!("--prefer and --require cannot be used with +{by}: they offer handlers over TCP");
        }
        if args.master.is_some() && !is_direct {
            bail!("--master cannot be used with +{by}: a shared master carries flows over TCP");
        }
        let mut rules = args.rules.load(registry.guards(handlers))?;
        let names = args.names.load(&chain, &mut rules)?;
        let report = args.report.then(|| Report::new(names.clone()));
        let offload = if args.no_offload || !is_direct { None } else { offload(&chain) };
        Ok(Plan {
            offload,
            chain,
            by,
            negotiation,
            rules,
            names,
            datagram_idle: args.datagram_idle,
            streams_alone: false,
            report,
        })
    }

    /// Adopts the rules and the offload that a shared master announces.
    fn adopt_shared(&mut self, welcome: &Welcome, no_offload: bool) -> Result<()> {
        self.rules = self.rules.both(&welcome.rules)?;
        self.streams_alone = self.rules.strict;
        let rate = |bytes: u64| (bytes > 0).then(|| bytes.saturating_mul(8));
        let offload = welcome.offload.filter(|_| !no_offload);
        self.offload = offload.map(|bytes| Offload { rate: rate(bytes) });
        Ok(())
    }

    /// Adopts the rules that a parent master announces.
    fn adopt_parent(&mut self, welcome: &Welcome) -> Result<()> {
        self.rules = self.rules.above(&welcome.rules)?;
        // With kernel offload, flows would stay on the program's own socket, but they must go
        // through the parent master.
        self.offload = None;
        self.streams_alone = welcome.rules.strict;
        Ok(())
    }
}

/// Runs the program, and ends with the program's exit status or signal.
pub fn run(args: &RunArgs, registry: &Registry) -> Result<ExitCode> {
    if let Some(fd) = args.netns_fd {
        return capture_ns::hold(fd, args.netns_datagrams).map(|()| ExitCode::SUCCESS);
    }
    if args.list {
        return explain::list(registry).map(|()| ExitCode::SUCCESS);
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
        None => wrapper::run(expand(env::args_os())),
    }
}
