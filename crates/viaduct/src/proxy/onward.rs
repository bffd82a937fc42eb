//! Onward routes of flows.

use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::trickles::{Course, Ways};

/// Onward route of a flow: to its server, or by way of another program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Onward {
    /// Directly to the server.
    #[default]
    Direct,
    /// By the hop at this address.
    Hop(SocketAddr),
    /// Through the tunnel of this name; empty for the unnamed one.
    Tunnel(String),
    /// To the server by Trickles; by TCP where the server knows nothing else, unless all is to
    /// be encrypted.
    Trickles(Course),
}

impl Onward {
    /// Address of the hop, if the flow goes by one.
    pub fn hop(&self) -> Option<SocketAddr> {
        match self {
            Onward::Hop(at) => Some(*at),
            Onward::Direct | Onward::Tunnel(_) | Onward::Trickles(_) => None,
        }
    }

    /// Name of the tunnel, if the flow goes through one.
    pub fn tunnel(&self) -> Option<&str> {
        match self {
            Onward::Tunnel(name) => Some(name),
            Onward::Direct | Onward::Hop(_) | Onward::Trickles(_) => None,
        }
    }

    /// Parameters of Trickles, if the flow goes by it.
    pub fn trickles(&self) -> Option<Course> {
        match self {
            Onward::Trickles(course) => Some(*course),
            Onward::Direct | Onward::Hop(_) | Onward::Tunnel(_) => None,
        }
    }
}

/// Form used in tables: `direct`, `10.0.0.1:7000`, `tunnel paris`, `trickles udp`.
impl fmt::Display for Onward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Onward::Direct => f.write_str("direct"),
            Onward::Hop(at) => at.fmt(f),
            Onward::Tunnel(name) if name.is_empty() => f.write_str("tunnel"),
            Onward::Tunnel(name) => write!(f, "tunnel {name}"),
            Onward::Trickles(Course { ways: Ways::Auto, key: None, .. }) => f.write_str("trickles"),
            Onward::Trickles(course) => write!(f, "trickles {course}"),
        }
    }
}
