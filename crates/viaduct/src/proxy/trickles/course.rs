//! How flows go on by Trickles: by which packets, and to whom.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use viaduct_proto::keys::PublicKey;

use super::ways::Ways;

/// By which packets flows go on, and whether in clear.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Course {
    /// The packets that may be tried.
    pub ways: Ways,
    /// Who the server has to be: then all is encrypted, and flows end rather than go on in clear, also by
    /// TCP.
    pub key: Option<PublicKey>,
    /// When who connects is told that the server is there.
    pub early: Early,
}

/// When a program that connects is told that the server is there. Before the server has answered, what
/// the program says first goes in the first packet, and an answer that fits one comes a round trip after its
/// connect; but a port that nobody listens at is then told as a connection that breaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Early {
    /// When the server has answered.
    #[default]
    Never,
    /// At once where the server has answered by Trickles not long ago.
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

/// As in a table, which does not have `early`: `udp`, `auto encrypted to 01ab...`.
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
