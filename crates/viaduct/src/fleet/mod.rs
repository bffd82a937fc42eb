//! `viaduct fleet`: keeps the members of racks in a gateway's config up to date.
//!
//! ```text
//!   etcd: PREFIX/SITE/MEMBER, each under a lease ◀── own entry ── this process, on each box
//!      │ each 2 s
//!      ▼
//!   roster ─┐
//!   base ───┴─▶ config, checked ─▶ file, replaced ─▶ SIGHUP ─▶ gateway
//! ```
//!
//! Fleet is a process of its own: the gateway never waits for etcd, and runs on if fleet has ended.
//! While etcd does not answer, the last file stays in use. A member whose lease has expired stays
//! in the file until etcd's answers have lacked it for a minute. So if etcd has lost its data,
//! nothing changes: the members register again within that minute.

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
    /// Config of the gateway without [[site.member]] and [[peer.member]], the same on all boxes of
    /// the site; read again on SIGHUP
    #[arg(long, value_name = "FILE")]
    base: PathBuf,
    /// Config file to write, with members; the key file's name is relative to its directory
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Key below which the members are registered, as SITE/MEMBER
    #[arg(long, value_name = "etcd://HOST:PORT/KEY", value_parser = parse_etcd)]
    etcd: Etcd,
    /// Name of this box among the members of its site
    #[arg(long, value_name = "NAME")]
    member: String,
    /// Address at which the gateway of this box is reached by those of other sites
    #[arg(long, value_name = "ADDRESS:PORT")]
    endpoint: SocketAddr,
    /// Weight of this box: its number of slices is in proportion to it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_weight())]
    weight: u8,
    /// Give the slices of this box to others
    #[arg(long)]
    drain: bool,
    /// Slices that this box owns while it is alive and not drained
    #[arg(long, value_name = "PREFIX", value_delimiter = ',')]
    slices: Vec<IpNet>,
}

/// Follows etcd until a signal ends it.
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
