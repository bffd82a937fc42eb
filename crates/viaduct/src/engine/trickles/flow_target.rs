//! Parameters of flows over Trickles: the packet formats, and the server's key.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use viaduct_proto::keys::PublicKey;

use super::formats::PacketFormats;

/// Packet formats, encryption and early data of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct TricklesTarget {
    /// Permitted packet formats.
    pub formats: PacketFormats,
    /// Public key that the server must have. With a key, everything is encrypted: the flow fails
    /// rather than continue unencrypted, or over TCP.
    pub key: Option<PublicKey>,
    /// Time at which a connect is reported as successful.
    pub early: Early,
}

/// Time at which a program's connect is reported as successful. If that is before the server has
/// answered, the program's first bytes are sent in the first packet, and an answer that fits into
/// one packet arrives a round trip after the connect. But the program then sees a closed port as a
/// reset connection, not as a refusal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Early {
    /// After the server has answered.
    #[default]
    Never,
    /// Immediately if the server has answered over Trickles recently, otherwise after its answer.
    Known,
    /// Immediately.
    Always,
}

impl FromStr for Early {
    type Err = ();

    fn from_str(text: &str) -> Result<Early, ()> {
        match text {
            "never" => Ok(Early::Never),
            "known" => Ok(Early::Known),
            "always" => Ok(Early::Always),
            _ => Err(()),
        }
    }
}

impl From<PacketFormats> for TricklesTarget {
    fn from(formats: PacketFormats) -> TricklesTarget {
        TricklesTarget { formats, ..TricklesTarget::default() }
    }
}

/// Form used in tables, without `early`: `udp`, `auto encrypted to 01ab...`.
impl fmt::Display for TricklesTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.key {
            None => self.formats.fmt(f),
            Some(key) => write!(f, "{} encrypted to {key}", self.formats),
        }
    }
}

impl FromStr for TricklesTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<TricklesTarget, String> {
        let (formats, key) = match text.split_once(" encrypted to ") {
            None => (text, None),
            Some((formats, key)) => {
                (formats, Some(key.parse().map_err(|error| format!("{error}"))?))
            }
        };
        Ok(TricklesTarget { formats: formats.parse()?, key, ..TricklesTarget::default() })
    }
}

impl From<TricklesTarget> for String {
    fn from(target: TricklesTarget) -> String {
        target.to_string()
    }
}

impl TryFrom<String> for TricklesTarget {
    type Error = String;

    fn try_from(text: String) -> Result<TricklesTarget, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_read_as_it_is_written() {
        let key = Some("0a".repeat(32).parse().unwrap());
        for target in [
            TricklesTarget::default(),
            TricklesTarget { formats: PacketFormats::Udp, key, ..TricklesTarget::default() },
        ] {
            assert_eq!(target.to_string().parse(), Ok(target));
        }
        assert!("udp encrypted to me".parse::<TricklesTarget>().is_err());
    }
}
