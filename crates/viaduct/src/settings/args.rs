//! Options of a proxy: the same names on the command line of `viaduct proxy` and in the tables of
//! config files.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr as _;
use std::time::Duration;

use clap::ValueEnum;
use ipnet::IpNet;
use serde::Deserialize;
use viaduct_proto::flow::HandlerSpec;
use viaduct_proto::keys::PublicKey;

use super::next::{Check, Next, NextCheck, NextFor, NextHop};
use crate::access_log::AccessLogArgs;
use crate::dead_after::DeadAfter;
use crate::engine::next_hops::Fallback;
use crate::engine::outbound::HopSignalling;
use crate::engine::trickles::PacketFormats;
use crate::run_dir::RunDir;
use crate::tunnel::settings::TunnelArgs;
use crate::value_parser::table::{
    Address, Buffer, Count, Destination, Handler, Key, Ports, Prefix, Rate, Spin, Time, Wait,
    Workers, defaults, list, one, optional,
};
use crate::value_parser::{
    buffer, count, destination, ports, prefix, rate, socket_addr, spin, time, wait, workers,
};

/// Options of `viaduct proxy`, on the command line and in a file. `checks` rejects invalid
/// combinations.
#[derive(Clone, Debug, clap::Args, Deserialize)]
#[serde(default = "defaults", deny_unknown_fields, rename_all = "kebab-case")]
pub struct ProxyArgs {
    /// Listen address; may be repeated
    #[arg(short, long, value_name = "ADDRESS:PORT", value_parser = socket_addr)]
    #[serde(deserialize_with = "list::<Address, _>")]
    pub listen: Vec<SocketAddr>,
    /// Destination of all connections
    #[arg(short, long, value_name = "ADDRESS:PORT", value_parser = destination)]
    #[serde(deserialize_with = "optional::<Destination, _>")]
    pub to: Option<SocketAddr>,
    /// Protocols in which clients name their destination
    #[arg(long, value_enum, value_name = "LANGUAGE,...", value_delimiter = ',')]
    #[serde(deserialize_with = "list::<ClientProtocol, _>")]
    pub expect: Vec<ClientProtocol>,
    /// Clients that may name a destination
    #[arg(long, value_name = "PREFIX,...", value_delimiter = ',', value_parser = prefix)]
    #[serde(deserialize_with = "list::<Prefix, _>")]
    pub allow_from: Vec<IpNet>,
    /// Destinations that clients, and flows that arrive through tunnels, may name
    #[arg(long, value_name = "PREFIX,...", value_delimiter = ',', value_parser = prefix)]
    #[serde(deserialize_with = "list::<Prefix, _>")]
    pub allow_to: Vec<IpNet>,
    /// File of one line, NAME:PASSWORD, with which SOCKS and CONNECT clients must authenticate
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// Next hop, another `viaduct proxy --expect proxy`; if not given, flows go directly to
    /// servers. May be repeated: flows take the first hop that is up. With auto, measurements
    /// choose none, one or two hops of an overlay for each network of servers
    #[arg(short, long, value_name = "ADDRESS:PORT|auto", value_parser = NextHop::from_str)]
    #[serde(deserialize_with = "list::<Next, _>")]
    pub next: Vec<NextHop>,
    /// Status socket of the overlay node on this host, for --next auto
    #[arg(long, value_name = "PATH")]
    pub next_overlay: Option<PathBuf>,
    /// Criterion of --next auto [default: first-byte]
    #[arg(long, value_enum)]
    #[serde(deserialize_with = "optional::<NextFor, _>")]
    pub next_for: Option<NextFor>,
    /// Check of the next hops: none, or interval=TIME,timeout=TIME,rise=N,fall=N,http=PATH [default
    /// for several hops: interval=500ms,timeout=450ms,rise=2,fall=3; for a single one: none]
    #[arg(long, value_name = "CHECK", value_parser = NextCheck::from_str)]
    #[serde(deserialize_with = "optional::<Check, _>")]
    pub next_check: Option<NextCheck>,
    /// Treatment of flows while no next hop is up [default for several hops: direct]
    #[arg(long, value_enum)]
    #[serde(deserialize_with = "optional::<Fallback, _>")]
    pub next_fallback: Option<Fallback>,
    /// Form in which the next hop gets a flow's addresses [default: the SYN option if it can be
    /// sent, otherwise proxy-tfo]
    #[arg(long, value_enum)]
    #[serde(deserialize_with = "optional::<HopSignalling, _>")]
    pub tell: Option<HopSignalling>,
    /// Handler that flows pass, such as count or shape:rate=2M; may be repeated, in order from the
    /// client
    #[arg(long, value_name = "HANDLER")]
    #[serde(deserialize_with = "list::<Handler, _>")]
    pub handler: Vec<HandlerSpec>,
    /// Rate limit of each flow in each direction, by the kernel's pacing; bits a second
    #[arg(long, value_name = "RATE", value_parser = rate)]
    #[serde(deserialize_with = "optional::<Rate, _>")]
    pub rate: Option<u64>,
    #[command(flatten)]
    #[serde(skip)]
    pub tunnel: TunnelArgs,
    /// Use Trickles to the servers, in packets of this form; plain TCP if a server does not
    /// support it
    #[arg(long, value_enum, value_name = "PACKETS")]
    #[serde(deserialize_with = "optional::<PacketFormats, _>")]
    pub trickles: Option<PacketFormats>,
    /// Public key of the --identity of servers reached by Trickles: flows to them are encrypted; a
    /// flow that cannot be encrypted is refused
    #[arg(long, value_name = "KEY")]
    #[serde(deserialize_with = "optional::<Key, _>")]
    pub trickles_key: Option<PublicKey>,
    /// Split the connections that this machine forwards to these addresses; uses tproxy rules of
    /// nftables, removed at exit
    #[arg(long, value_name = "PREFIX,...", value_delimiter = ',', value_parser = prefix)]
    #[serde(deserialize_with = "list::<Prefix, _>")]
    pub intercept: Vec<IpNet>,
    /// Intercept only connections to these ports, or ranges such as 8000-8080
    #[arg(long, value_name = "PORT,...", value_delimiter = ',', value_parser = ports)]
    #[serde(deserialize_with = "list::<Ports, _>")]
    pub ports: Vec<RangeInclusive<u16>>,
    /// Connect to the server from the client's address; the return path must lead through this
    /// machine
    #[arg(long)]
    pub keep_client: bool,
    /// Time at which the connection to the server is begun [default: early; late without
    /// CAP_NET_RAW]
    #[arg(long, value_enum)]
    #[serde(deserialize_with = "optional::<Forwarding, _>")]
    pub forward: Option<Forwarding>,
    /// Time at which clients are accepted
    #[arg(long, value_enum, default_value_t = Accept::Early)]
    #[serde(deserialize_with = "one::<Accept, _>")]
    pub accept: Accept,
    /// Maximum number of early connections that wait for their client, up to half of --flows
    /// [default: 1024, or half of --flows if that is less]
    #[arg(long, value_name = "N")]
    pub max_early: Option<usize>,
    /// Time for which an early connection waits for its client
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = wait)]
    #[serde(deserialize_with = "one::<Wait, _>")]
    pub early_wait: Duration,
    /// Maximum time to connect to a server
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = wait)]
    #[serde(deserialize_with = "one::<Wait, _>")]
    pub connect_timeout: Duration,
    /// Idle time after which a flow is closed; 0s: never
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = time)]
    #[serde(deserialize_with = "one::<Time, _>")]
    pub idle_timeout: Duration,
    /// Idle time before keepalive probes, at most half of --dead-after; 0s: never
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = time)]
    #[serde(deserialize_with = "one::<Time, _>")]
    pub keep_alive: Duration,
    #[command(flatten)]
    #[serde(skip)]
    pub dead_after: DeadAfter,
    /// Only listen, and start the proxy process when a SYN arrives and none is running
    #[arg(long)]
    pub on_demand: bool,
    /// Exit after this time without a flow, to be started again by systemd or --on-demand; 0s:
    /// never [default: never; 60s with --on-demand]
    #[arg(long, value_name = "TIME", value_parser = time)]
    #[serde(deserialize_with = "optional::<Time, _>")]
    pub idle_exit: Option<Duration>,
    /// Maximum time that open flows have to finish after SIGTERM
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    #[serde(deserialize_with = "one::<Time, _>")]
    pub drain: Duration,
    /// Number of event loops that share the flows, each in a thread; 0: one for each core
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = workers)]
    #[serde(deserialize_with = "one::<Workers, _>")]
    pub workers: u16,
    /// Maximum number of concurrent flows
    #[arg(long, value_name = "N", default_value_t = 9_000, value_parser = count)]
    #[serde(deserialize_with = "one::<Count, _>")]
    pub flows: usize,
    /// Addresses across a long link: --congestion-control and --far-buffer apply to connections to
    /// and from them [default: all addresses]
    #[arg(long, value_name = "PREFIX,...", value_delimiter = ',', value_parser = prefix)]
    #[serde(deserialize_with = "list::<Prefix, _>")]
    pub far: Vec<IpNet>,
    /// Congestion control of connections across the long link (--far), by the kernel's name
    #[arg(long, value_name = "NAME")]
    pub congestion_control: Option<String>,
    /// Bytes of each connection across the long link (--far) that may be unsent or unacknowledged
    #[arg(long, value_name = "BYTES", value_parser = buffer)]
    #[serde(deserialize_with = "optional::<Buffer, _>")]
    pub far_buffer: Option<usize>,
    /// Size of each socket's send buffer [default: twice --receive-buffer if that is given,
    /// otherwise the kernel's choice]
    #[arg(long, value_name = "BYTES", value_parser = buffer)]
    #[serde(deserialize_with = "optional::<Buffer, _>")]
    pub send_buffer: Option<usize>,
    /// Size of each socket's receive buffer [default: the kernel's choice]
    #[arg(long, value_name = "BYTES", value_parser = buffer)]
    #[serde(deserialize_with = "optional::<Buffer, _>")]
    pub receive_buffer: Option<usize>,
    /// Time for which a loop polls for events before it sleeps, if polling has paid off recently;
    /// 0s: never
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = spin)]
    #[serde(deserialize_with = "one::<Spin, _>")]
    pub spin: Duration,
    /// Bytes that each end of a chain of handlers buffers before it stops reading
    #[arg(long, value_name = "BYTES", default_value = "256K", value_parser = buffer)]
    #[serde(deserialize_with = "one::<Buffer, _>")]
    pub chain_buffer: usize,
    /// Maximum number of bytes that all flows by Trickles together have requested from servers and
    /// not passed on yet; each flow may have 64 KiB regardless, and each packet format that
    /// policies name has a limit of its own
    #[arg(long, value_name = "BYTES", default_value = "256M", value_parser = buffer)]
    #[serde(deserialize_with = "one::<Buffer, _>")]
    pub trickles_buffer: usize,
    /// Listen address of the Prometheus metrics
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = socket_addr)]
    #[serde(deserialize_with = "optional::<Address, _>")]
    pub metrics: Option<SocketAddr>,
    #[command(flatten)]
    #[serde(skip)]
    pub access_log: AccessLogArgs,
    /// Name of the status socket; proxy-PORT if not given
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    #[command(flatten)]
    #[serde(skip)]
    pub run_dir: RunDir,
}

/// Protocol by which a client names its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ClientProtocol {
    /// A TCP option in the SYN, as from another hop or `viaduct steer`
    Option,
    /// The TCP option, or PROXY protocol version 2, as from another hop or HAProxy's send-proxy-v2
    Proxy,
    /// SOCKS5
    Socks,
    /// HTTP CONNECT
    Connect,
}

/// Time at which the connection to the server is begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Forwarding {
    /// On the client's SYN; needs CAP_NET_RAW
    Early,
    /// After the client's handshake
    Late,
}

/// Time at which a client's connection is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Accept {
    /// Immediately; if the server then refuses, the client gets a reset
    Early,
    /// After the server has answered; if it refuses, the client gets the same refusal
    AfterConnect,
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command};

    use super::*;
    use crate::engine::config::TRICKLES_BUFFER;

    #[test]
    fn sizes_are_shown_in_their_units() {
        assert_eq!(defaults::<ProxyArgs>().trickles_buffer, TRICKLES_BUFFER);
        let mut command = ProxyArgs::augment_args(Command::new("proxy"));
        let help = command.render_long_help().to_string();
        for default in ["[default: 256K]", "[default: 256M]", "[default: 64M]"] {
            assert!(help.contains(default), "{default} is not in {help}");
        }
    }
}
