//! Options of `viaduct proxy`: the same names on the command line and in a file.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::parser::ValueSource;
use clap::{ArgMatches, Args as _, Command, ValueEnum};
use ipnet::IpNet;
use viaduct_proto::flow::HandlerSpec;
use viaduct_proto::keys::PublicKey;

use super::doors::Door;
use super::tell::Tell;
use super::trickles::Ways;
use super::tunnels::settings::TunnelArgs;
use super::values::{buffer, count, goal, place, ports, prefix, rate, spin, time, wait};
use crate::access_log::AccessLogArgs;
use crate::dead_after::DeadAfter;
use crate::run_dir::RunDir;

/// Options in a file, or on the command line.
#[derive(Clone, Debug, clap::Args)]
pub struct ProxyOptions {
    /// A file with a table [proxy] of these options and tables [[policy]]; SIGHUP reads it again
    #[arg(short, long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Check the configuration, print what it means, and change nothing
    #[arg(long)]
    pub check: bool,
    /// Descriptors that the parent of --on-demand leaves open
    #[arg(long, value_delimiter = ',', hide = true)]
    pub(super) doors: Vec<Door>,
    /// End once the start has succeeded: a trial run by the parent of --on-demand
    #[arg(long, hide = true)]
    pub(super) rehearse: bool,
    /// The descriptor of the config that the parent of --on-demand has checked
    #[arg(long, hide = true)]
    pub(super) told: Option<RawFd>,
    #[command(flatten)]
    pub(super) args: ProxyArgs,
}

/// Refuses options beside `--config`: the file has all of them, so they would have no effect.
///
/// # Errors
/// A line that names the first such option.
pub fn check_beside_config(said: &ArgMatches) -> Result<()> {
    let words = |id: &str| said.value_source(id) == Some(ValueSource::CommandLine);
    if !words("config") {
        return Ok(());
    }
    let all = ProxyArgs::augment_args(Command::new("proxy"));
    match all.get_arguments().find(|option| words(option.get_id().as_str())) {
        Some(option) => {
            let name = option.get_long().unwrap_or_default();
            bail!("{name}: --config has all options in its table [proxy]; say it there")
        }
        None => Ok(()),
    }
}

/// Default limit, in bytes, of data that flows by Trickles have requested and not yet passed
/// on.
pub(super) const TRICKLES_BUFFER: usize = 256 << 20;

/// Options of `viaduct proxy`, also those of a file.
#[derive(Clone, Debug, clap::Args)]
pub struct ProxyArgs {
    /// Listen address; may be repeated
    #[arg(short, long, value_name = "ADDRESS:PORT", value_parser = place)]
    pub(super) listen: Vec<SocketAddr>,
    /// Destination of all connections
    #[arg(short, long, value_name = "ADDRESS:PORT", value_parser = goal)]
    pub(super) to: Option<SocketAddr>,
    /// Clients name their destination in one of these protocols
    #[arg(long, value_enum, value_name = "LANGUAGE,...", value_delimiter = ',',
          conflicts_with_all = ["to", "intercept"], requires = "allow_from", requires = "allow_to")]
    pub(super) expect: Vec<Language>,
    /// Clients that may name a destination
    #[arg(long, value_name = "PREFIX,...", value_delimiter = ',', value_parser = prefix)]
    pub(super) allow_from: Vec<IpNet>,
    /// Destinations permitted to them, and to sessions that come by tunnels
    #[arg(long, value_name = "PREFIX,...", value_delimiter = ',', value_parser = prefix)]
    pub(super) allow_to: Vec<IpNet>,
    /// A file of one line, NAME:PASSWORD, that SOCKS and CONNECT clients must know
    #[arg(long, value_name = "FILE")]
    pub(super) password_file: Option<PathBuf>,
    /// The next hop, another `viaduct proxy --expect proxy`; without it flows go straight on
    #[arg(short, long, value_name = "ADDRESS:PORT", value_parser = goal)]
    pub(super) next: Option<SocketAddr>,
    /// Form in which hops are told a flow's addresses [default: the SYN option if it can be sent,
    /// else proxy-tfo]
    #[arg(long, value_enum)]
    pub(super) tell: Option<Tell>,
    /// A handler that flows pass, such as count or shape:rate=2M; may be repeated, the client's
    /// first
    #[arg(long, value_name = "HANDLER")]
    pub(super) handler: Vec<HandlerSpec>,
    /// Rate limit of each flow in each direction, kept by the kernel; bits a second
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub(super) rate: Option<u64>,
    #[command(flatten)]
    pub(super) tunnel: TunnelArgs,
    /// Flows go on to their servers by Trickles, in these packets; by TCP where a server knows
    /// nothing else
    #[arg(long, value_enum, value_name = "PACKETS", conflicts_with_all = ["next", "tunnel"])]
    pub(super) trickles: Option<Ways>,
    /// Public key of those servers' --identity: flows by Trickles are encrypted, and refused
    /// rather than sent in clear, or by TCP
    #[arg(long, value_name = "KEY", requires = "trickles")]
    pub(super) trickles_key: Option<PublicKey>,
    /// Split the connections that pass this machine towards these addresses (tproxy, by nftables);
    /// put back at the end
    #[arg(
        long,
        value_name = "PREFIX,...",
        value_delimiter = ',',
        conflicts_with = "to",
        value_parser = prefix
    )]
    pub(super) intercept: Vec<IpNet>,
    /// Of those connections, only those to these ports, or ranges such as 8000-8080
    #[arg(long, value_name = "PORT,...", value_delimiter = ',', value_parser = ports)]
    pub(super) ports: Vec<RangeInclusive<u16>>,
    /// Keep the client's address towards the server; the way back must lead through this machine
    #[arg(long)]
    pub(super) keep_client: bool,
    /// Begin to connect to the server: early (on the SYN) or late (after the client's
    /// handshake) [default: early; late without CAP_NET_RAW]
    #[arg(long, value_enum)]
    pub(super) forward: Option<Forwarding>,
    /// Time at which clients are accepted
    #[arg(long, value_enum, default_value_t = Accept::Early)]
    pub(super) accept: Accept,
    /// Early connections that wait for their client, at most, and at most half of --flows [default:
    /// 1024, or half of --flows where that is less]
    #[arg(long, value_name = "N")]
    pub(super) max_early: Option<usize>,
    /// Time for which an early connection waits for its client
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = wait)]
    pub(super) early_wait: Duration,
    /// Limit of the time to connect to a server
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = wait)]
    pub(super) connect_timeout: Duration,
    /// Idle time after which a flow is closed; 0s: never
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = time)]
    pub(super) idle_timeout: Duration,
    /// Idle time before keepalive probes, at most half of --dead-after; 0s: never
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = time)]
    pub(super) keep_alive: Duration,
    #[command(flatten)]
    pub(super) dead_after: DeadAfter,
    /// Only listen; start the proxy itself when a SYN comes, and again after it has ended
    #[arg(long)]
    pub(super) on_demand: bool,
    /// End after so long without a flow, to be started again by systemd or --on-demand (where
    /// it is 60s if not given); 0s: never
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(super) idle_exit: Option<Duration>,
    /// Limit of the time that open flows get after SIGTERM
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    pub(super) drain: Duration,
    /// Loops that share the flows, each in a thread; 0: one for each core
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(0..=64)
    )]
    pub(super) workers: u16,
    /// Flows at once, at most
    #[arg(long, value_name = "N", default_value_t = 9_000, value_parser = count)]
    pub(super) flows: usize,
    /// Addresses across a long link: connections to and from them are set up for it; all are,
    /// if none is named
    #[arg(long, value_name = "PREFIX,...", value_delimiter = ',', value_parser = prefix)]
    pub(super) far: Vec<IpNet>,
    /// Of those connections, the congestion control, by the kernel's name
    #[arg(long, value_name = "NAME")]
    pub(super) congestion_control: Option<String>,
    /// Of those connections, the bytes that may wait to be sent or acknowledged: data that the
    /// sending program has written, and the other end does not have yet
    #[arg(long, value_name = "BYTES", value_parser = buffer)]
    pub(super) far_buffer: Option<usize>,
    /// Bytes of each socket's send buffer; twice the receive buffer's, or the kernel's choice,
    /// if not given
    #[arg(long, value_name = "BYTES", value_parser = buffer)]
    pub(super) send_buffer: Option<usize>,
    /// Bytes of each socket's receive buffer; the kernel's choice if not given
    #[arg(long, value_name = "BYTES", value_parser = buffer)]
    pub(super) receive_buffer: Option<usize>,
    /// Time for which a loop polls for events before it sleeps, where that has paid of late;
    /// 0s: not at all
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = spin)]
    pub(super) spin: Duration,
    /// Bytes that each end of a chain of handlers holds before it stops its source
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 10, value_parser = buffer)]
    pub(super) chain_buffer: usize,
    /// Bytes that flows by Trickles have asked their servers for and not passed on yet, at
    /// most, all together, but for each of the ways that policies name by itself; each flow may
    /// have 64 KiB all the same
    #[arg(long, value_name = "BYTES", default_value_t = TRICKLES_BUFFER, value_parser = buffer)]
    pub(super) trickles_buffer: usize,
    /// Listen address of the Prometheus metrics
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = place)]
    pub(super) metrics: Option<SocketAddr>,
    #[command(flatten)]
    pub(super) access_log: AccessLogArgs,
    /// Name of the status socket; proxy-PORT if not given
    #[arg(long, value_name = "NAME")]
    pub(super) name: Option<String>,
    #[command(flatten)]
    pub(super) run_dir: RunDir,
}

/// Protocol by which a client names its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Language {
    /// A TCP option in the SYN: another hop, or `viaduct steer`
    Option,
    /// The same, or PROXY protocol version 2: another hop, or HAProxy's send-proxy-v2
    Proxy,
    /// SOCKS5
    Socks,
    /// HTTP CONNECT
    Connect,
}

/// Moment at which the second half of a flow begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Forwarding {
    /// On the client's SYN; needs CAP_NET_RAW
    Early,
    /// After the client's handshake
    Late,
}

/// Moment at which a client's connection is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Accept {
    /// At once; if the server then refuses, the client gets a reset
    Early,
    /// After the server has answered; if it refuses, the client gets the same refusal
    AfterConnect,
}
