//! Preflight: properties and permissions of this machine, checked before anything is changed.

use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};

use anyhow::{Context, Result, bail, ensure};
use ipnet::IpNet;
use serde_json::Value;
use viaduct_sys::process::tool;
use viaduct_sys::route::interface::{Interface, is_vlan_of};
use viaduct_sys::route::mtu::{RouteError, RouteMtu};

use super::config::Config;
use crate::capabilities;
use crate::run_dir::running;
use crate::status_socket::is_served;

/// Maximum number of prefixes whose routes are checked for a warning: each check takes some
/// milliseconds.
const MAX_CHECKED_ROUTES: usize = 16;

/// MTU of the interface towards the peers, in bytes; the lower MTU, if there are two WANs.
pub fn wan_mtu(config: &Config) -> Result<usize> {
    let mtus = config.interfaces().map(mtu_of).collect::<Result<Vec<_>>>()?;
    Ok(mtus.into_iter().min().unwrap_or_default())
}

fn mtu_of(name: &str) -> Result<usize> {
    let wan = Interface::new(name).context("[site] wan")?;
    let Ok(mtu) = wan.mtu() else {
        bail!("[site] wan: no interface {name:?} here; there are {}", interfaces());
    };
    ensure!(
        !wan.is_loopback()?,
        "[site] wan: {name:?} leads back to this machine; the interface towards the peers is \
         expected",
    );
    Ok(usize::try_from(mtu)?)
}

/// Missing prerequisite that may still appear: an interface, or an address to listen on. `None` if
/// nothing is missing.
pub fn missing_prerequisite(config: &Config) -> Option<String> {
    let is_missing = |name: &&str| Interface::new(name).is_ok_and(|wan| wan.mtu().is_err());
    if let Some(name) = config.interfaces().find(is_missing) {
        let there = interfaces();
        return Some(format!("[site] wan: no interface {name:?} here; there are {there}"));
    }
    for (key, at) in listeners(config) {
        let bound = UdpSocket::bind(SocketAddr::new(at.ip(), 0));
        if bound.is_err_and(|error| error.kind() == ErrorKind::AddrNotAvailable) {
            return Some(format!("{key}: {at} is not one of this machine's addresses"));
        }
    }
    None
}

/// Addresses that the config listens on, with their keys.
fn listeners(config: &Config) -> impl Iterator<Item = (&'static str, SocketAddr)> {
    let all = [
        ("[site] tls_listen", config.tls_listen),
        ("[metrics] listen", config.metrics),
        ("[cache] listen", config.cache),
    ];
    let repairs = config.listens().map(|at| ("[site] listen", at));
    repairs.chain(all.into_iter().filter_map(|(key, at)| Some((key, at?))))
}

/// VLAN interface by which a peer's packets leave, if it is on top of the configured interface (a
/// trunk in that case). `None` if no peer's packets leave by such an interface. Only the first
/// prefixes are checked.
pub fn vlan_of_trunk(config: &Config) -> Option<String> {
    let prefixes = config.peer_sites().flat_map(|peer| &peer.prefixes);
    prefixes.take(MAX_CHECKED_ROUTES).find_map(|net| {
        let error = RouteMtu::plan(pair(net), &config.wan, 65_535).err()?;
        let RouteError::Elsewhere { taken, .. } = error else { return None };
        is_vlan_of(&taken, &config.wan).unwrap_or(false).then_some(taken)
    })
}

/// Warning if a rule of nftables may translate the addresses of packets to the peers. These packets
/// must be exempt from translation, otherwise the gateways do not recognise them.
pub fn masquerades(config: &Config) -> Option<String> {
    let listed = tool::run("nft", &["-j", "list", "ruleset"], "").ok()?;
    let peers: Vec<IpNet> = config.peer_sites().flat_map(|peer| peer.prefixes.clone()).collect();
    let wans: Vec<&str> = config.interfaces().collect();
    let (chain, kind) = translation(&serde_json::from_str(&listed).ok()?, &wans, &peers)?;
    Some(format!(
        "a rule of nftables may translate addresses of packets to the peers ({kind} in {chain}); \
         such packets are not protected: is there a rule that exempts the peers' prefixes?"
    ))
}

/// Chain and kind of the first rule that translates source addresses of packets leaving by one of
/// `wans`, in a chain that names none of the `peers`' prefixes.
fn translation(ruleset: &Value, wans: &[&str], peers: &[IpNet]) -> Option<(String, &'static str)> {
    let rules = || ruleset["nftables"].as_array().into_iter().flatten().map(|of| &of["rule"]);
    let chain = |rule: &Value| {
        [&rule["family"], &rule["table"], &rule["chain"]]
            .map(|part| part.as_str().unwrap_or_default().to_owned())
            .join(" ")
    };
    let exempts = |rule: &Value| {
        let text = rule["expr"].to_string();
        peers.iter().any(|net| text.contains(&format!("{:?}", net.addr().to_string())))
    };
    rules().find_map(|rule| {
        let parts = rule["expr"].as_array()?;
        let is = |kind: &&str| parts.iter().any(|part| part.get(kind).is_some());
        let kind = ["masquerade", "snat"].into_iter().find(is)?;
        let leaves = |wan: &&str| parts.iter().all(|part| may_match(&part["match"], wan));
        let exempt = rules().filter(|of| chain(of) == chain(rule)).any(exempts);
        (wans.iter().any(leaves) && !exempt).then(|| (chain(rule), kind))
    })
}

/// Returns whether packets leaving by `wan` may satisfy a match. Any match except one on the output
/// interface is assumed to be satisfied.
fn may_match(one: &Value, wan: &str) -> bool {
    let key = one["left"]["meta"]["key"].as_str();
    if !matches!(key, Some("oif" | "oifname")) {
        return true;
    }
    let right = &one["right"];
    let set = right["set"].as_array().map_or(std::slice::from_ref(right), Vec::as_slice);
    let is_wan =
        |name: &str| name.strip_suffix('*').map_or(name == wan, |start| wan.starts_with(start));
    // The members of a named set are unknown here, and so are values of other types.
    let is_known = |one: &Value| one.as_str().is_some_and(|name| !name.starts_with('@'));
    let is_known = set.iter().all(is_known);
    let has = set.iter().filter_map(Value::as_str).any(is_wan);
    if one["op"] == "!=" { !has } else { has || !is_known }
}

fn interfaces() -> String {
    let table = fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    let names = table.lines().skip(2).filter_map(|line| line.split_once(':'));
    let names: Vec<_> = names.map(|(name, _)| name.trim()).filter(|&name| name != "lo").collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Checks that each address that the config listens on belongs to this machine.
pub fn check_addresses(config: &Config) -> Result<()> {
    for (key, at) in listeners(config) {
        UdpSocket::bind(SocketAddr::new(at.ip(), 0)).with_context(|| {
            format!("{key}: {at}: one of this machine's own addresses is expected")
        })?;
    }
    Ok(())
}

/// Listeners of the config whose port is in use on this machine. Empty if a gateway of this name
/// runs, because that gateway uses these ports.
pub fn ports_in_use(config: &Config) -> Vec<String> {
    if is_served(&running(config.socket())) {
        return Vec::new();
    }
    let taken = |error: Option<std::io::Error>| {
        error.is_some_and(|error| error.kind() == ErrorKind::AddrInUse)
    };
    let udp = |at: SocketAddr| taken(UdpSocket::bind(at).err());
    let tcp = |at: SocketAddr| taken(TcpListener::bind(at).err());
    let said = listeners(config).flat_map(|(key, at)| {
        let protocols: &[_] = match key {
            "[site] listen" if config.wants_fake_tcp() => &["UDP", "TCP"],
            "[site] listen" | "[cache] listen" => &["UDP"],
            _ => &["TCP"],
        };
        let used = protocols.iter().filter(move |&&of| if of == "UDP" { udp(at) } else { tcp(at) });
        used.map(move |protocol| format!("{key}: {protocol} {at} is in use by another program"))
    });
    said.collect()
}

/// Warnings about the address families of `prefixes` for which this machine forwards no packets.
/// The operator has to enable forwarding.
pub fn forwarding_off(prefixes: &[IpNet]) -> Vec<String> {
    let families =
        [("IPv4", true, "net/ipv4/ip_forward"), ("IPv6", false, "net/ipv6/conf/all/forwarding")];
    let mut off = Vec::new();
    for (family, v4, key) in families {
        let wanted = prefixes.iter().any(|net| net.addr().is_ipv4() == v4);
        let on =
            fs::read_to_string(format!("/proc/sys/{key}")).is_ok_and(|value| value.trim() == "1");
        if wanted && !on {
            let key = key.replace('/', ".");
            off.push(format!("{family} forwarding is off: a gateway needs sysctl -w {key}=1"));
        }
    }
    off
}

/// Warnings about prefixes of the peers that are not routed through the WAN: packets to them are
/// not protected. Only the first prefixes are checked, which is enough to detect a wrong `wan`.
/// With two WANs the gateway itself selects the route, and there are no such warnings.
pub fn routed_elsewhere(config: &Config) -> Vec<String> {
    if !config.wans.is_empty() {
        return Vec::new();
    }
    let prefixes =
        config.peer_sites().flat_map(|peer| peer.prefixes.iter().map(move |p| (peer, p)));
    let wrong = prefixes.take(MAX_CHECKED_ROUTES).filter_map(|(peer, net)| {
        let error = RouteMtu::plan(pair(net), &config.wan, 65_535).err()?;
        Some(format!("peer {:?}: prefixes: {error}; packets to them are not protected", peer.name))
    });
    wrong.collect()
}

/// Address and prefix length, as the system layer expects them.
pub fn pair(net: &IpNet) -> (IpAddr, u8) {
    (net.addr(), net.prefix_len())
}

/// Checks that the journal and the status socket can be created.
pub fn check_run_dir(config: &Config) -> Result<()> {
    let existing = config.run_dir.ancestors().find(|dir| dir.is_dir());
    let writable = existing.is_some_and(|dir| {
        rustix::fs::access(dir, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK).is_ok()
    });
    ensure!(writable, "[site] run_dir: {} cannot be written to", config.run_dir.display());
    Ok(())
}

/// Checks that this process has the capabilities that a gateway needs.
pub fn check_capabilities() -> Result<()> {
    capabilities::check("a gateway", &["CAP_NET_ADMIN", "CAP_NET_RAW"])
}

#[cfg(test)]
#[path = "preflight_tests.rs"]
mod tests;
