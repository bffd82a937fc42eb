//! Options of a proxy: the same names on the command line of `viaduct proxy` and in the tables of
//! config files.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use ipnet::IpNet;
use serde::Deserialize;
use viaduct_proto::flow::HandlerSpec;
use viaduct_proto::keys::PublicKey;

use crate::access_log::AccessLogArgs;
use crate::dead_after::DeadAfter;
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

/// Options of `viaduct proxy`, also those of a file. `checks` refuses combinations.
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
    /// Clients name their destination in one of these protocols
    #[arg(long, value_enum, value_name = "LANGUAGE,...", value_delimiter = ',')]
    #[serde(deserialize_with = "list::<ClientProtocol, _>")]
    pub expect: Vec<ClientProtocol>,
    /// Clients that may name a destination
    #[arg(long, value_name = "PREFIX,...", value_delimiter = ',', value_parser = prefix)]
    #[serde(deserialize_with = "list::<Prefix, _>")]
    pub allow_from: Vec<IpNet>,
    /// Destinations permitted to them, and to streams that come by tunnels
    #[arg(long, value_name = "PREFIX,...", value_delimiter = ',', value_parser = prefix)]
    #[serde(deserialize_with = "list::<Prefix, _>")]
    pub allow_to: Vec<IpNet>,
    /// A file of one line, NAME:PASSWORD, that SOCKS and CONNECT clients must know
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// The next hop, another `viaduct proxy --expect proxy`; without it flows go straight on
    #[arg(short, long, value_name = "ADDRESS:PORT", value_parser = destination)]
    #[serde(deserialize_with = "optional::<Destination, _>")]
    pub next: Option<SocketAddr>,
    /// Form in which hops are told a flow's addresses [default: the SYN option if it can be sent,
    /// else proxy-tfo]
    #[arg(long, value_enum)]
    #[serde(deserialize_with = "optional::<HopSignalling, _>")]
    pub tell: Option<HopSignalling>,
    /// A handler that flows pass, such as count or shape:rate=2M; may be repeated, the client's
    /// first
    #[arg(long, value_name = "HANDLER")]
    #[serde(deserialize_with = "list::<Handler, _>")]
    pub handler: Vec<HandlerSpec>,
    /// Rate limit of each flow in each direction, kept by the kernel; bits a second
    #[arg(long, value_name = "RATE", value_parser = rate)]
    #[serde(deserialize_with = "optional::<Rate, _>")]
    pub rate: Option<u64>,
    #[command(flatten)]
    #[serde(skip)]
    pub tunnel: TunnelArgs,
    /// Flows go on to their servers by Trickles, in these packets; by TCP where a server knows
    /// nothing else
    #[arg(long, value_enum, value_name = "PACKETS")]
    #[serde(deserialize_with = "optional::<PacketFormats, _>")]
    pub trickles: Option<PacketFormats>,
    /// Public key of those servers' --identity: flows by Trickles are encrypted, and refused
    /// rather than sent in clear, or by TCP
    #[arg(long, value_name = "KEY")]
    #[serde(deserialize_with = "optional::<Key, _>")]
    pub trickles_key: Option<PublicKey>,
    /// Split the connections that pass this machine towards these addresses (tproxy, by nftables);
    /// put back at the end
    #[arg(long, value_name = "PREFIX,...", value_delimiter = ',', value_parser = prefix)]
    #[serde(deserialize_with = "list::<Prefix, _>")]
    pub intercept: Vec<IpNet>,
    /// Of those connections, only those to these ports, or ranges such as 8000-8080
    #[arg(long, value_name = "PORT,...", value_delimiter = ',', value_parser = ports)]
    #[serde(deserialize_with = "list::<Ports, _>")]
    pub ports: Vec<RangeInclusive<u16>>,
    /// Keep the client's address towards the server; the way back must lead through this machine
    #[arg(long)]
    pub keep_client: bool,
    /// Begin to connect to the server: early (on the SYN) or late (after the client's
    /// handshake) [default: early; late without CAP_NET_RAW]
    #[arg(long, value_enum)]
    #[serde(deserialize_with = "optional::<Forwarding, _>")]
    pub forward: Option<Forwarding>,
    /// Time at which clients are accepted
    #[arg(long, value_enum, default_value_t = Accept::Early)]
    #[serde(deserialize_with = "one::<Accept, _>")]
    pub accept: Accept,
    /// Early connections that wait for their client, at most, and at most half of --flows [default:
    /// 1024, or half of --flows where that is less]
    #[arg(long, value_name = "N")]
    pub max_early: Option<usize>,
    /// Time for which an early connection waits for its client
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = wait)]
    #[serde(deserialize_with = "one::<Wait, _>")]
    pub early_wait: Duration,
    /// Limit of the time to connect to a server
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
    /// Only listen; start the proxy itself when a SYN comes, and again after it has ended
    #[arg(long)]
    pub on_demand: bool,
    /// End after so long without a flow, to be started again by systemd or --on-demand (where
    /// it is 60s if not given); 0s: never
    #[arg(long, value_name = "TIME", value_parser = time)]
    #[serde(deserialize_with = "optional::<Time, _>")]
    pub idle_exit: Option<Duration>,
    /// Limit of the time that open flows get after SIGTERM
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    #[serde(deserialize_with = "one::<Time, _>")]
    pub drain: Duration,
    /// Loops that share the flows, each in a thread; 0: one for each core
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = workers)]
    #[serde(deserialize_with = "one::<Workers, _>")]
    pub workers: u16,
    /// Flows at once, at most
    #[arg(long, value_name = "N", default_value_t = 9_000, value_parser = count)]
    #[serde(deserialize_with = "one::<Count, _>")]
    pub flows: usize,
    /// Addresses across a long link: connections to and from them are set up for it; all are,
    /// if none is named
    #[arg(long, value_name = "PREFIX,...", value_delimiter = ',', value_parser = prefix)]
    #[serde(deserialize_with = "list::<Prefix, _>")]
    pub far: Vec<IpNet>,
    /// Of those connections, the congestion control, by the kernel's name
    #[arg(long, value_name = "NAME")]
    pub congestion_control: Option<String>,
    /// Of those connections, the bytes that may wait to be sent or acknowledged: data that the
    /// sending program has written, and the other end does not have yet
    #[arg(long, value_name = "BYTES", value_parser = buffer)]
    #[serde(deserialize_with = "optional::<Buffer, _>")]
    pub far_buffer: Option<usize>,
    /// Bytes of each socket's send buffer; twice the receive buffer's, or the kernel's choice,
    /// if not given
    #[arg(long, value_name = "BYTES", value_parser = buffer)]
    #[serde(deserialize_with = "optional::<Buffer, _>")]
    pub send_buffer: Option<usize>,
    /// Bytes of each socket's receive buffer; the kernel's choice if not given
    #[arg(long, value_name = "BYTES", value_parser = buffer)]
    #[serde(deserialize_with = "optional::<Buffer, _>")]
    pub receive_buffer: Option<usize>,
    /// Time for which a loop polls for events before it sleeps, where that has paid of late;
    /// 0s: not at all
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = spin)]
    #[serde(deserialize_with = "one::<Spin, _>")]
    pub spin: Duration,
    /// Bytes that each end of a chain of handlers holds before it stops its source
    #[arg(long, value_name = "BYTES", default_value = "256K", value_parser = buffer)]
    #[serde(deserialize_with = "one::<Buffer, _>")]
    pub chain_buffer: usize,
    /// Bytes that flows by Trickles have asked their servers for and not passed on yet, at
    /// most, all together, but for each of the ways that policies name by itself; each flow may
    /// have 64 KiB all the same
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
