//! Questions of DNS, and answers to them (RFC 1035), as far as programs' resolvers need.
//!
//! ```text
//!   0   id 2 │ flags 2: QR, opcode 4, AA, TC, RD │ RA, Z 3, rcode 4
//!   4   questions 2, 1 │ answers 2 │ authorities 2 │ others 2
//!   12  the question: labels of 1 to 63 bytes, a length before each, 0 at the end │ type 2 │ class 2
//!       the answer: c0 0c, the question's name │ type 2 │ class 2 │ seconds 4 │ length 2 │ what it is
//! ```
//!
//! What follows the question, such as EDNS, is not looked at.

use std::net::IpAddr;

/// Types of records.
pub const A: u16 = 1;
/// The name of an address.
pub const PTR: u16 = 12;
/// An address of IPv6.
pub const AAAA: u16 = 28;
/// The class of the Internet.
pub const IN: u16 = 1;

const HEADER: usize = 12;
/// The longest name, its lengths and its end among them.
const LONGEST: usize = 255;
const QUESTION_NAME: [u8; 2] = [0xc0, 0x0c];
/// How long an answer may be remembered, seconds: longer than a connect takes, no longer than that.
const SECONDS: u32 = 10;

/// A question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query<'a> {
    /// What tells it from the asker's others.
    pub id: u16,
    /// The asker wants it looked up for him.
    pub recursion: bool,
    /// The name that is asked for, in small letters, without a dot at its end; `None` if it is none of
    /// a host.
    pub name: Option<String>,
    /// The type of what is asked for.
    pub kind: u16,
    /// Its class.
    pub class: u16,
    /// The question as it was written.
    question: &'a [u8],
}

/// What a question is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// An address.
    Address(IpAddr),
    /// A name.
    Name(String),
    /// There is such a name, but nothing of this type.
    Nothing,
    /// There is no such name.
    NoName,
    /// This is not answered.
    Refused,
}

impl<'a> Query<'a> {
    /// The question that `packet` is, if it is one, and only one.
    pub fn parse(packet: &'a [u8]) -> Option<Query<'a>> {
        let (header, rest) = packet.split_at_checked(HEADER)?;
        let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        // A question, of the usual kind.
        if header[2] & 0xf8 != 0 || word(4) != 1 {
            return None;
        }
        let (name, length) = name(rest)?;
        let &[k0, k1, c0, c1] = rest.get(length..length + 4)? else { return None };
        Some(Query {
            id: word(0),
            recursion: header[2] & 1 != 0,
            name,
            kind: u16::from_be_bytes([k0, k1]),
            class: u16::from_be_bytes([c0, c1]),
            question: &rest[..length + 4],
        })
    }

    /// The packet that answers it.
    pub fn answer(&self, reply: &Reply) -> Vec<u8> {
        let code = match reply {
            Reply::Address(_) | Reply::Name(_) | Reply::Nothing => 0,
            Reply::NoName => 3,
            Reply::Refused => 5,
        };
        let data = match reply {
            Reply::Address(IpAddr::V4(ip)) => ip.octets().to_vec(),
            Reply::Address(IpAddr::V6(ip)) => ip.octets().to_vec(),
            Reply::Name(name) => labels(name),
            _ => Vec::new(),
        };
        let mut packet = self.id.to_be_bytes().to_vec();
        packet.extend([0x80 | u8::from(self.recursion), 0x80 | code]);
        packet.extend([0, 1, 0, u8::from(!data.is_empty()), 0, 0, 0, 0]);
        packet.extend(self.question);
        if !data.is_empty() {
            packet.extend(QUESTION_NAME);
            packet.extend([self.kind.to_be_bytes(), self.class.to_be_bytes()].concat());
            packet.extend(SECONDS.to_be_bytes());
            packet.extend((data.len() as u16).to_be_bytes());
            packet.extend(data);
        }
        packet
    }
}

/// The name at the start of a question, if it is one of a host, and how many bytes it takes; `None` if
/// it has no end, or refers to another, which the first name of a packet cannot.
fn name(bytes: &[u8]) -> Option<(Option<String>, usize)> {
    let (mut name, mut at, mut of_host) = (String::new(), 0, true);
    loop {
        let length = usize::from(*bytes.get(at)?);
        at += 1;
        if length == 0 {
            return Some((Some(name).filter(|name| of_host && !name.is_empty()), at));
        }
        let label = bytes.get(at..at + length).filter(|_| length < 64)?;
        at += length;
        if at >= LONGEST {
            return None;
        }
        of_host &= label.iter().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_'));
        if !name.is_empty() {
            name.push('.');
        }
        name.extend(label.iter().map(|c| char::from(c.to_ascii_lowercase())));
    }
}

/// A name as labels; nothing if it has none that fit.
fn labels(name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for label in name.split('.') {
        if !(1..64).contains(&label.len()) {
            return Vec::new();
        }
        bytes.push(label.len() as u8);
        bytes.extend(label.bytes());
    }
    bytes.push(0);
    bytes
}
