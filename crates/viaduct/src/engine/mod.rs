//! Engine: event loops that carry flows. A flow has two ends, and a relay or a chain of handlers
//! between them. The engine runs in `viaduct proxy`, in the masters of `viaduct run` and `viaduct
//! master`, in the split mode of a gateway, and in the SOCKS proxy of an overlay node.
//!
//! ```text
//!              ┌──────────── SYN tap ──▶ early connections ─┐ matched by their 4-tuple
//!   client ════╪═▶ listener ── accept ──▶ flow ◀────────────┘════▶ server, or the next hop
//!              └──                         ├─ relay: splice through a pipe, no copy to user space
//!                                          └─ chain_io: handlers, or ends that cannot be spliced
//!
//!   proxy, run, master ──▶ config, listen_set ──▶ loops ──▶ worker
//!   run, master ──▶ wrapped: Call, Arrival ──┐                ▲
//!   control: signals, status, metrics ───────┴─▶ handle ──▶ commands
//! ```
//!
//! | files | |
//! |---|---|
//! | `worker`, `lifecycle`, `spin` | event loop of a thread, life of a flow in it, busy polling |
//! | `loops`, `commands`, `handle`, `control` | all loops, their commands, the control side |
//! | `config` | config, made by the command that runs the engine |
//! | `listen_set`, `intercept` | listeners and SYN sources, state of the interception rules |
//! | `acceptor`, `accept`, `deferred_accept` | clients: their SYNs and connections |
//! | `client_handshake` | clients that name their destination |
//! | `flow`, `flows`, `relay`, `pipes`, `chain_io` | flows, and the transfer of their bytes |
//! | `chain_requests`, `claims` | requests of handlers that concern other flows |
//! | `conn`, `flow_socket`, `liveness` | ends of flows |
//! | `destination`, `policy`, `resolve` | destination of a flow, and route to it |
//! | `dial`, `outbound` | server side of flows: outbound connections |
//! | `next_hops` | lists of next hops: checks, choice, failover |
//! | `negotiation` | negotiation of a flow's handlers with its far end |
//! | `trickles`, `tunnels` | outbound over Trickles; ends of flows in tunnels ([`crate::tunnel`]) |
//! | `upstream` | outbounds of a loop, with its tunnels, ports and resolver |
//! | `wrapped`, `programs`, `aware`, `origin` | wrapped programs, their requests, egress |
//! | `workers` | choice of the worker for a wrapped program's flow |
//! | `upgrade`, `transfer` | hand-over of a proxy, and of a loop's flows, to a new process |
//! | `stats`, `snapshot`, `metrics`, `account` | counters, status, Prometheus, access log |

mod accept;
mod acceptor;
mod account;
pub mod aware;
pub mod chain_io;
mod chain_requests;
mod claims;
mod client_handshake;
pub mod commands;
pub mod config;
pub mod conn;
pub mod control;
mod deferred_accept;
pub mod destination;
mod dial;
mod flow;
pub mod flow_socket;
mod flows;
pub mod handle;
pub mod hop_stats;
pub mod intercept;
mod lifecycle;
pub mod listen_set;
pub mod liveness;
pub mod loops;
pub mod metrics;
pub mod negotiation;
pub mod next_hops;
mod origin;
pub mod outbound;
mod pipes;
pub mod policy;
mod programs;
mod relay;
mod resolve;
pub mod snapshot;
mod spin;
pub mod stats;
mod transfer;
pub mod trickles;
mod tunnels;
pub mod upgrade;
mod upstream;
mod worker;
pub mod workers;
pub mod wrapped;

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use tracing::info;
use viaduct_sys::process::memory;

use self::config::EngineConfig;
use self::control::ControlInputs;
use self::handle::Handle;
use self::intercept::InterceptState;
use self::loops::Loops;
use self::workers::Workers;
use crate::access_log::AccessLog;
use crate::signals::Signals;

/// Runs an engine for wrapped programs until a signal ends it, and serves metrics at `metrics`.
/// Before the service is reported as up, `open` is called with the workers.
pub fn carry(
    config: &EngineConfig,
    metrics: Option<SocketAddr>,
    signals: Signals,
    open: impl FnOnce(Workers) -> Result<()>,
) -> Result<()> {
    let intercept_state = Arc::<InterceptState>::default();
    let access_log = AccessLog::default();
    let loops = Loops::new(config, config.listen_sets(None)?, &intercept_state, access_log)?;
    let handle = Handle::new(config.clone(), &loops, intercept_state);
    open(handle.workers_of_programs()?)?;
    let metrics = metrics.map(crate::metrics::bind).transpose()?;
    let inputs = ControlInputs { metrics, ..ControlInputs::default() };
    let _status = control::prepare(inputs, handle, signals)?.start()?;
    info!(name = config.name, "up");
    memory::drop_clean_pages()?;
    loops.run().context("the master stopped")
}
