//! Two real `viaduct proxy`s with a tunnel between them.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Result;
use viaduct_proto::keys::SecretKey;

use crate::proxies::Proxy;
use crate::topology::{Node, Scratch};

/// Where the far end listens.
const PORT: u16 = 7100;

/// How a tunnel is set up.
#[derive(Clone, Debug)]
pub struct TunnelConfig<'a> {
    /// An address of the far end, as the near end reaches it.
    pub far: std::net::IpAddr,
    /// Where flows enter: `--listen` and what goes with it.
    pub near: &'a str,
    /// Servers that they may leave to, prefixes with commas between.
    pub allow_to: &'a str,
    /// Further options of both ends.
    pub both: &'a str,
}

/// A running tunnel. It ends with this value.
#[derive(Debug)]
pub struct TunnelPair {
    /// Where flows enter.
    pub near: Proxy,
    /// Where they leave.
    pub far: Proxy,
    _keys: Scratch,
}

impl TunnelPair {
    /// Starts both ends.
    ///
    /// # Errors
    /// An end does not come up; the error has its log.
    pub fn start(near: &Node, far: &Node, config: &TunnelConfig<'_>) -> Result<TunnelPair> {
        let keys = Scratch::new()?;
        let far = start_far(far, config, keys.path())?;
        let to = SocketAddr::new(config.far, PORT);
        let options = format!("{} {} --tunnel {to}", config.near, config.both);
        let near = start(near, &options, keys.path(), [1, 2])?;
        Ok(TunnelPair { near, far, _keys: keys })
    }
}

fn start_far(node: &Node, config: &TunnelConfig<'_>, keys: &Path) -> Result<Proxy> {
    let options =
        format!("--tunnel-listen [::]:{PORT} --allow-to {} {}", config.allow_to, config.both);
    start(node, &options, keys, [2, 1])
}

/// Starts a proxy whose key, and whose peer's, are made from these bytes.
fn start(node: &Node, options: &str, keys: &Path, [own, peer]: [u8; 2]) -> Result<Proxy> {
    let file = keys.join(format!("{own}.key"));
    std::fs::write(&file, SecretKey::from_bytes([own; 32]).to_text())?;
    let peer = SecretKey::from_bytes([peer; 32]).public();
    let options = format!("{options} --key {} --peer {peer}", file.display());
    Proxy::start(node, &options.split_whitespace().collect::<Vec<_>>())
}
