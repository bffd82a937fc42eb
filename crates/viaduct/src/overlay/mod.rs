//! `viaduct overlay`: a node of the overlay that the handler `route` uses (section 4.2 of the TESLA
//! paper).
//!
//! ```text
//!   UDP ◀── probes, answers ──▶ proto::overlay::Node ── table ──▶ status socket ──▶ +route, status
//!                                                  └── metrics, /healthz
//!   SOCKS5 ── clients that the config allows ──▶ proxy in this process ──▶ destinations
//! ```

mod config;
pub mod metrics;
mod service;
mod table_socket;

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use viaduct_proto::flow::Registry;

use self::config::Config;
use crate::stdout::print;

/// Options of `viaduct overlay`.
#[derive(Clone, Debug, clap::Args)]
pub struct OverlayArgs {
    /// Config file of the node; read again on SIGHUP
    #[arg(short, long, value_name = "FILE")]
    pub config: PathBuf,
    /// Check the config, print its meaning, and change nothing
    #[arg(long)]
    pub check: bool,
}

/// Runs a node until a signal terminates it.
pub fn run(args: &OverlayArgs, registry: &Registry) -> Result<()> {
    let config = Config::load(&args.config, registry)?;
    config.try_node().with_context(|| args.config.display().to_string())?;
    if args.check {
        return print(&config.to_string());
    }
    service::run(&args.config, config, registry)
}
