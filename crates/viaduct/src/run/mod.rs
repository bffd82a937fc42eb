//! `viaduct run`: handlers under any program (TESLA, section 3).
//!
//! ```text
//!   viaduct run +shape:rate=2M -- curl …            the wrapper: stands for the program to whoever
//!     │ socket: what the program does, what to say    started it, and ends as it ends
//!   viaduct run, as the master                      its own session, outlives the wrapper while
//!     │    │ a proxy's worker: chains of handlers     somebody whom it serves is left
//!     │    └──── Call ◀──── interposer              sees connects: where they wait, what they meant
//!   curl  ══ its own socket ══▶ the master ══ handlers ══▶ the far end
//!         ── its datagrams ── held by the kernel until handlers let them on ──▶ the far end
//! ```

mod datagrams;
mod diverted;
mod explain;
mod master;
mod preload;
mod report;
mod rules;
mod seccomp;
mod via;
mod waiting;
mod words;
mod wrapper;

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use viaduct_proto::flow::{HandlerSpec, Offload, Registry, offload};
use viaduct_proto::wrap::Rules;

pub use words::unfold;

use self::report::Report;
use crate::proxy::through::Factories;

/// What `viaduct run` may be told.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "The handlers of the chain, the program's first, stand before the options: \
    +NAME[:KEY=VALUE,...], or +NAME -KEY=VALUE ... as in\n  \
    viaduct run +compress +crypt -key=site.key -- ssh host\n\
    The exit status is the program's; 125 if viaduct fails, 126 if the command is no program, 127 if \
    it is not there."
)]
pub struct RunArgs {
    /// A handler, as +NAME[:KEY=VALUE,...] says it
    #[arg(long = "handler", value_name = "NAME[:KEY=VALUE,...]", hide = true)]
    handlers: Vec<HandlerSpec>,
    /// How the program's calls are seen
    #[arg(long, value_enum, default_value_t)]
    via: via::Via,
    #[command(flatten)]
    rules: rules::RuleArgs,
    /// Have flows pass Viaduct even where the kernel could do all of the chain's work on the program's
    /// own socket
    #[arg(long)]
    no_offload: bool,
    /// How long datagrams between two ends may be silent before their handlers forget them
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "60s")]
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
    /// The socket to the wrapper, in its master
    #[arg(long, hide = true)]
    master_fd: Option<RawFd>,
    /// The program and its arguments
    #[arg(last = true, required_unless_present_any = ["list", "explain"], value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// What is to be done with the program's flows.
#[derive(Debug)]
struct Plan {
    chain: Factories,
    rules: Rules,
    /// The kernel can do all of the chain's work.
    offload: Option<Offload>,
    /// How long datagrams may be silent before their handlers forget them.
    datagram_idle: Duration,
    report: Option<Report>,
}

impl Plan {
    fn new(args: &RunArgs, registry: &Registry) -> Result<Plan> {
        let chain = registry.chain(&args.handlers).map_err(|what| anyhow!(what))?;
        let rules = args.rules.load(registry.guards(&args.handlers))?;
        let report = args.report.then(Report::default);
        let offload = if args.no_offload { None } else { offload(&chain) };
        Ok(Plan { offload, chain, rules, datagram_idle: args.datagram_idle, report })
    }
}

/// Runs the program; ends as it does.
pub fn run(args: &RunArgs, registry: &Registry) -> Result<ExitCode> {
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
        None => wrapper::run(),
        Some(fd) => master::run(fd, args, &plan),
    }
}
