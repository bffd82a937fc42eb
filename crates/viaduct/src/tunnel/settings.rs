//! Settings of a proxy's tunnels.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use clap::ValueEnum;
use ipnet::IpNet;
use rustls::pki_types::DnsName;
use serde::Deserialize;
use viaduct_proto::keys::{PublicKey, SecretKey};
use viaduct_proto::tunnel::Settings;

use crate::congestion_control;
use crate::key;
use crate::text;
use crate::tunnel::strangers::StrangerMemory;
use crate::value_parser::table::{
    Address, Destination, Key, Links, Memory, ServerName, TunnelBuffer, defaults, list, one,
    optional,
};
use crate::value_parser::{destination, links, memory, server_name, socket_addr, tunnel_buffer};

/// The tunnels of a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelSettings {
    /// Secret key of this site.
    pub secret: SecretKey,
    /// Public keys of peers whose links are accepted.
    pub peers: Vec<PublicKey>,
    /// Address to listen at for links.
    pub listen: Option<SocketAddr>,
    /// Far ends to dial.
    pub dials: Vec<Dial>,
    /// Transport of the links.
    pub carrier: CarrierKind,
    /// Congestion control of the links; `None`: the transport's default.
    pub congestion: Option<String>,
    /// True if a client is accepted only after the far end has reached the server.
    pub waits: bool,
    /// Destinations to which this end may connect streams of its peers.
    pub allow_to: Vec<IpNet>,
    /// Addresses of the clients of each peer; servers then see the client's address. If empty, a
    /// peer may state any client address, and servers see this host's address.
    pub clients: Vec<Clients>,
    /// Memory limit of unauthenticated links.
    pub stranger_memory: StrangerMemory,
    /// Buffer sizes and timeouts.
    pub core: Settings,
}

const QUIC_CONGESTION: [&str; 3] = ["cubic", "bbr", "reno"];

/// Name of a tunnel; empty for the tunnel of the option `tunnel`.
pub type TunnelName = Arc<str>;

/// Title of a tunnel in messages: `tunnel`, or `tunnel paris`.
pub fn title(name: &str) -> String {
    if name.is_empty() { "tunnel".to_owned() } else { format!("tunnel {name}") }
}

/// Clients of a peer. A tunnel to such a peer carries flows in both directions, whichever end has
/// dialled it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clients {
    /// Name of the tunnel.
    pub name: TunnelName,
    /// Public key of the peer.
    pub key: PublicKey,
    /// Addresses of the clients.
    pub prefixes: Vec<IpNet>,
}

/// A far end to dial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dial {
    /// Name of the tunnel in policies.
    pub name: TunnelName,
    /// Address of the far end's listener.
    pub to: SocketAddr,
    /// Public key of the far end.
    pub peer: PublicKey,
    /// Number of links to dial.
    pub links: usize,
    /// Name of the server in the ClientHello (SNI), for links over TLS.
    pub server_name: Option<DnsName<'static>>,
    /// True if flows connect directly while no link is up.
    pub is_fallback: bool,
}

/// A table `[[tunnel]]` as written in the file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TunnelTable {
    /// Name of the tunnel in policies.
    pub name: String,
    #[serde(deserialize_with = "one::<Destination, _>")]
    to: SocketAddr,
    peer: String,
    #[serde(default, deserialize_with = "optional::<Links, _>")]
    links: Option<u16>,
    #[serde(default, rename = "server-name", deserialize_with = "optional::<ServerName, _>")]
    server_name: Option<DnsName<'static>>,
}

/// Transport of a tunnel's links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum CarrierKind {
    /// TCP, all streams of a link in one connection
    #[default]
    Tcp,
    /// QUIC, each stream in a QUIC stream of its own
    Quic,
    /// TLS 1.3 over TCP, for networks that pass nothing else; a listening end then accepts only TLS
    Tls,
}

impl CarrierKind {
    fn links(self) -> u16 {
        match self {
            CarrierKind::Tcp | CarrierKind::Tls => 2,
            CarrierKind::Quic => 1,
        }
    }
}

/// Tunnel options of `viaduct proxy`.
#[derive(Clone, Debug, clap::Args, Deserialize)]
#[serde(default = "defaults", deny_unknown_fields, rename_all = "kebab-case")]
pub struct TunnelArgs {
    /// Send flows through a tunnel to the far end that listens at this address
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = destination)]
    #[serde(deserialize_with = "optional::<Destination, _>")]
    pub tunnel: Option<SocketAddr>,
    /// Address to listen at for tunnels, as their far end, which connects their streams to servers
    /// in --allow-to
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = socket_addr)]
    #[serde(deserialize_with = "optional::<Address, _>")]
    pub tunnel_listen: Option<SocketAddr>,
    /// File with this site's secret key, from `viaduct key new`
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Public key of the tunnel's other end; may be repeated with --tunnel-listen
    #[arg(long, value_name = "PUBLICKEY")]
    #[serde(deserialize_with = "list::<Key, _>")]
    pub peer: Vec<PublicKey>,
    /// Number of links of the tunnel [default: 2, so that one link has a short queue during a bulk
    /// flow; 1 over QUIC, where flows do not wait for each other]
    #[arg(long, value_name = "N", value_parser = links)]
    #[serde(deserialize_with = "optional::<Links, _>")]
    pub links: Option<u16>,
    /// Transport of the links
    #[arg(long, value_enum, default_value_t = CarrierKind::Tcp)]
    #[serde(deserialize_with = "one::<CarrierKind, _>")]
    pub carrier: CarrierKind,
    /// Name of the server in the ClientHello (SNI) of links over TLS [default: none]
    #[arg(long, value_name = "NAME", value_parser = server_name)]
    #[serde(deserialize_with = "optional::<ServerName, _>")]
    pub server_name: Option<DnsName<'static>>,
    /// Congestion control of the links: over TCP and TLS, any that the kernel has (default: the
    /// kernel's default); over QUIC, cubic (default), bbr or reno
    #[arg(long, value_name = "NAME")]
    pub link_congestion: Option<String>,
    /// Maximum number of undelivered bytes from a tunnel's other end; with four times the path's
    /// bandwidth-delay product, one stream can fill the path
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = tunnel_buffer)]
    #[serde(deserialize_with = "one::<TunnelBuffer, _>")]
    pub tunnel_buffer: u64,
    /// Memory at the listening end for unauthenticated links from one address (a /64 of IPv6), per
    /// carrier; beyond that, the oldest of these links is dropped [default: 2M]
    #[arg(long, value_name = "BYTES", value_parser = memory)]
    #[serde(deserialize_with = "optional::<Memory, _>")]
    pub stranger_memory_per_source: Option<usize>,
    /// Memory at the listening end for unauthenticated links from all addresses together, per
    /// carrier [default: 8M]
    #[arg(long, value_name = "BYTES", value_parser = memory)]
    #[serde(deserialize_with = "optional::<Memory, _>")]
    pub stranger_memory: Option<usize>,
}

impl TunnelArgs {
    /// Returns the tunnels of these options and of `tables`, if any. Errors: the options are
    /// inconsistent; the error gives a correct form.
    pub fn settings(
        &self,
        tables: &[TunnelTable],
        allow_to: &[IpNet],
    ) -> Result<Option<TunnelSettings>> {
        let one = self.tunnel.or(self.tunnel_listen).is_some();
        if !one && (!self.peer.is_empty() || (self.key.is_some() && tables.is_empty())) {
            bail!("key, peer: options of tunnels; give tunnel or tunnel-listen");
        }
        if !one && tables.is_empty() {
            return self.check_unused().map(|()| None);
        }
        let memory = self.stranger_memory.or(self.stranger_memory_per_source);
        if self.tunnel_listen.is_none() && memory.is_some() {
            bail!("stranger-memory: an option of the far end; give tunnel-listen");
        }
        let Some(file) = &self.key else {
            bail!("key: tunnels need the file of this site's secret key");
        };
        if self.tunnel.is_some() && self.tunnel_listen.is_none() && self.peer.len() != 1 {
            bail!("peer: the tunnel has one other end; give exactly one key");
        }
        let dials = self.dials(tables)?;
        if self.carrier != CarrierKind::Tls && dials.iter().any(|to| to.server_name.is_some()) {
            bail!("server-name: only TLS names the server; give carrier tls");
        }
        self.check_congestion(&dials)?;
        key::warn_if_readable("key", file);
        let secret = key::read(file)?;
        self.check_peers(&secret, &dials, file)?;
        let core = Settings { limit: self.tunnel_buffer, ..Settings::default() };
        let strangers = StrangerMemory::default();
        Ok(Some(TunnelSettings {
            secret,
            peers: self.peer.clone(),
            listen: self.tunnel_listen,
            dials,
            carrier: self.carrier,
            congestion: self.link_congestion.clone(),
            waits: false,
            allow_to: allow_to.to_vec(),
            clients: Vec::new(),
            stranger_memory: StrangerMemory {
                source: self.stranger_memory_per_source.unwrap_or(strangers.source),
                all: self.stranger_memory.unwrap_or(strangers.all),
            },
            core,
        }))
    }

    /// Checks that no tunnel option is given without a tunnel.
    fn check_unused(&self) -> Result<()> {
        if self.links.is_some() {
            bail!("links: an option of the dialling end; give tunnel");
        }
        let usual: TunnelArgs = defaults();
        let idle = [
            ("link-congestion", self.link_congestion.is_some()),
            ("carrier", self.carrier != usual.carrier),
            ("server-name", self.server_name.is_some()),
            ("tunnel-buffer", self.tunnel_buffer != usual.tunnel_buffer),
            ("stranger-memory", self.stranger_memory.is_some()),
            ("stranger-memory-per-source", self.stranger_memory_per_source.is_some()),
        ];
        match idle.iter().find(|(_, is)| *is) {
            Some((what, _)) => bail!("{what}: an option of tunnels; give tunnel or tunnel-listen"),
            None => Ok(()),
        }
    }

    /// Checks that the keys of the other ends are not weak, and differ from this site's key, which
    /// is in `file`.
    fn check_peers(&self, secret: &SecretKey, dials: &[Dial], file: &Path) -> Result<()> {
        for peer in self.peer.iter().chain(dials.iter().map(|dial| &dial.peer)) {
            if secret.is_weak(peer) {
                bail!("peer: {peer} is a weak key, which `viaduct key new` never creates");
            }
            if *peer == secret.public() {
                let file = file.display();
                bail!(
                    "peer: {peer} is this site's own key, of {file}; give the public key of the \
                     tunnel's other end"
                );
            }
        }
        Ok(())
    }

    /// Checks that the transports in use support the congestion control. A listening end accepts
    /// TCP and QUIC; QUIC then uses its default if it does not support the given one, unless this
    /// end dials over QUIC.
    fn check_congestion(&self, dials: &[Dial]) -> Result<()> {
        let Some(name) = &self.link_congestion else { return Ok(()) };
        let dials_quic = self.carrier == CarrierKind::Quic && !dials.is_empty();
        if dials_quic && !QUIC_CONGESTION.contains(&&name[..]) {
            bail!("link-congestion: QUIC has cubic, bbr and reno, not {name:?}");
        }
        if self.carrier != CarrierKind::Quic || self.tunnel_listen.is_some() {
            congestion_control::check("link-congestion", name)?;
        }
        Ok(())
    }

    /// Far ends to dial: of the unnamed tunnel, if there is one, and of the named ones.
    fn dials(&self, tables: &[TunnelTable]) -> Result<Vec<Dial>> {
        let otherwise = usize::from(self.links.unwrap_or(self.carrier.links()));
        let unnamed = self.tunnel.zip(self.peer.first());
        let unnamed = unnamed.map(|(to, &peer)| Dial {
            name: "".into(),
            to,
            peer,
            links: otherwise,
            server_name: self.server_name.clone(),
            is_fallback: false,
        });
        let mut dials = Vec::from_iter(unnamed);
        for TunnelTable { name, to, peer, links, server_name } in tables {
            text::check_name(name).map_err(|what| anyhow!("[[tunnel]] name: {what}"))?;
            if dials.iter().any(|dial| *dial.name == **name) {
                bail!("[[tunnel]] name: {name:?} is given twice; each tunnel needs its own name");
            }
            let links = links.map_or(otherwise, usize::from);
            let peer = peer.parse().map_err(|error| anyhow!("[[tunnel]] {name}: peer: {error}"))?;
            let (name, server_name) = ((**name).into(), server_name.clone());
            dials.push(Dial { name, to: *to, peer, links, server_name, is_fallback: false });
        }
        Ok(dials)
    }
}

impl fmt::Display for TunnelSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(at) = self.listen {
            let allowed: Vec<_> = self.allow_to.iter().map(ToString::to_string).collect();
            let peers = self.peers.len();
            writeln!(
                f,
                "  tunnels: accepted at {at} from {peers} known keys, to servers in {}",
                { allowed.join(", ") }
            )?;
        }
        self.dials.iter().try_for_each(|dial| {
            let Dial { name, to, links, .. } = dial;
            writeln!(f, "  {}: to {to}, links: {links}", title(name))
        })
    }
}

impl TunnelSettings {
    /// Returns whether a socket for QUIC is needed. A listening end accepts QUIC unless it accepts
    /// only TLS.
    pub(super) fn uses_quic(&self) -> bool {
        let accepts = self.listen.is_some() && self.carrier != CarrierKind::Tls;
        accepts || self.carrier == CarrierKind::Quic
    }

    /// Limits the idle timeout of links (the time without a packet from the peer) to `after`;
    /// `None` leaves the timeout unchanged.
    pub fn dead_after(mut self, after: Option<Duration>) -> TunnelSettings {
        let core = &mut self.core;
        if let Some(after) = after {
            core.silence = core.silence.min(after);
            // Several pings are sent within the timeout, so that a link survives the loss of some.
            core.ping = core.ping.min(core.silence / 4);
        }
        self
    }

    /// Returns whether a running proxy can switch to `new` without a restart: only the number
    /// of links may differ.
    pub fn is_alike(old: &Option<TunnelSettings>, new: &Option<TunnelSettings>) -> bool {
        let without_links = |settings: &Option<TunnelSettings>| {
            let mut settings = settings.clone()?;
            settings.dials.iter_mut().for_each(|dial| dial.links = 0);
            Some(settings)
        };
        without_links(old) == without_links(new)
    }
}
