//! Outbound routes of flows.

use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::trickles::{PacketFormats, TricklesTarget};

/// Outbound route of a flow: to its server, or by way of another program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outbound {
    /// Directly to the server.
    #[default]
    Direct,
    /// By the hop at this address.
    Hop(SocketAddr),
    /// Through the tunnel of this name; empty for the unnamed one.
    Tunnel(String),
    /// To the server by Trickles; by TCP where the server knows nothing else, unless all is to
    /// be encrypted.
    Trickles(TricklesTarget),
}

impl Outbound {
    /// Address of the hop, if the flow goes by one.
    pub fn hop(&self) -> Option<SocketAddr> {
        match self {
            Outbound::Hop(at) => Some(*at),
            Outbound::Direct | Outbound::Tunnel(_) | Outbound::Trickles(_) => None,
        }
    }

    /// Name of the tunnel, if the flow goes through one.
    pub fn tunnel(&self) -> Option<&str> {
        match self {
            Outbound::Tunnel(name) => Some(name),
            Outbound::Direct | Outbound::Hop(_) | Outbound::Trickles(_) => None,
        }
    }

    /// Parameters of Trickles, if the flow goes by it.
    pub fn trickles(&self) -> Option<TricklesTarget> {
        match self {
            Outbound::Trickles(target) => Some(*target),
            Outbound::Direct | Outbound::Hop(_) | Outbound::Tunnel(_) => None,
        }
    }
}

/// Form used in tables: `direct`, `10.0.0.1:7000`, `tunnel paris`, `trickles udp`.
impl fmt::Display for Outbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outbound::Direct => f.write_str("direct"),
            Outbound::Hop(at) => at.fmt(f),
            Outbound::Tunnel(name) if name.is_empty() => f.write_str("tunnel"),
            Outbound::Tunnel(name) => write!(f, "tunnel {name}"),
            Outbound::Trickles(TricklesTarget {
                formats: PacketFormats::Auto, key: None, ..
            }) => f.write_str("trickles"),
            Outbound::Trickles(target) => write!(f, "trickles {target}"),
        }
    }
}
