//! Description of an outbound.

use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use viaduct_proto::flow::OutputTransport;

use crate::engine::next_hops::{AutoSpec, HopList};
use crate::engine::trickles::{PacketFormats, TricklesTarget};

/// Outbound of a flow, as policies name it: to its server, or through another program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OutboundSpec {
    /// Directly to the server.
    #[default]
    Direct,
    /// Through the hop at this address.
    Hop(SocketAddr),
    /// Through the first hop of this list that is up. Each flow gets a route through one of the
    /// hops, or a direct route.
    #[serde(skip)]
    Hops(HopList),
    /// Through the hops that measurements choose. Each flow gets a route through its own first hop,
    /// or a direct route.
    #[serde(skip)]
    Auto(AutoSpec),
    /// Through the tunnel of this name; empty for the unnamed one.
    Tunnel(String),
    /// To the server over Trickles; over TCP if the server supports nothing else, unless encryption
    /// is required.
    Trickles(TricklesTarget),
}

impl OutboundSpec {
    /// Address of the hop, if the flow goes through one.
    pub fn hop(&self) -> Option<SocketAddr> {
        if let OutboundSpec::Hop(at) = self { Some(*at) } else { None }
    }

    /// Hops that the config names, through which flows may go.
    pub fn hops(&self) -> &[SocketAddr] {
        match self {
            OutboundSpec::Hop(at) => std::slice::from_ref(at),
            OutboundSpec::Hops(list) => &list.hops,
            _ => &[],
        }
    }

    /// List of hops, if flows take one of several.
    pub fn list(&self) -> Option<&HopList> {
        if let OutboundSpec::Hops(list) = self { Some(list) } else { None }
    }

    /// Choice by measurements, if flows take the hops that it names.
    pub fn auto(&self) -> Option<&AutoSpec> {
        if let OutboundSpec::Auto(auto) = self { Some(auto) } else { None }
    }

    /// Returns whether a flow may take another route if its hop fails.
    pub fn has_alternatives(&self) -> bool {
        matches!(self, OutboundSpec::Hops(_) | OutboundSpec::Auto(_))
    }

    /// Returns this outbound over `transport`, which the handlers of a flow have named.
    pub fn over(&self, transport: OutputTransport) -> OutboundSpec {
        match (transport, self) {
            (OutputTransport::Trickles, OutboundSpec::Trickles(_)) => self.clone(),
            (OutputTransport::Trickles, _) => OutboundSpec::Trickles(TricklesTarget::default()),
            (OutputTransport::Tcp, OutboundSpec::Trickles(_)) => OutboundSpec::Direct,
            (OutputTransport::Tcp, _) => self.clone(),
        }
    }

    /// Parameters of Trickles, if the flow uses it.
    pub fn trickles(&self) -> Option<TricklesTarget> {
        if let OutboundSpec::Trickles(target) = self { Some(*target) } else { None }
    }
}

/// Form used in tables: `direct`, `10.0.0.1:7000`, `tunnel paris`, `trickles udp`.
impl fmt::Display for OutboundSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OutboundSpec::Direct => f.write_str("direct"),
            OutboundSpec::Hop(at) => at.fmt(f),
            OutboundSpec::Hops(list) => f.write_str(&list.names()),
            OutboundSpec::Auto(_) => f.write_str("auto"),
            OutboundSpec::Tunnel(name) if name.is_empty() => f.write_str("tunnel"),
            OutboundSpec::Tunnel(name) => write!(f, "tunnel {name}"),
            OutboundSpec::Trickles(TricklesTarget {
                formats: PacketFormats::Auto,
                key: None,
                ..
            }) => f.write_str("trickles"),
            OutboundSpec::Trickles(target) => write!(f, "trickles {target}"),
        }
    }
}
