//! Parameters of flows by Trickles: the packet formats, and the server's key.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use viaduct_proto::keys::PublicKey;

use super::ways::Ways;

/// Packet formats, encryption and early data of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Course {
    /// Permitted packet formats.
    pub ways: Ways,
    /// Public key that the server must have. With a key all is encrypted: the flow ends rather
    /// than go on in clear, or by TCP.
    pub key: Option<PublicKey>,
    /// Time at which a connect is reported as successful.
    pub early: Early,
}

/// Time at which a program's connect is reported as successful. Before the server has answered,
/// the program's first bytes go in the first packet, and an answer that fits one packet comes a
/// round trip after the connect. The cost: a closed port is then seen as a connection that
/// breaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Early {
    /// After the server has answered.
    #[default]
    Never,
    /// At once where the server has answered by Trickles recently.
    Known,
    /// At once.
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

impl From<Ways> for Course {
    fn from(ways: Ways) -> Course {
        Course { ways, ..Course::default() }
    }
}

/// Form used in tables, without `early`: `udp`, `auto encrypted to 01ab...`.
impl fmt::Display for Course {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.key {
            None => self.ways.fmt(f),
            Some(key) => write!(f, "{} encrypted to {key}", self.ways),
        }
    }
}

impl FromStr for Course {
    type Err = String;

    fn from_str(text: &str) -> Result<Course, String> {
        let (ways, key) = match text.split_once(" encrypted to ") {
            None => (text, None),
            Some((ways, key)) => (ways, Some(key.parse().map_err(|error| format!("{error}"))?)),
        };
        Ok(Course { ways: ways.parse()?, key, ..Course::default() })
    }
}

impl From<Course> for String {
    fn from(course: Course) -> String {
        course.to_string()
    }
}

impl TryFrom<String> for Course {
    type Error = String;

    fn try_from(text: String) -> Result<Course, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_course_is_read_as_it_is_written() {
        let key = Some("0a".repeat(32).parse().unwrap());
        for course in [Course::default(), Course { ways: Ways::Udp, key, ..Course::default() }] {
            assert_eq!(course.to_string().parse(), Ok(course));
        }
        assert!("udp encrypted to me".parse::<Course>().is_err());
    }
}
