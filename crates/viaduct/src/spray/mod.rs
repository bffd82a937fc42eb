//! `viaduct spray`: distributes the packets of a service over its replicas (Trickles, section 2.1).
//!
//! ```text
//!   UDP, TCP ◀── probes, answers ──▶ proto::health::Checker ─ up, down ┐
//!   spray.toml: weights, drain ────────────────────────────────────────┼─▶ proto::spray::slots
//!   NAME.drain ◀── viaduct spray drain ── operator                     │          │
//!                                                                      ▼          ▼
//!   clients ══════════════════ packets ══▶ kernel: sys::nft::spray ══▶ replicas
//! ```
//!
//! The kernel distributes the packets; this process only changes the kernel's rules. If the process
//! is killed, the distribution stays as it is, without checks.

mod config;
mod drain;
mod hops;
pub mod metrics;
mod probe;
mod rules;
mod service;
pub mod status;

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Subcommand;

use self::config::Config;
use crate::run_dir::RunDir;
use crate::stdout::print;

/// Options of `viaduct spray`.
#[derive(Clone, Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct SprayArgs {
    /// Config file: the service, its checks and its replicas; read again on SIGHUP
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Check the config, print its meaning, and change nothing
    #[arg(long, requires = "config")]
    check: bool,
    #[command(subcommand)]
    command: Option<SprayCommand>,
}

/// Subcommands that change a running service.
#[derive(Clone, Debug, Subcommand)]
pub enum SprayCommand {
    /// Stop sending packets to these replicas until `resume`; a restart does not change this
    Drain(ReplicaArgs),
    /// Send packets to these replicas again
    Resume(ReplicaArgs),
}

/// Replicas of a running service.
#[derive(Clone, Debug, clap::Args)]
pub struct ReplicaArgs {
    /// Name of the service in its config
    name: String,
    /// Names of the replicas
    #[arg(required = true, value_name = "REPLICA")]
    replicas: Vec<String>,
    #[command(flatten)]
    run_dir: RunDir,
}

/// Runs a subcommand; without one, runs the service until a signal terminates it. `log` sets up the
/// service's log.
pub fn run(args: &SprayArgs, log: impl FnOnce()) -> Result<()> {
    match (&args.command, &args.config) {
        (Some(SprayCommand::Drain(of)), _) => drain::change(of, true),
        (Some(SprayCommand::Resume(of)), _) => drain::change(of, false),
        (None, None) => bail!("--config FILE is missing; `viaduct spray --help` has more"),
        (None, Some(path)) => {
            let config = Config::load(path)?;
            if args.check {
                return print(&config.to_string());
            }
            log();
            service::run(path, config)
        }
    }
}
