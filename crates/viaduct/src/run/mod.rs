//! `viaduct run`: handlers under any program (TESLA, section 3).
//!
//! ```text
//!   viaduct run +shape:rate=2M -- curl …            the wrapper: stands for the program to whoever
//!     │ socket: what the program does, what to say    started it, and ends as it ends
//!   viaduct run, as the master                      its own session, outlives the wrapper while
//!     │    │ a proxy's worker: chains of handlers     somebody whom it serves is left
//!     │    └──── Call ◀──── interposer              sees connects: where they wait, what they meant
//!   curl  ══ its own socket ══▶ the master ══ handlers ══▶ the far end
//! ```

mod diverted;
mod explain;
mod master;
mod report;
mod words;
mod wrapper;

use std::ffi::OsString;
use std::fs;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};
use viaduct_proto::flow::{HandlerSpec, Offload, Registry, offload};
use viaduct_proto::wrap::{Fate, Rules};

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
    /// Only what fits passes the handlers: [tcp:|udp:][ADDRESS[/LENGTH]][:PORT[-PORT]]; may be repeated
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
    /// What fits goes direct, as if nobody were there; may be repeated
    #[arg(long, value_name = "PATTERN")]
    except: Vec<String>,
    /// What fits is refused; may be repeated
    #[arg(long, value_name = "PATTERN")]
    refuse: Vec<String>,
    /// A file of such rules, a line each: `only PATTERN`, `except PATTERN`, `refuse PATTERN`
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Refuse what cannot pass the handlers, datagrams say; so it is when one of them guards data
    #[arg(long, conflicts_with = "no_strict")]
    strict: bool,
    /// Let go direct what cannot pass them, whatever they do
    #[arg(long)]
    no_strict: bool,
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
    report: Option<Report>,
}

impl Plan {
    fn new(args: &RunArgs, registry: &Registry) -> Result<Plan> {
        let chain = registry.chain(&args.handlers).map_err(|what| anyhow!(what))?;
        let mut rules = Rules::EVERYTHING;
        rules.strict = args.strict || registry.guards(&args.handlers) && !args.no_strict;
        if let Some(path) = &args.rules {
            let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
            let wrong = |(line, what)| anyhow!("{} line {line}: {what}", path.display());
            rules.read(&text).map_err(wrong)?;
        }
        let said = [
            ("only", Fate::Divert, &args.only),
            ("except", Fate::Leave, &args.except),
            ("refuse", Fate::Refuse, &args.refuse),
        ];
        for (option, fate, patterns) in said {
            for pattern in patterns {
                rules.add(fate, pattern).map_err(|what| anyhow!("--{option}: {what}"))?;
            }
        }
        let report = args.report.then(Report::default);
        Ok(Plan { offload: offload(&chain), chain, rules, report })
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
        Some(fd) => master::run(fd, &args.command, &plan),
    }
}
