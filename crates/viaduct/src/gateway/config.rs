//! `site.toml`: the file as written, and its meaning. Everything is checked before anything is
//! changed, and each error is one line that names the expected form.

mod error;
mod file;
mod members;
mod peers;
mod validate;
mod values;
mod wans;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use rustls::pki_types::DnsName;
use viaduct_proto::keys::{PublicKey, SecretKey};
use viaduct_proto::repair::lanes::LaneCount;
use viaduct_proto::repair::{Coding, Match, PathsConfig, PeerMember, Transport, TransportChoice};

use crate::settings::{OptionsTable, PolicyTable};
use crate::text;
pub use error::check_site_name;
use file::File;
pub use members::{SiteRack, check_member};
pub use peers::{LISTEN, check_endpoint};
pub use values::parse_endpoint;

/// Maximum length of a config in bytes: 4,096 peers with a dozen keys each.
pub const MAX_CONFIG: u64 = 4 << 20;

/// Meaning of a config.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the site.
    pub name: String,
    /// Secret key of the site.
    pub secret: SecretKey,
    /// Prefixes of the site.
    pub prefixes: Vec<IpNet>,
    /// Interface towards the peers; the first one, if there are two.
    pub wan: String,
    /// Address to which peers send their repairs; the first one, if there are two.
    pub listen: SocketAddr,
    /// Both WANs, if there are two; empty with one.
    pub wans: Vec<Wan>,
    /// Packets that prefer one of two WANs; the first match decides.
    pub path_classes: Vec<PathClass>,
    /// Address at which tunnels over TLS arrive.
    pub tls_listen: Option<SocketAddr>,
    /// Length of the longest packet that the site's hosts send, if it is known to be below the
    /// WAN's MTU.
    pub host_mtu: Option<usize>,
    /// Number of packet threads.
    pub workers: usize,
    /// Number of lanes that packets to and from each peer are divided into, unless the peer wants
    /// more. There is at least one for each worker.
    pub lanes: LaneCount,
    /// Memory for packets in bytes: of all peers and all taps together.
    pub memory: usize,
    /// Directory for the control socket and the journal of changes.
    pub run_dir: PathBuf,
    /// Address at which Prometheus fetches the metrics.
    pub metrics: Option<SocketAddr>,
    /// Address of the packet cache for the site's hosts.
    pub cache: Option<SocketAddr>,
    /// `[split]`: options of the proxy for split mode.
    pub split: OptionsTable,
    /// `[[policy]]`: handling of the flows of split mode.
    pub policies: Vec<PolicyTable>,
    /// Rack of this site, if it has several gateways.
    pub rack: Option<SiteRack>,
    /// Gateways of the peer sites. All members of a rack are listed, one after another.
    pub peers: Vec<Peer>,
    /// Warnings about unusual but allowed settings, one line each.
    pub warnings: Vec<String>,
}

/// WAN of a site with two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wan {
    /// Name of the path.
    pub name: String,
    /// Interface.
    pub interface: String,
    /// Address to which peers send the datagrams of this path.
    pub listen: SocketAddr,
    /// Next hops, one for each address family; empty on a point-to-point link.
    pub via: Vec<IpAddr>,
}

/// Packets that prefer one of two WANs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathClass {
    /// Name for messages.
    pub name: String,
    /// Conditions on packets of the class.
    pub matches: Match,
    /// Index of the WAN.
    pub wan: usize,
}

/// Gateway of a peer site.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Name of the peer; `SITE/MEMBER` for a member of a rack.
    pub name: String,
    /// Public key of the peer.
    pub key: PublicKey,
    /// Address of the peer's gateway; for an endpoint given by name, the latest address of that
    /// name.
    pub endpoint: Option<SocketAddr>,
    /// Host and port that the endpoint is resolved from.
    pub endpoint_name: Option<(String, u16)>,
    /// Paths to the peer, if there are two WANs.
    pub paths: Option<PathsConfig>,
    /// Transports of datagrams to the peer's gateway.
    pub transport: TransportChoice,
    /// Address of the peer's listener for tunnels over TLS.
    pub tls_endpoint: Option<SocketAddr>,
    /// Server name in the ClientHello of these tunnels.
    pub server_name: Option<DnsName<'static>>,
    /// Prefixes of the peer site.
    pub prefixes: Vec<IpNet>,
    /// Rate of the packets to and from the peer, in bits per second, for which memory must suffice.
    pub rate: Option<u64>,
    /// True if TCP connections to and from the peer are split.
    pub split: bool,
    /// Encoding of the packets to the peer; `None` if they are sent without repairs.
    pub coding: Option<Coding>,
    /// True if packets are kept so short that each repair fits one datagram.
    pub lower_mtu: bool,
    /// Idle time after which repairs of incomplete windows are sent.
    pub flush_after: Duration,
    /// Age at which session keys are replaced.
    pub rekey_after: Duration,
    /// Membership in the rack of the peer's site, if the peer is not the only gateway there.
    pub member: Option<PeerMember>,
}

/// Error in a config: the file, the place, and the problem together with the expected form.
#[derive(Debug, thiserror::Error)]
#[error("{}: {place}{what}", file.display())]
pub struct ConfigError {
    file: PathBuf,
    place: String,
    what: String,
}

impl Peer {
    /// Name of the peer's site.
    pub fn site(&self) -> &str {
        self.member.as_ref().map_or(&self.name, |member| &member.rack)
    }

    /// Returns whether split connections may go through a tunnel over TLS.
    pub fn may_use_tls(&self) -> bool {
        self.split && !matches!(self.transport, TransportChoice::Only(_))
    }
}

impl Config {
    /// Reads and checks `path`. Reads only this file, the key file that it names, and
    /// `/proc/meminfo`.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        Config::load_with_text(path).map(|(config, _)| config)
    }

    /// Like [`Config::load`], but also returns the text of the file.
    pub fn load_with_text(path: &Path) -> Result<(Config, String), ConfigError> {
        let text = text::read(path, MAX_CONFIG).map_err(|what| ConfigError {
            file: path.to_owned(),
            place: String::new(),
            what,
        })?;
        Ok((Config::parse(path, &text, None)?, text))
    }

    /// Checks `text`, the present or future content of the file `path`. The site's secret key is
    /// `secret`; if that is `None`, the key file is read.
    pub fn parse(
        path: &Path,
        text: &str,
        secret: Option<&SecretKey>,
    ) -> Result<Config, ConfigError> {
        let fail = |place: &str, what: String| ConfigError {
            file: path.to_owned(),
            place: place.to_owned(),
            what,
        };
        let file: File = toml::from_str(text).map_err(|e| {
            let at = e.span().map_or(0, |span| span.start);
            let mut place = text::position(text, at);
            if let Some(table) =
                text::table(text, at).filter(|_| e.message().starts_with("missing"))
            {
                place += &format!("{table}: ");
            }
            fail(&place, text::explain(text, at, e.message()))
        })?;
        validate::validate(file, path.parent().unwrap_or(Path::new(".")), secret).map_err(
            |(place, what)| {
                fail(&if place.is_empty() { place } else { format!("{place}: ") }, what)
            },
        )
    }

    /// Returns one peer for each peer site; the first member, if the site has a rack.
    pub fn peer_sites(&self) -> impl Iterator<Item = &Peer> {
        self.peers.chunk_by(|a, b| a.site() == b.site()).map(|site| &site[0])
    }

    /// Returns whether a peer may use fake TCP. Packets of fake TCP do not name their lane, and
    /// therefore cannot be distributed to several workers.
    pub fn wants_fake_tcp(&self) -> bool {
        // With two WANs, no path could be chosen for packets of fake TCP.
        if self.workers > 1 || !self.wans.is_empty() {
            return false;
        }
        let never = [TransportChoice::Only(Transport::Udp), TransportChoice::None];
        self.peers.iter().any(|peer| !never.contains(&peer.transport))
    }

    /// Interfaces towards the peers.
    pub fn interfaces(&self) -> impl Iterator<Item = &str> {
        let second = self.wans.get(1).map(|wan| &wan.interface[..]);
        [&self.wan[..]].into_iter().chain(second)
    }

    /// Addresses to which peers send their repairs, one for each interface.
    pub fn listens(&self) -> impl Iterator<Item = SocketAddr> {
        [self.listen].into_iter().chain(self.wans.get(1).map(|wan| wan.listen))
    }

    /// Path of the control socket.
    pub fn socket(&self) -> PathBuf {
        self.run_dir.join(format!("{}.sock", self.name))
    }

    /// Path of the socket for upgrade requests.
    pub fn upgrade_socket(&self) -> PathBuf {
        self.socket().with_extension("upgrade")
    }

    /// Path of the file that keeps the clocks of handshakes across a restart; `None` if the service
    /// manager provides no directory for it (`StateDirectory=` of systemd).
    pub fn clocks(&self) -> Option<PathBuf> {
        let directories = std::env::var_os("STATE_DIRECTORY")?;
        let first = std::env::split_paths(&directories).next()?;
        Some(first.join(format!("{}.clocks", self.name)))
    }

    /// Path of the journal of changes to the system.
    pub fn journal(&self) -> PathBuf {
        self.run_dir.join(format!("{}.changes.json", self.name))
    }
}

#[cfg(test)]
mod tests;
