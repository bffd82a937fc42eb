//! Config of a node: the file as written, and the values that result from it.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use ipnet::IpNet;
use serde::Deserialize;
use viaduct_proto::flow::Registry;
use viaduct_proto::keys::PublicKey;
use viaduct_proto::overlay::{self, ConfigError, Node, Peer, Policy, Timing};
use viaduct_proto::time::Instant;

use crate::random::entropy;
use crate::run_dir::RunDir;
use crate::settings::{ClientProtocol, OptionsTable, ProxyArgs, Settings};
use crate::value_parser::table::{Destination, Time, optional};
use crate::{key, text};

/// Maximum length of a config in bytes.
const MAX_CONFIG: u64 = 1 << 20;
/// Options that `[socks]` cannot set: the node sets them, or its proxy does not have them.
const DERIVED: [&str; 7] = ["expect", "name", "run-dir", "to", "intercept", "on-demand", "metrics"];
/// Allowed range of the probe interval and timeout.
const INTERVALS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(50)..=Duration::from_secs(600);

/// Validated config.
pub struct Config {
    /// Configuration of the node.
    pub node: overlay::Config,
    /// Listening address for probes.
    pub listen: SocketAddr,
    /// Addresses of the peers' listeners for probes, in the order of the peers.
    pub endpoints: Vec<SocketAddr>,
    /// Settings of this node's SOCKS5 proxy, through which flows are routed over the node; `None`
    /// without `[socks]`.
    pub socks: Option<Settings>,
    /// Address at which metrics and `/healthz` are served.
    pub metrics: Option<SocketAddr>,
    /// Directory of the status socket.
    pub run_dir: PathBuf,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    overlay: NodeTable,
    /// Options of the node's SOCKS5 proxy.
    socks: Option<OptionsTable>,
    #[serde(default)]
    peer: Vec<PeerTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table [overlay]")]
struct NodeTable {
    name: String,
    key: PathBuf,
    listen: SocketAddr,
    serves: Option<Vec<IpNet>>,
    #[serde(default)]
    policy: Policy,
    #[serde(default, deserialize_with = "optional::<Time, _>")]
    interval: Option<Duration>,
    #[serde(default, deserialize_with = "optional::<Time, _>")]
    timeout: Option<Duration>,
    lost: Option<u32>,
    back: Option<u32>,
    metrics: Option<SocketAddr>,
    #[serde(default = "default_run_dir")]
    run_dir: PathBuf,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [[peer]]")]
struct PeerTable {
    name: String,
    key: String,
    endpoint: SocketAddr,
    socks: Option<SocketAddr>,
    #[serde(default, deserialize_with = "optional::<Destination, _>")]
    hop: Option<SocketAddr>,
    serves: Option<Vec<IpNet>>,
}

fn default_run_dir() -> PathBuf {
    crate::run_dir::default_run_dir()
}

impl Config {
    /// Reads and checks `path`, and the key file that it names. Errors: a line with the position,
    /// the mistake and a correct form.
    pub fn load(path: &Path, registry: &Registry) -> Result<Config> {
        let text =
            text::read(path, MAX_CONFIG).map_err(|what| anyhow!("{}: {what}", path.display()))?;
        let file: File = toml::from_str(&text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let place = text::position(&text, at);
            anyhow!("{}: {place}{}", path.display(), text::explain(&text, at, error.message()))
        })?;
        let directory = path.parent().unwrap_or(Path::new("."));
        validate(file, directory, registry).with_context(|| path.display().to_string())
    }

    /// Checks that a node can be created.
    pub fn try_node(&self) -> Result<(), ConfigError> {
        Node::new(self.node.clone(), entropy(), Instant::ZERO).map(drop)
    }

    /// Path of the status socket, from which the handler `route` reads the table.
    pub fn socket(&self) -> PathBuf {
        self.run_dir.join(format!("overlay-{}.sock", self.node.name))
    }
}

fn validate(file: File, directory: &Path, registry: &Registry) -> Result<Config> {
    let File { overlay: node, socks, peer } = file;
    let name = |name: &str| text::check_name(name).map_err(|what| anyhow!("name: {what}"));
    name(&node.name)?;
    let mut peers = Vec::new();
    for peer in &peer {
        let made = name(&peer.name).and_then(|()| validate_peer(peer));
        peers.push(made.with_context(|| format!("peer {}", peer.name))?);
    }
    if let Some(far) = peer.iter().find(|peer| node.listen.is_ipv4() != peer.endpoint.is_ipv4()) {
        bail!(
            "peer {}: endpoint: the address family differs from that of listen, {}",
            far.name,
            node.listen
        );
    }
    let config = overlay::Config {
        key: key::read(&directory.join(&node.key)).context("key")?,
        serves: node.serves.clone().unwrap_or_else(|| own_prefix(node.listen)),
        peers,
        policy: node.policy,
        timing: timing(&node)?,
        name: node.name,
    };
    let socks =
        socks.map(|table| proxy(&table, &config.name, &node.run_dir, registry)).transpose()?;
    Ok(Config {
        node: config,
        listen: node.listen,
        endpoints: peer.iter().map(|peer| peer.endpoint).collect(),
        socks,
        metrics: node.metrics,
        run_dir: node.run_dir,
    })
}

fn validate_peer(peer: &PeerTable) -> Result<Peer> {
    if peer.endpoint.ip().is_unspecified() || peer.endpoint.port() == 0 {
        bail!("endpoint: {}: the peer's address and port are expected", peer.endpoint);
    }
    Ok(Peer {
        name: peer.name.clone(),
        key: peer.key.parse::<PublicKey>().context("key")?,
        socks: peer.socks,
        hop: peer.hop,
        serves: peer.serves.clone().unwrap_or_else(|| own_prefix(peer.endpoint)),
    })
}

/// Default of `serves`: the address of the node itself.
fn own_prefix(at: SocketAddr) -> Vec<IpNet> {
    if at.ip().is_unspecified() { Vec::new() } else { vec![at.ip().to_canonical().into()] }
}

fn timing(node: &NodeTable) -> Result<Timing> {
    let usual = Timing::default();
    let timing = Timing {
        interval: node.interval.unwrap_or(usual.interval),
        timeout: node.timeout.unwrap_or(usual.timeout),
        lost: node.lost.unwrap_or(usual.lost),
        back: node.back.unwrap_or(usual.back),
    };
    for (what, span) in [("interval", timing.interval), ("timeout", timing.timeout)] {
        if !INTERVALS.contains(&span) {
            bail!("{what}: a time from 50ms to 10m is expected");
        }
    }
    for (what, count) in [("lost", timing.lost), ("back", timing.back)] {
        if !(1..=32).contains(&count) {
            bail!("{what}: {count}: a number from 1 to 32 is expected");
        }
    }
    Ok(timing)
}

/// Returns the settings of this node's SOCKS5 proxy, limited to the clients and destinations that
/// the config allows.
fn proxy(
    table: &OptionsTable,
    name: &str,
    run_dir: &Path,
    registry: &Registry,
) -> Result<Settings> {
    if let Some(key) = DERIVED.iter().find(|key| table.has(key)) {
        bail!("[socks] {key}: not possible for a node's proxy; remove it");
    }
    if let Some(key) = ["listen", "allow-from", "allow-to"].iter().find(|key| !table.has(key)) {
        bail!("[socks] {key} is missing: a node routes only flows that its config allows");
    }
    let args = ProxyArgs {
        expect: vec![ClientProtocol::Socks],
        name: Some(format!("overlay-{name}").chars().take(32).collect()),
        run_dir: RunDir::from(run_dir),
        ..table.options().map_err(|what| anyhow!("[socks] {what}"))?
    };
    Settings::of(&args, &[], &[], registry).context("[socks]")
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Timing { interval, timeout, lost, .. } = self.node.timing;
        writeln!(f, "overlay {}: probes at {}", self.node.name, self.listen)?;
        let known = interval.mul_f64(1.1) + timeout * lost;
        writeln!(f, "  a failure is known within {:.2} s", known.as_secs_f64())?;
        for (peer, endpoint) in self.node.peers.iter().zip(&self.endpoints) {
            let serves: Vec<_> = peer.serves.iter().map(ToString::to_string).collect();
            write!(f, "  peer {} at {endpoint}, for {}", peer.name, serves.join(", "))?;
            match (peer.socks, peer.hop) {
                (Some(at), _) => write!(f, ", flows may go through its proxy at {at}")?,
                (None, None) => write!(f, ", no flows go through it")?,
                (None, Some(_)) => {}
            }
            match peer.hop {
                Some(at) => writeln!(f, ", proxies here may use its hop at {at}")?,
                None => writeln!(f)?,
            }
        }
        self.socks.iter().try_for_each(|socks| write!(f, "{socks}"))
    }
}
