//! `viaduct fleet`: keeps the members of racks in a gateway's config up to date.
//!
//! ```text
//!   etcd: PREFIX/SITE/MEMBER, each under a lease ◀── own entry ── this process, on each host
//!      │ every 2 s
//!      ▼
//!   roster ─┐
//!   base ───┴─▶ config, checked ─▶ file, replaced ─▶ SIGHUP ─▶ gateway
//! ```
//!
//! Fleet is a separate process, so that the gateway never waits for etcd, and continues if fleet
//! has ended. While etcd does not answer, the last file stays in use. A member whose lease has
//! expired stays in the file until etcd has answered without the member for a minute. So a loss of
//! etcd's data changes nothing: the members register again within that minute.

mod config_file;
mod roster;
mod service;

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Result;
use ipnet::IpNet;

use crate::etcd::Etcd;

/// Options of `viaduct fleet`.
#[derive(Clone, Debug, clap::Args)]
pub struct FleetArgs {
    /// Config of the gateway without [[site.member]] and [[peer.member]], the same on all hosts of
    /// the site's rack; read again on SIGHUP
    #[arg(long, value_name = "FILE")]
    base: PathBuf,
    /// Config file to write, with members; the path of the key file is relative to this file's
    /// directory
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Key in etcd below which the members are registered, as SITE/MEMBER
    #[arg(long, value_name = "etcd://HOST:PORT/KEY", value_parser = parse_etcd)]
    etcd: Etcd,
    /// Name of this host among the members of its site
    #[arg(long, value_name = "NAME")]
    member: String,
    /// Address at which gateways of other sites reach the gateway of this host
    #[arg(long, value_name = "ADDRESS:PORT")]
    endpoint: SocketAddr,
    /// Weight of this host; its number of slices is proportional to the weight
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_weight())]
    weight: u8,
    /// Give the slices of this host to other members
    #[arg(long)]
    drain: bool,
    /// Slices that this host owns while it is alive and not drained
    #[arg(long, value_name = "PREFIX", value_delimiter = ',')]
    slices: Vec<IpNet>,
}

/// Keeps the config up to date until a signal arrives.
pub fn run(args: &FleetArgs) -> Result<()> {
    service::run(args)
}

fn parse_weight() -> clap::builder::RangedI64ValueParser<u8> {
    clap::value_parser!(u8).range(1..=100)
}

fn parse_etcd(text: &str) -> Result<Etcd, String> {
    let rest = text.strip_prefix("etcd://").ok_or("etcd://HOST:PORT/KEY is expected")?;
    rest.parse()
}
