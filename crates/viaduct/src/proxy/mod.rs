//! `viaduct proxy`: one hop of a chain. TCP connections end here and go on from here, the second
//! half begun when the client's SYN is seen (Miniproxy, section 3).
//!
//! ```text
//!              ┌──────────── SYN tap ──▶ early connections ─┐ matched by their 4-tuple
//!   client ════╪═▶ listener ── accept ──▶ flow ◀────────────┘════▶ server, or the next hop
//!              └──                         └─ bytes by splice, through a pipe, never here
//! ```

mod arrivals;
mod asking;
mod flow;
mod flows;
mod leg;
mod pipes;
mod policy;
mod relay;
mod resolve;
mod target;
mod through;
mod worker;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use ipnet::IpNet;
use tracing::{info, warn};
use viaduct_proto::split::preface::{Languages, Secret};
use viaduct_proto::split::socks::Credentials;
use viaduct_sys::intercept::Intercept;
use viaduct_sys::journal::Changes;
use viaduct_sys::tcp::TcpOptions;

use policy::{Plan, Policies};
use target::{Target, Terms};
use worker::{Limits, Worker};

/// What `viaduct proxy` may be told.
#[derive(Clone, Debug, clap::Args)]
pub struct ProxyArgs {
    /// Where connections arrive
    #[arg(short, long, value_name = "ADDRESS:PORT", required = true)]
    listen: Vec<SocketAddr>,
    /// Where they go
    #[arg(short, long, value_name = "ADDRESS:PORT",
          required_unless_present_any = ["intercept", "expect"])]
    to: Option<SocketAddr>,
    /// They go where each client says, in one of these languages
    #[arg(long, value_enum, value_name = "LANGUAGE,...", value_delimiter = ',',
          conflicts_with_all = ["to", "intercept"], requires = "allow_from", requires = "allow_to")]
    expect: Vec<Language>,
    /// Clients that may say so
    #[arg(long, value_name = "PREFIX,...", value_delimiter = ',', requires = "expect")]
    allow_from: Vec<IpNet>,
    /// Servers that they may go to
    #[arg(long, value_name = "PREFIX,...", value_delimiter = ',', requires = "expect")]
    allow_to: Vec<IpNet>,
    /// A file of one line, NAME:PASSWORD, that SOCKS and CONNECT clients must know
    #[arg(long, value_name = "FILE", requires = "expect")]
    password_file: Option<PathBuf>,
    /// The next hop, another `viaduct proxy --expect proxy`; without it flows go straight on
    #[arg(short, long, value_name = "ADDRESS:PORT")]
    next: Option<SocketAddr>,
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

/// How a client says where it wants to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Language {
    /// PROXY protocol version 2: another hop, or HAProxy's send-proxy-v2
    Proxy,
    /// SOCKS5
    Socks,
    /// HTTP CONNECT
    Connect,
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
        None if !args.expect.is_empty() => Target::Asked(terms(args)?),
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
    let to = target.to_string();
    let otherwise = Plan { next: args.next, ..Plan::default() };
    let policies = Policies { list: Vec::new(), otherwise };
    let worker = Worker::new(&args.listen, target, policies, options, limits)?;
    // Only now that somebody listens; dropped, and so put back, when the worker has ended.
    let _changes = intercept(args)?;
    info!(listen = ?args.listen, to, forward = ?args.forward, "up");
    worker.run().context("the proxy stopped")
}

/// Who may say where to, how, and where.
fn terms(args: &ProxyArgs) -> Result<Terms> {
    let secret = match &args.password_file {
        None => Secret::default(),
        Some(file) => {
            let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
            let Some((name, password)) = text.trim_end().split_once(':') else {
                bail!("{}: one line, NAME:PASSWORD, is expected", file.display());
            };
            let (name, password) = (name.into(), password.into());
            Secret(Some(Credentials { name, password }))
        }
    };
    let speaks = |language| args.expect.contains(&language);
    Ok(Terms {
        languages: Languages {
            proxy: speaks(Language::Proxy),
            socks: speaks(Language::Socks),
            connect: speaks(Language::Connect),
        },
        secret,
        from: args.allow_from.clone(),
        to: args.allow_to.clone(),
    })
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
