//! `viaduct proxy`: one hop of a chain. TCP connections end here and go on from here, the second
//! half begun when the client's SYN is seen (Miniproxy, section 3).
//!
//! ```text
//!              ┌──────────── SYN tap ──▶ early connections ─┐ matched by their 4-tuple
//!   client ════╪═▶ listener ── accept ──▶ flow ◀────────────┘════▶ server, or the next hop
//!              └──                         ├─ relay: bytes by splice, through a pipe, never here
//!                                          └─ through: a chain of handlers, or ends that cannot be
//!                                             spliced
//!   options, a file ─▶ settings ─▶ worker: the loop of all flows, one thread
//!                             └──▶ control: signals, status socket, metrics, another thread
//! ```

mod arrivals;
mod asking;
mod control;
pub mod families;
pub mod file;
mod flow;
mod flows;
pub mod handle;
mod leg;
mod options;
mod pipes;
mod policy;
mod relay;
mod resolve;
pub mod settings;
pub mod snapshot;
pub mod stats;
mod target;
mod through;
mod worker;

use std::fs;

use anyhow::{Context, Result};
use tracing::{info, warn};
use viaduct_proto::flow::Registry;
use viaduct_sys::journal::Changes;

pub use options::ProxyOptions;
use settings::Settings;
use worker::Worker;

/// Runs until a signal ends it.
pub fn run(options: &ProxyOptions, registry: Registry) -> Result<()> {
    let settings = Settings::load(options, &registry)?;
    let (worker, to_worker) = Worker::new(&settings)?;
    control::start(options.clone(), registry, settings.clone(), to_worker)?;
    // Only now that somebody listens; dropped, and so put back, when the worker has ended.
    let _changes = intercept(&settings)?;
    info!(name = settings.name, listen = ?settings.listen, to = %settings.target, "up");
    let ended = worker.run().context("the proxy stopped");
    let _ = fs::remove_file(settings.socket());
    ended
}

/// Checks what was said, says what it means, and touches nothing.
pub fn check(options: &ProxyOptions, registry: &Registry) -> Result<()> {
    let settings = Settings::load(options, registry)?;
    print!("{settings}");
    println!("ok");
    Ok(())
}

/// Has the kernel hand connections to the proxy.
fn intercept(settings: &Settings) -> Result<Option<Changes>> {
    let Some(intercept) = &settings.intercept else { return Ok(None) };
    let mut changes = Changes::open(&settings.journal())?;
    for warning in changes.warnings() {
        warn!("left by an earlier run: {warning}");
    }
    changes.intercept(intercept.clone())?;
    Ok(Some(changes))
}
