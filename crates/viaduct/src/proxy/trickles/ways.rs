//! Packet formats of flows by Trickles.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use viaduct_proto::trickles::packet::{self, Format};

/// Permitted packet formats.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum Ways {
    /// Packets that look like TCP, if privileges allow it; UDP where these are not answered
    #[default]
    Auto,
    /// Packets that look like TCP; takes root or `CAP_NET_RAW` and `CAP_NET_ADMIN`
    Tcp,
    /// UDP datagrams
    Udp,
}

impl From<Ways> for packet::FormatChoice {
    fn from(ways: Ways) -> packet::FormatChoice {
        match ways {
            Ways::Auto => packet::FormatChoice::Any,
            Ways::Tcp => packet::FormatChoice::Only(Format::Tcp),
            Ways::Udp => packet::FormatChoice::Only(Format::Udp),
        }
    }
}

impl FromStr for Ways {
    type Err = String;

    fn from_str(text: &str) -> Result<Ways, String> {
        <Ways as ValueEnum>::from_str(text, false)
    }
}

impl fmt::Display for Ways {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ways::Auto => "auto",
            Ways::Tcp => "tcp",
            Ways::Udp => "udp",
        })
    }
}
