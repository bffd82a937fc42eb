//! `viaduct steer`: redirects connections of this host's programs to a hop, with the original
//! destination in an option of their SYNs (Miniproxy, section 5). The kernel redirects while this
//! process runs; no data passes through the process.
//!
//! ```text
//!   curl ── connect(2) to the server ──▶ BPF: to the hop, option in the SYN ══▶ hop ══▶ server
//!        ◀─ getpeername(2): the server
//! ```

use std::io::Read as _;
use std::net::SocketAddrV4;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use ipnet::Ipv4Net;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;
use tracing::info;
use viaduct_proto::split::option::{DESTINATION, DESTINATION_PORT, Hop, LEN, SOURCE, SOURCE_PORT};
use viaduct_sys::bpf::{Steer, Steering, Template};

/// Options of `viaduct steer`.
#[derive(Clone, Debug, clap::Args)]
pub struct SteerArgs {
    /// The hop, a `viaduct proxy --expect option`
    #[arg(short, long, value_name = "ADDRESS:PORT")]
    next: SocketAddrV4,
    /// Servers whose IPv4 connections are steered
    #[arg(short, long, value_name = "PREFIX,...", value_delimiter = ',', required = true)]
    to: Vec<Ipv4Net>,
    /// Steer only connections to these ports
    #[arg(short, long, value_name = "PORT,...", value_delimiter = ',')]
    ports: Vec<u16>,
    /// Steer only connections of the programs in this cgroup (version 2) [default: all programs in
    /// this network namespace]
    #[arg(long, value_name = "DIR")]
    cgroup: Option<PathBuf>,
}

/// Steers connections until a signal arrives.
pub fn run(args: &SteerArgs) -> Result<()> {
    if args.next.ip().is_unspecified() || args.next.port() == 0 {
        bail!("next: {}: the address and port of a hop are expected", args.next);
    }
    // The signal handlers are registered before anything is steered.
    let (mut signal, sender) = UnixStream::pair()?;
    for number in [SIGINT, SIGTERM] {
        pipe::register(number, sender.try_clone()?)?;
    }
    let steering = Steering {
        hop: args.next,
        destinations: args.to.iter().map(|net| (net.addr().into(), net.prefix_len())).collect(),
        ports: args.ports.clone(),
        template: template(),
    };
    let _steer =
        Steer::attach(&steering, args.cgroup.as_deref()).context("cannot steer connections")?;
    info!(to = ?args.to, next = %args.next, "up");
    signal.read_exact(&mut [0])?;
    info!("stopping");
    Ok(())
}

/// TCP option with blank addresses and ports, which the BPF program fills in.
fn template() -> Template {
    let nowhere = SocketAddrV4::new([0; 4].into(), 0);
    let bytes: [u8; LEN] = Hop { source: nowhere, destination: nowhere }.emit();
    let [source, destination, source_port, destination_port] =
        [SOURCE, DESTINATION, SOURCE_PORT, DESTINATION_PORT].map(|at| at as i16);
    Template { bytes, source, destination, source_port, destination_port }
}
