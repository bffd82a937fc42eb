//! `viaduct proxy`: one hop of a chain. TCP connections end here and go on from here, the second
//! half begun when the client's SYN is seen (Miniproxy, section 3).
//!
//! ```text
//!              ┌──────────── SYN tap ──▶ early connections ─┐ matched by their 4-tuple
//!   client ════╪═▶ listener ── accept ──▶ flow ◀────────────┘════▶ server, or the next hop
//!              └──                         ├─ relay: bytes by splice, through a pipe, never here
//!                                          └─ through: a chain of handlers, or ends that cannot be
//!                                             spliced
//!   doors: listeners, and the SYN tap or a queue of held SYNs; opened here, or by whoever began us
//!   options, a file ─▶ settings ─▶ worker: a loop of flows, one thread; loops: all of them
//!                             └──▶ control: signals, status socket, metrics, another thread
//! ```

mod arrivals;
mod asking;
pub mod calls;
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
mod leg;
mod loops;
mod opening;
mod options;
pub mod orders;
mod pipes;
mod policy;
mod relay;
mod resolve;
pub mod settings;
pub mod snapshot;
pub mod stats;
mod target;
mod tell;
pub mod through;
mod tunnels;
pub mod values;
mod wants;
mod worker;

use std::fs;
use std::sync::Arc;

use anyhow::{Context, Result};
use tracing::info;
use viaduct_proto::flow::Registry;
use viaduct_sys::memory;

use handle::Handle;
use keeper::{Interception, Keeper};
use loops::Loops;
use opening::Opened;
pub use options::ProxyOptions;
use settings::Settings;

use crate::status::socket::check_free;

/// Runs until a signal ends it.
pub fn run(options: &ProxyOptions, registry: Registry) -> Result<()> {
    let settings = Settings::load(options, &registry)?;
    check_free(&settings.socket())?;
    // What was changed on the machine is put back when this ends.
    let (interception, intercept) = (Arc::<Interception>::default(), settings.intercept.as_ref());
    let keeper = |changes| Keeper::start(changes, intercept, interception.clone());
    let (doors, _keeper) = match opening::open(&settings, &options.doors)? {
        Opened::Proxy(doors, changes) => (doors, keeper(changes)?),
        Opened::Parent(parent, changes) => {
            let _keeper = keeper(changes)?;
            parent.rehearse()?;
            info!(name = settings.name, listen = ?settings.listen, "up on demand");
            return parent.run().context("the parent of proxies stopped");
        }
    };
    let loops = Loops::new(&settings, doors, &interception)?;
    let handle = Handle::new(settings.clone(), loops.orders(), interception);
    control::start(options.clone(), registry, handle)?;
    if options.rehearse {
        return Ok(fs::remove_file(settings.socket())?);
    }
    info!(name = settings.name, listen = ?settings.listen, to = %settings.target, "up");
    memory::let_go_of_start()?;
    let ended = loops.run().context("the proxy stopped");
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
