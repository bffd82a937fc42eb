//! `viaduct proxy`: one hop of a chain. TCP connections end here and go on from here, the second
//! half begun when the client's SYN is seen (Miniproxy, section 3).
//!
//! ```text
//!              ┌──────────── SYN tap ──▶ early connections ─┐ matched by their 4-tuple
//!   client ════╪═▶ listener ── accept ──▶ flow ◀────────────┘════▶ server, or the next hop
//!              └──                         └─ bytes by splice, through a pipe, never here
//! ```

mod flow;
mod pipes;
mod target;
mod worker;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use ipnet::IpNet;
use tracing::{info, warn};
use viaduct_sys::intercept::Intercept;
use viaduct_sys::journal::Changes;
use viaduct_sys::tcp::TcpOptions;

use target::Target;
use worker::{Limits, Worker};

/// What `viaduct proxy` may be told.
#[derive(Clone, Debug, clap::Args)]
pub struct ProxyArgs {
    /// Where connections arrive
    #[arg(short, long, value_name = "ADDRESS:PORT", required = true)]
    listen: Vec<SocketAddr>,
    /// Where they go; without it, to where each client meant to, as tproxy says
    #[arg(short, long, value_name = "ADDRESS:PORT", required_unless_present = "intercept")]
    to: Option<SocketAddr>,
    /// Split the connections that pass this machine towards these addresses (tproxy, by nftables);
    /// put back at the end
    #[arg(long, value_name = "PREFIX,...", value_delimiter = ',', conflicts_with = "to")]
    intercept: Vec<IpNet>,
    /// Of those connections, only those to these ports
    #[arg(long, value_name = "PORT,...", value_delimiter = ',', requires = "intercept")]
    ports: Vec<u16>,
    /// Keep the client's address towards the server; the way back must lead through this machine
    #[arg(long, requires = "intercept")]
    keep_client: bool,
    /// When to begin the second half
    #[arg(long, value_enum, default_value_t = Forwarding::Early)]
    forward: Forwarding,
    /// Early connections that wait for their client, at most
    #[arg(long, value_name = "N", default_value_t = 1024)]
    early_most: usize,
    /// How long an early connection waits for its client
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = time)]
    early_wait: Duration,
    /// How long a server may take to answer
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = time)]
    connect_timeout: Duration,
    /// How long a flow may say nothing; 0s: for ever
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = time)]
    idle_timeout: Duration,
    /// How long flows may go on after SIGTERM
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    drain: Duration,
    /// Flows at once, at most
    #[arg(long, value_name = "N", default_value_t = 9_000)]
    flows: usize,
    /// Bytes of each socket's send buffer; the kernel's choice if not given
    #[arg(long, value_name = "BYTES")]
    send_buffer: Option<usize>,
    /// Bytes of each socket's receive buffer; the kernel's choice if not given
    #[arg(long, value_name = "BYTES")]
    receive_buffer: Option<usize>,
    /// Where the journal of changes to this machine is kept
    #[arg(long, value_name = "DIR", env = "VIADUCT_RUN_DIR", default_value = "/run/viaduct")]
    run_dir: PathBuf,
}

/// When the second half of a flow begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Forwarding {
    /// When the client's SYN is seen; needs CAP_NET_RAW
    Early,
    /// When the client's handshake is done
    Late,
}

/// Runs until a signal ends it.
pub fn run(args: &ProxyArgs) -> Result<()> {
    let target = match args.to {
        Some(to) if args.listen.contains(&to) => bail!("--to {to} is this proxy itself"),
        Some(to) => Target::Fixed(to),
        None => Target::Meant { keep_client: args.keep_client },
    };
    let options = TcpOptions {
        transparent: target.is_transparent(),
        send_buffer: args.send_buffer,
        receive_buffer: args.receive_buffer,
    };
    let limits = Limits {
        flows: args.flows,
        early: (args.forward == Forwarding::Early).then_some((args.early_most, args.early_wait)),
        connect: args.connect_timeout,
        idle: Some(args.idle_timeout).filter(|time| !time.is_zero()),
        drain: args.drain,
    };
    let worker = Worker::new(&args.listen, target, options, limits)?;
    // Only now that somebody listens; dropped, and so put back, when the worker has ended.
    let _changes = intercept(args)?;
    info!(listen = ?args.listen, to = %target, forward = ?args.forward, "up");
    worker.run().context("the proxy stopped")
}

/// Has the kernel hand connections to the proxy.
fn intercept(args: &ProxyArgs) -> Result<Option<Changes>> {
    if args.intercept.is_empty() {
        return Ok(None);
    }
    let port = args.listen[0].port();
    let mut changes = Changes::open(&args.run_dir.join(format!("proxy-{port}.changes.json")))?;
    for warning in changes.warnings() {
        warn!("left by an earlier run: {warning}");
    }
    changes.intercept(Intercept {
        instance: format!("proxy_{port}"),
        to_port: port,
        destinations: args.intercept.iter().map(|net| (net.addr(), net.prefix_len())).collect(),
        ports: args.ports.clone(),
    })?;
    Ok(Some(changes))
}

fn time(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|_| "a time such as 30s or 2m is expected".to_owned())
}
