//! Packet formats of flows over Trickles.

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
pub enum PacketFormats {
    /// Packets that look like TCP, if privileges allow it; UDP if these are not answered
    #[default]
    Auto,
    /// Packets that look like TCP; needs root or `CAP_NET_RAW` and `CAP_NET_ADMIN`
    Tcp,
    /// UDP datagrams
    Udp,
}

impl From<PacketFormats> for packet::FormatChoice {
    fn from(formats: PacketFormats) -> packet::FormatChoice {
        match formats {
            PacketFormats::Auto => packet::FormatChoice::Any,
            PacketFormats::Tcp => packet::FormatChoice::Only(Format::Tcp),
            PacketFormats::Udp => packet::FormatChoice::Only(Format::Udp),
        }
    }
}

impl FromStr for PacketFormats {
    type Err = String;

    fn from_str(text: &str) -> Result<PacketFormats, String> {
        <PacketFormats as ValueEnum>::from_str(text, false)
    }
}

impl fmt::Display for PacketFormats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
    }
}
