//! How a flow goes on from here.

use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::trickles::{Course, Ways};

/// How a flow goes on: to its server, or by something that brings it there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Onward {
    /// Straight to its server.
    #[default]
    Direct,
    /// By the hop that listens there.
    Hop(SocketAddr),
    /// Through the tunnel of this name; of the one that needs none it is empty.
    Tunnel(String),
    /// To its server by Trickles; by TCP where that knows nothing else, unless all is to be encrypted.
    Trickles(Course),
}

impl Onward {
    /// The hop, if it goes by one.
    pub fn hop(&self) -> Option<SocketAddr> {
        match self {
            Onward::Hop(at) => Some(*at),
            Onward::Direct | Onward::Tunnel(_) | Onward::Trickles(_) => None,
        }
    }

    /// The tunnel's name, if it goes through one.
    pub fn tunnel(&self) -> Option<&str> {
        match self {
            Onward::Tunnel(name) => Some(name),
            Onward::Direct | Onward::Hop(_) | Onward::Trickles(_) => None,
        }
    }

    /// In which manner, if it goes by Trickles.
    pub fn trickles(&self) -> Option<Course> {
        match self {
            Onward::Trickles(course) => Some(*course),
            Onward::Direct | Onward::Hop(_) | Onward::Tunnel(_) => None,
        }
    }
}

/// As in a table: `direct`, `10.0.0.1:7000`, `tunnel paris`, `trickles udp`.
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
