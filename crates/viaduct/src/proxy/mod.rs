//! `viaduct proxy`: one hop of a chain. TCP connections end here and go on from here, the second
//! half begun when the client's SYN is seen (Miniproxy, section 3).
//!
//! ```text
//!              ┌──────────── SYN tap ──▶ early connections ─┐ matched by their 4-tuple
//!   client ════╪═▶ listener ── accept ──▶ flow ◀────────────┘════▶ server, or the next hop
//!              └──                         ├─ relay: bytes by splice, through a pipe, never here
//!                                          └─ through: a chain of handlers, or ends that cannot be
//!                                             spliced
//!   doors: listeners, and the SYN tap or a queue of held SYNs; opened here, or inherited
//!   options, a file ─▶ settings ─▶ worker: a loop of flows, one thread; loops: all of them
//!                             └──▶ control: signals, status socket, metrics, another thread
//! ```

mod account;
pub mod agreeing;
mod arrivals;
mod asking;
pub mod aware;
mod behind;
pub mod below;
pub mod calls;
pub mod conn;
mod control;
mod demand;
mod doors;
mod driving;
pub mod families;
pub mod file;
mod flow;
mod flows;
pub mod handle;
mod holding;
pub mod keeper;
pub mod leg;
pub mod liveness;
mod loops;
pub mod onward;
mod opening;
mod options;
pub mod orders;
mod outward;
mod pipes;
mod policy;
mod relay;
mod resolve;
pub mod settings;
pub mod snapshot;
mod spin;
pub mod stats;
mod target;
mod tell;
pub mod through;
mod told;
pub mod trickles;
mod tunnels;
pub mod values;
mod wants;
mod worker;

use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use tracing::info;
use viaduct_proto::flow::Registry;
use viaduct_sys::process::memory;

use demand::{Demand, SignalPipes};
use doors::Doors;
use handle::Handle;
use keeper::{Interception, Keeper};
use loops::Loops;
pub use options::{ProxyOptions, check_beside_config};
use settings::Settings;
use told::Told;

use crate::signals::Signals;
use crate::status::socket::check_free;

/// Runs a proxy until a signal ends it.
pub fn run(options: &ProxyOptions, registry: Registry) -> Result<()> {
    // The parent of on-demand proxies signals changes of the config.
    let early = (!options.doors.is_empty()).then(Signals::register).transpose()?;
    let (settings, text) = Settings::read(options, &registry)?;
    check_free(&settings.socket())?;
    if settings.on_demand && options.doors.is_empty() {
        let told = Told::new(options.clone(), registry, settings.clone(), text.as_deref())?;
        return run_on_demand(&settings, told);
    }
    let signals = early.map_or_else(Signals::register, Ok)?;
    // Dropping the changes reverts them.
    let (doors, changes) = opening::open(&settings, &options.doors)?;
    let interception = Arc::<Interception>::default();
    let _keeper = Keeper::start(changes, settings.intercept.as_ref(), &interception)?;
    let loops = Loops::new(&settings, doors, &interception)?;
    let handle = Handle::new(settings.clone(), loops.orders(), interception);
    let access_log = loops.access_log();
    let handle = handle.with_access_log(access_log.clone());
    let _status = control::start(Some(options.clone()), registry, handle, signals)?;
    if options.rehearse {
        return Ok(());
    }
    let tunnels = settings.tunnels.as_ref().and_then(|of| of.listen).map(tracing::field::display);
    let (name, listen) = (&settings.name, &settings.listen);
    info!(name, ?listen, tunnel_listen = tunnels, to = %settings.target, "up");
    memory::drop_clean_pages()?;
    let ended = loops.run();
    access_log.flush();
    ended.context("the proxy stopped")
}

/// Runs the parent of on-demand proxies until a signal ends it.
fn run_on_demand(settings: &Settings, told: Told) -> Result<()> {
    let calls = SignalPipes::register()?;
    let (doors, changes) = opening::open(settings, &[])?;
    let [doors] = <[Doors; 1]>::try_from(doors).map_err(|_| anyhow!("one loop runs on demand"))?;
    let interception = Arc::<Interception>::default();
    let _keeper = Keeper::start(changes, settings.intercept.as_ref(), &interception)?;
    let parent = Demand::new(doors, calls, told, interception);
    parent.rehearse()?;
    info!(name = settings.name, listen = ?settings.listen, "up on demand");
    parent.run().context("the parent of proxies stopped")
}

/// Carries flows of programs, as `settings` say, until a signal ends it. `open` gets the sender
/// of the worker's commands before the service is reported as up.
pub fn carry(
    settings: &Settings,
    registry: Registry,
    signals: Signals,
    open: impl FnOnce(&orders::ToWorker) -> Result<()>,
) -> Result<()> {
    let interception = Arc::<Interception>::default();
    let loops = Loops::new(settings, opening::doors(settings)?, &interception)?;
    let handle = Handle::new(settings.clone(), loops.orders(), interception);
    open(handle.worker().context("no worker runs")?)?;
    let _status = control::start(None, registry, handle, signals)?;
    info!(name = settings.name, "up");
    memory::drop_clean_pages()?;
    loops.run().context("the master stopped")
}

/// Checks the options and prints their meaning; changes nothing.
pub fn check(options: &ProxyOptions, registry: &Registry) -> Result<()> {
    let settings = Settings::load(options, registry)?;
    print!("{settings}");
    settings.warnings().iter().for_each(|warning| println!("warning: {warning}"));
    println!("ok");
    Ok(())
}
