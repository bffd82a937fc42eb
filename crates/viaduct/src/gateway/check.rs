//! `viaduct gateway --check`: checks a config against this machine, and prints its meaning.

use std::path::Path;

use anyhow::{Context as _, Result};
use ipnet::IpNet;
use viaduct_proto::flow::Registry;
use viaduct_proto::repair::{Transport, TransportChoice};

use super::config::{Config, Peer};
use super::site::Site;
use super::{preflight, resolve, split, system};
use crate::stdout::{print, print_line};

/// Warnings about `config` on this machine. If the machine lacks anything that the config names,
/// that error is the only warning.
pub fn warnings(config: Config) -> Vec<String> {
    match Site::new(config) {
        Ok(site) => site.warnings(),
        Err(error) => vec![format!("{error:#}")],
    }
}

/// Checks a config against this machine, prints its meaning, and changes nothing.
pub fn check(path: &Path, registry: &Registry) -> Result<()> {
    let config = Config::load(path)?;
    if let Some(missing) = preflight::missing_prerequisite(&config) {
        split::settings(&config, registry).with_context(|| path.display().to_string())?;
        print_line!("site {}: public key {}", config.name, config.secret.public())?;
        print_line!("warning: {missing}; the gateway keeps trying")?;
        return print_line!("ok, with a warning");
    }
    let (site, flows) = resolve(config, path, registry)?;
    print_site(&site)?;
    for peer in &site.config.peers {
        print_peer(&site, peer)?;
    }
    print_line!("memory: {}", site.memory_bound())?;
    if let Some(flows) = flows {
        print(&format!("split mode, {flows}"))?;
    }
    let config = &site.config;
    for (what, listen) in [("metrics", config.metrics), ("cache", config.cache)] {
        print_line!("{what}: {}", listen.map_or("off".to_owned(), |at| at.to_string()))?;
    }
    let routes = system::plan(&site).with_context(|| path.display().to_string())?;
    let obstacles = [preflight::check_capabilities(), preflight::check_run_dir(config)];
    let obstacles = obstacles.into_iter().filter_map(Result::err).map(|e| format!("{e:#}"));
    let warnings =
        [site.warnings(), routes, preflight::ports_in_use(config), obstacles.collect()].concat();
    for warning in &warnings {
        print_line!("warning: {warning}")?;
    }
    match warnings.len() {
        0 => print_line!("ok"),
        1 => print_line!("ok, with a warning"),
        n => print_line!("ok, with {n} warnings"),
    }
}

/// Prints the meaning of `[site]`.
fn print_site(site: &Site) -> Result<()> {
    let config = &site.config;
    print_line!("site {}: public key {}", config.name, config.secret.public())?;
    let wans: Vec<_> = config.interfaces().collect();
    print_line!(
        "  hosts {}; wan {} (MTU {})",
        list(&config.prefixes),
        wans.join(", "),
        site.wan_mtu
    )?;
    let listens: Vec<_> = config.listens().map(|at| at.to_string()).collect();
    print_line!("  repairs arrive at {}", listens.join(", "))?;
    for class in &config.path_classes {
        print_line!("  packets of {:?} prefer {}", class.name, config.wans[class.wan].name)?;
    }
    if config.workers > 1 {
        print_line!(
            "  {} workers; {} lanes to each peer, unless the peer wants more",
            config.workers,
            config.lanes.get()
        )?;
    }
    if let Some(at) = config.tls_listen {
        print_line!("  tunnels over TLS arrive at TCP {at}")?;
    }
    Ok(())
}

/// Prints the meaning of a `[[peer]]`.
fn print_peer(site: &Site, peer: &Peer) -> Result<()> {
    let code = peer.coding.as_ref().map_or("no repairs".to_owned(), ToString::to_string);
    let room = match site.clamp(peer) {
        Some(longest) => format!("packets limited to {longest} bytes (route MTU, MSS)"),
        None => "no packet is altered".to_owned(),
    };
    let endpoint = match (&peer.endpoint, &peer.endpoint_name) {
        _ if peer.paths.is_some() => {
            let ends = peer.paths.iter().flat_map(|paths| paths.endpoints);
            let ends = ends.zip(&site.config.wans).map(|(at, wan)| format!("{at} by {}", wan.name));
            format!("at {}", ends.collect::<Vec<_>>().join(", "))
        }
        (Some(at), _) => format!("at {at}"),
        (None, Some((host, port))) => format!("at {host}:{port}"),
        (None, None) => "(no endpoint: the peer connects first)".to_owned(),
    };
    print_line!("peer {} {endpoint}: public key {}", peer.name, peer.key)?;
    print_line!("  hosts {}; {code}; {room}", list(&peer.prefixes))?;
    print_line!("  {}", transports(peer, site.config.wants_fake_tcp()))
}

/// Meaning of a peer's `transport`, given whether the gateway can use fake TCP.
fn transports(peer: &Peer, has_fake_tcp: bool) -> String {
    let datagrams = match peer.transport {
        TransportChoice::Auto if !has_fake_tcp => {
            "datagrams by UDP alone: fake TCP needs a single worker and a single WAN"
        }
        TransportChoice::Auto => "datagrams by UDP, or by fake TCP while UDP does not pass",
        TransportChoice::Only(Transport::Udp) => "datagrams by UDP",
        TransportChoice::Only(Transport::FakeTcp) => "datagrams by fake TCP",
        TransportChoice::None => "no datagrams, no repairs",
    };
    let tls = peer.tls_endpoint.map(|at| {
        let when = if peer.transport == TransportChoice::Auto { " if neither passes" } else { "" };
        format!("; split connections{when} by a tunnel over TLS to {at}")
    });
    format!("{datagrams}{}", tls.unwrap_or_default())
}

fn list(prefixes: &[IpNet]) -> String {
    prefixes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
