//! Split mode (Maelstrom, 4.2): the gateway terminates the TCP connections between its site and
//! a peer's, acknowledges at once, and continues over connections of its own between the
//! gateways, under FEC.
//!
//! ```text
//!   host A ══ TCP ══▶ gateway A ══ TCP of the gateways, protected ══▶ gateway B ══ TCP ══▶ host B
//!            "from A to B" each of them: a gateway that goes is passed by
//! ```
//!
//! Split mode uses the proxy on the path, one at each end, in a thread of the gateway's process.

use anyhow::{Context, Result, bail};
use ipnet::IpNet;
use toml::{Table, Value};
use viaduct_proto::flow::Registry;
use viaduct_sys::nft::intercept::{Intercept, Selector};

use super::config::Config;
use super::preflight::pair;
use crate::settings::Settings;

/// Address to which the kernel redirects connections, unless `[split]` sets another.
const LISTEN: &str = "[::]:7402";
/// Maximum bytes of each flow that a host has sent and the other site has not received yet.
const BUFFER: i64 = 8 << 20;

/// Options that follow from the rest of the config, and those that a proxy between sites does
/// not have.
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

/// Settings of the gateway's proxy; `None` without a peer in split mode.
///
/// # Errors
/// `[split]` or a `[[policy]]` is wrong.
pub fn settings(config: &Config, registry: &Registry) -> Result<Option<Settings>> {
    let (own, peers) = prefixes(config);
    if peers.is_empty() {
        return Ok(None);
    }
    if let Some(key) = config.split.keys().find(|key| FOLLOWS.contains(&&*key.replace('_', "-"))) {
        bail!("[split] {key}: it follows from the sites; leave it out");
    }
    let options = options(config, &peers);
    let mut settings =
        Settings::of_tables(&options, &config.policies, registry).context("[split]")?;
    if settings.holds || settings.on_demand || settings.engine.limits.idle_exit.is_some() {
        bail!("[split] accept, on-demand, idle-exit: they are for `viaduct proxy` alone");
    }
    let (ours, theirs) = (pairs(own), pairs(&peers));
    let there = Selector { from: ours.clone(), to: theirs.clone() };
    let back = Selector { from: theirs, to: ours };
    if let Some(intercept) = &mut settings.intercept {
        *intercept = Intercept { ways: vec![there, back], ..intercept.clone() };
    }
    Ok(Some(settings.fitted()))
}

/// Prefixes between which connections are split: the site's, and those of peers in split mode.
pub fn prefixes(config: &Config) -> (&[IpNet], Vec<IpNet>) {
    let peers = config.peers.iter().filter(|peer| peer.split);
    (&config.prefixes, peers.flat_map(|peer| peer.prefixes.iter().copied()).collect())
}

/// `[split]`, with the options that follow from the rest of the config.
fn options(config: &Config, peers: &[IpNet]) -> Table {
    let list = |nets: &[IpNet]| {
        Value::Array(nets.iter().map(|net| Value::String(net.to_string())).collect())
    };
    let text = |text: &str| Value::String(text.to_owned());
    let mut options = config.split.clone();
    for (key, value) in [("listen", text(LISTEN)), ("far-buffer", Value::Integer(BUFFER))] {
        let underscored = key.replace('-', "_");
        if !options.contains_key(key) && !options.contains_key(&underscored) {
            options.insert(key.to_owned(), value);
        }
    }
    options.insert("intercept".to_owned(), list(peers));
    options.insert("far".to_owned(), list(peers));
    options.insert("keep-client".to_owned(), Value::Boolean(true));
    options.insert("name".to_owned(), text(&format!("{}-split", plain(&config.name))));
    options.insert("run-dir".to_owned(), text(&config.run_dir.to_string_lossy()));
    options
}

fn pairs(nets: &[IpNet]) -> Vec<(std::net::IpAddr, u8)> {
    nets.iter().map(pair).collect()
}

fn plain(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).take(24).collect()
}
