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
mod master;
mod preload;
mod rules;
mod seccomp;
mod via;
mod waiting;
mod words;
mod wrapper;

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use viaduct_proto::flow::{HandlerSpec, Registry};

pub use words::unfold;

use crate::proxy::through::Factories;

/// What `viaduct run` may be told.
#[derive(Clone, Debug, clap::Args)]
pub struct RunArgs {
    /// A handler of the chain, the program's first; written before the options as +NAME[:KEY=VALUE,...],
    /// or +NAME -KEY=VALUE
    #[arg(long = "handler", value_name = "NAME[:KEY=VALUE,...]")]
    handlers: Vec<HandlerSpec>,
    /// How the program's calls are seen
    #[arg(long, value_enum, default_value_t)]
    via: via::Via,
    #[command(flatten)]
    rules: rules::RuleArgs,
    /// The socket to the wrapper, in its master
    #[arg(long, hide = true)]
    master_fd: Option<RawFd>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl RunArgs {
    fn chain(&self, registry: &Registry) -> Result<Factories> {
        registry.chain(&self.handlers).map_err(|what| anyhow!(what))
    }
}

/// Runs the program; ends as it does.
pub fn run(args: &RunArgs, registry: &Registry) -> Result<ExitCode> {
    let chain = args.chain(registry)?;
    match args.master_fd {
        None => wrapper::run(),
        Some(fd) => master::run(fd, args, chain),
    }
}
