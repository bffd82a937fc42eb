//! `site.toml`: first what the user wrote, then what it means. Everything is checked before
//! anything is touched, and each error is one line that says what would be right.

mod file;
mod meaning;
mod peers;
mod values;
mod wrong;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use viaduct_proto::keys::{PublicKey, SecretKey};
use viaduct_proto::repair::Coding;

use crate::proxy::file::PolicyTable;
use crate::text;
use file::File;
pub use peers::check_endpoint;

/// Bytes of a config, at most.
const LONGEST: u64 = 1 << 20;

/// What it means.
#[derive(Clone, Debug)]
pub struct Config {
    /// The site's name.
    pub name: String,
    /// Its secret key.
    pub secret: SecretKey,
    /// Its addresses.
    pub prefixes: Vec<IpNet>,
    /// The interface towards the peers.
    pub wan: String,
    /// Where peers send their repairs.
    pub listen: SocketAddr,
    /// Longest packet that the site's hosts send, if that is known to be below the WAN's MTU.
    pub host_mtu: Option<usize>,
    /// Bytes of memory for packets, all peers and rings together.
    pub memory: usize,
    /// Directory for the control socket and the journal of changes.
    pub run_dir: PathBuf,
    /// Where Prometheus finds the metrics.
    pub metrics: Option<SocketAddr>,
    /// Where the site's hosts ask the packet cache.
    pub cache: Option<SocketAddr>,
    /// What is said of split mode: options of the proxy.
    pub split: toml::Table,
    /// Which flows of split mode may pass, and how.
    pub policies: Vec<PolicyTable>,
    /// The peer sites.
    pub peers: Vec<Peer>,
    /// What is odd but allowed, one line each.
    pub warnings: Vec<String>,
}

/// A peer site.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// Its public key.
    pub key: PublicKey,
    /// Where its gateway listens; of a name, what it was last resolved to.
    pub endpoint: Option<SocketAddr>,
    /// Host and port that the endpoint is resolved from.
    pub endpoint_name: Option<(String, u16)>,
    /// Its addresses.
    pub prefixes: Vec<IpNet>,
    /// Whether TCP connections to and from it are split.
    pub split: bool,
    /// How what leaves for it is encoded.
    pub coding: Option<Coding>,
    /// Whether packets are kept so short that a repair of them fits one datagram.
    pub lower_mtu: bool,
    /// Idle time after which unfilled bins fire.
    pub flush_after: Duration,
    /// Age at which session keys are replaced.
    pub rekey_after: Duration,
}

/// One thing wrong with a config: where, what, and what would be right.
#[derive(Debug, thiserror::Error)]
#[error("{}: {place}{what}", file.display())]
pub struct ConfigError {
    file: PathBuf,
    place: String,
    what: String,
}

impl Config {
    /// Reads and checks `path`. Touches nothing but that file and the key file it names.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let fail = |place: &str, what: String| ConfigError {
            file: path.to_owned(),
            place: place.to_owned(),
            what,
        };
        let text = text::read(path, LONGEST).map_err(|what| fail("", what))?;
        let file: File = toml::from_str(&text).map_err(|e| {
            let at = e.span().map_or(0, |span| span.start);
            let mut place = text::place(&text, at);
            if let Some(table) =
                text::table(&text, at).filter(|_| e.message().starts_with("missing"))
            {
                place += &format!("{table}: ");
            }
            fail(&place, text::plain(&text, at, e.message()))
        })?;
        meaning::of(file, path.parent().unwrap_or(Path::new("."))).map_err(|(place, what)| {
            fail(&if place.is_empty() { place } else { format!("{place}: ") }, what)
        })
    }

    /// The control socket.
    pub fn socket(&self) -> PathBuf {
        self.run_dir.join(format!("{}.sock", self.name))
    }

    /// The clocks of handshakes, kept over a restart where the service manager gives a directory for
    /// that (`StateDirectory=` of systemd).
    pub fn clocks(&self) -> Option<PathBuf> {
        let directories = std::env::var_os("STATE_DIRECTORY")?;
        let first = std::env::split_paths(&directories).next()?;
        Some(first.join(format!("{}.clocks", self.name)))
    }

    /// The journal of changes to the system.
    pub fn journal(&self) -> PathBuf {
        self.run_dir.join(format!("{}.changes.json", self.name))
    }
}

#[cfg(test)]
mod tests;
