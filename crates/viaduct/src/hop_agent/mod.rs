//! `viaduct hop-agent`: many hops, each of which has a process only while it is in use (Miniproxy,
//! section 7). The agent holds the listeners of all hops. When a SYN arrives for a hop without a
//! process, the agent starts a process for that hop. The process ends when it is idle.
//!
//! ```text
//!                       ┌─ definitions: one file, or a directory of configs of proxies
//!   SYNs ──▶ one tap ──▶ agent ── SYN, listeners, config ──▶ viaduct proxy, confined ══▶ onward
//!                         ▲  └ hops: 1,000 listeners                │
//!                         └────────────── idle: ends ◀──────────────┘
//! ```
//!
//! | file | |
//! |---|---|
//! | here | options |
//! | `definition` | definitions of hops, and their checks |
//! | `hop` | a hop: its listeners, its process, its counters |
//! | `directory` | directories of the hops |
//! | `agent` | event loop |
//! | `reload` | reload of the definitions; hops that wait for their listeners |
//! | `readiness` | readiness of the tap, listeners and processes |
//! | `syns` | tap of the SYNs to all hops |
//! | `status`, `metrics` | state of the agent for the operator |

mod agent;
mod definition;
mod directory;
mod hop;
pub mod metrics;
mod readiness;
mod reload;
pub mod status;
mod syns;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, anyhow};
use rustix::process::geteuid;
use viaduct_proto::flow::Registry;

use self::agent::Agent;
use crate::capabilities;
use crate::run_dir::RunDir;
use crate::stdout::{print, print_line};
use crate::text;
use crate::value_parser::{memory, socket_addr, wait};

/// Capabilities that an agent running as root needs to run each hop as a separate user.
const OF_USERS: [&str; 5] =
    ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_KILL", "CAP_SETGID", "CAP_SETUID"];

/// Options of `viaduct hop-agent`.
#[derive(Clone, Debug, clap::Args)]
pub struct HopAgentArgs {
    /// Hops: a file of tables [[hop]] with the keys of a proxy's [proxy], or a directory of configs
    /// of proxies; read again on SIGHUP
    #[arg(long, value_name = "PATH")]
    hops: PathBuf,
    /// Check the hops, print them, and change nothing
    #[arg(long)]
    check: bool,
    /// Idle time after which a hop's process ends, unless the hop sets its own idle-exit
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = wait)]
    idle_exit: Duration,
    /// Maximum private memory of each hop's process
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = memory)]
    memory: usize,
    /// Listen address of the Prometheus metrics
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = socket_addr)]
    metrics: Option<SocketAddr>,
    /// Name of the status socket
    #[arg(long, value_name = "NAME", default_value = "hops")]
    name: String,
    #[command(flatten)]
    run_dir: RunDir,
}

/// Runs the agent until a signal terminates it. `log` sets up the log; processes of hops log in
/// JSON if `log_json` is set.
pub fn run(
    args: &HopAgentArgs,
    registry: Registry,
    log_json: bool,
    log: impl FnOnce(),
) -> Result<()> {
    text::check_name(&args.name).map_err(|what| anyhow!("name: {what}"))?;
    let definitions = definition::load(args, &registry)?;
    if args.check {
        for one in &definitions {
            print(&one.meaning)?;
        }
        return print_line!("ok, {} hops", definitions.len());
    }
    capabilities::check("hop-agent", &["CAP_SYS_ADMIN"])?;
    if geteuid().is_root() {
        capabilities::check("hop-agent, as root,", &OF_USERS)?;
    }
    log();
    Agent::open(args.clone(), registry, log_json, definitions)?.run()
}
