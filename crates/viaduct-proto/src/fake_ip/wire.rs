//! DNS queries and answers (RFC 1035), as far as programs' resolvers need them.
//!
//! ```text
//!   0   id 2 │ flags 2: QR, opcode 4, AA, TC, RD │ RA, Z 3, rcode 4
//!   4   questions 2 (= 1) │ answers 2 │ authority 2 │ additional 2
//!   12  question: labels of 1 to 63 bytes, each after its length, then 0 │ type 2 │ class 2
//!       answer: c0 0c, the question's name │ type 2 │ class 2 │ TTL 4 │ length 2 │ data
//! ```
//!
//! Numbers after a field are its length in bytes; in the flags, in bits. Bytes after the question,
//! such as EDNS, are ignored.

use std::net::IpAddr;

/// Record type of an IPv4 address.
pub const A: u16 = 1;
/// Record type of the host name of an address (reverse look-up).
pub const PTR: u16 = 12;
/// Record type of an IPv6 address.
pub const AAAA: u16 = 28;
/// Internet class.
pub const IN: u16 = 1;

const HEADER: usize = 12;
/// Maximum length of a name in bytes, including its length bytes and its end.
const LONGEST: usize = 255;
const QUESTION_NAME: [u8; 2] = [0xc0, 0x0c];
/// TTL of answers, in seconds: slightly longer than a connect takes.
const SECONDS: u32 = 10;

/// DNS query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query<'a> {
    /// Transaction ID.
    pub id: u16,
    /// True if recursion is desired.
    pub recursion: bool,
    /// Queried name in lower case, without a trailing dot; `None` if it is not a host name.
    pub name: Option<String>,
    /// Record type.
    pub kind: u16,
    /// Record class.
    pub class: u16,
    /// Question section as received.
    question: &'a [u8],
}

/// Answer to a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Address record.
    Address(IpAddr),
    /// Host name (PTR record).
    Name(String),
    /// No data: the name exists, but has no record of this type.
    Nothing,
    /// No such name.
    NoName,
    /// Refused.
    Refused,
}

impl<'a> Query<'a> {
    /// Parses a query. `None` unless it is a standard query with exactly one question, whose name
    /// is well formed.
    pub fn parse(packet: &'a [u8]) -> Option<Query<'a>> {
        let (header, rest) = packet.split_at_checked(HEADER)?;
        let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        // Only a standard query with one question is parsed.
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

    /// Returns the packet that answers the query.
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

/// Reads the name at the start of a question. Returns the name if it is a host name, and the number
/// of bytes read. `None` if the name has no end, is longer than [`LONGEST`], or contains a pointer,
/// which the first name of a packet cannot contain.
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

/// Encodes a name as labels; empty if a label is empty or too long.
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
