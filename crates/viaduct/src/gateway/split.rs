//! Split mode (Maelstrom, 4.2): the gateway terminates the TCP connections between its site and a
//! peer's, acknowledges their data immediately, and forwards it over TCP connections between the
//! gateways, which FEC protects.
//!
//! ```text
//!   host A ══ TCP ══▶ gateway A ══ TCP of the gateways, protected ══▶ gateway B ══ TCP ══▶ host B
//!            each from A's address to B's: if a gateway ends, new connections bypass it
//! ```
//!
//! Each gateway runs an intercepting proxy for this, in a thread of its process.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use anyhow::{Context, Result, anyhow, bail};
use ipnet::IpNet;
use viaduct_proto::flow::Registry;
use viaduct_sys::nft::intercept::{Intercept, Selector};

use super::config::Config;
use super::preflight::pair;
use super::tls;
use crate::run_dir::RunDir;
use crate::settings::{ProxyArgs, Settings};

/// Address to which the kernel redirects connections, unless `[split]` sets another.
const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 7402);
/// Maximum number of bytes of a flow that a host has sent and the other site has not received yet.
const BUFFER: usize = 8 << 20;

/// Options that `[split]` cannot set: the rest of the config determines them, or a proxy between
/// sites does not have them.
const FOLLOWS: [&str; 9] = [
    "intercept",
    "far",
    "keep-client",
    "name",
    "run-dir",
    "to",
    "expect",
    "tunnel",
    "tunnel-listen",
];

/// Settings of the gateway's proxy; `None` without a peer in split mode. Errors: `[split]` or a
/// `[[policy]]` is invalid.
pub fn settings(config: &Config, registry: &Registry) -> Result<Option<Settings>> {
    let (own, peers) = prefixes(config);
    if peers.is_empty() {
        return Ok(None);
    }
    if let Some(key) = FOLLOWS.iter().find(|key| config.split.has(key)) {
        bail!("[split] {key}: it cannot be set for a proxy between sites; leave it out");
    }
    let args = options(config, &peers).map_err(|what| anyhow!("[split] {what}"))?;
    let mut settings = Settings::of(&args, &config.policies, &[], registry).context("[split]")?;
    if settings.holds || settings.on_demand || settings.engine.limits.idle_exit.is_some() {
        bail!(
            "[split] accept, on-demand, idle-exit: only `viaduct proxy` has them; leave them out"
        );
    }
    let (ours, theirs) = (pairs(own), pairs(&peers));
    let there = Selector { from: ours.clone(), to: theirs.clone() };
    let back = Selector { from: theirs, to: ours };
    if let Some(intercept) = &mut settings.intercept {
        *intercept = Intercept { ways: vec![there, back], ..intercept.clone() };
    }
    if let Some((tunnels, detours)) = tls::tunnels(config, &settings) {
        if settings.engine.workers > 1 {
            bail!("[split] workers: with tunnels over TLS only 1 is possible");
        }
        settings.engine.tunnels = Some(tunnels);
        settings.engine.policies.detours = detours;
    }
    Ok(Some(settings.fitted()))
}

/// Prefixes between which connections are split: the site's, and those of peers in split mode.
pub fn prefixes(config: &Config) -> (&[IpNet], Vec<IpNet>) {
    let peers = config.peers.iter().filter(|peer| peer.split);
    (&config.prefixes, peers.flat_map(|peer| peer.prefixes.iter().copied()).collect())
}

/// Options of `[split]`, and those that follow from the rest of the config.
fn options(config: &Config, peers: &[IpNet]) -> Result<ProxyArgs, String> {
    let args = config.split.options()?;
    Ok(ProxyArgs {
        listen: if args.listen.is_empty() { vec![LISTEN] } else { args.listen },
        far_buffer: args.far_buffer.or(Some(BUFFER)),
        intercept: peers.to_vec(),
        far: peers.to_vec(),
        keep_client: true,
        name: Some(format!("{}-split", plain(&config.name))),
        run_dir: RunDir::from(&*config.run_dir),
        ..args
    })
}

fn pairs(nets: &[IpNet]) -> Vec<(IpAddr, u8)> {
    nets.iter().map(pair).collect()
}

fn plain(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).take(24).collect()
}
