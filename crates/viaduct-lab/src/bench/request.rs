//! Request of a benchmark client: the first bytes of a connection.

use std::io::{self, Read};

use super::Content;

/// Encoded length of a request, in bytes.
const LENGTH: usize = 10;

/// Kind of traffic on the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The server writes.
    Read,
    /// The client writes; at the end the server reports what it received.
    Write,
    /// Exchange of single bytes, repeated.
    Volley,
}

/// A complete request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// Kind of traffic.
    pub(super) kind: Kind,
    /// Content of the bytes.
    pub(super) content: Content,
    /// Block size in bytes of the server's writes or reads.
    pub(super) block: u32,
    /// Total in thousands of bytes; 0 means unlimited.
    pub(super) thousands: u32,
}

impl Request {
    /// Encodes the request for the connection.
    pub(super) fn to_bytes(self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[0] = self.kind as u8;
        bytes[1] = self.content as u8;
        bytes[2..6].copy_from_slice(&self.block.to_be_bytes());
        bytes[6..].copy_from_slice(&self.thousands.to_be_bytes());
        bytes
    }

    /// Reads and decodes a request. Fails if the request is malformed or the connection broke.
    pub(super) fn read(stream: &mut impl Read) -> io::Result<Request> {
        let mut bytes = [0; LENGTH];
        stream.read_exact(&mut bytes)?;
        let [kind, content, a, b, c, d, thousands @ ..] = bytes;
        let kinds = [Kind::Read, Kind::Write, Kind::Volley];
        let kind = kinds.into_iter().find(|known| *known as u8 == kind);
        let content = Content::ALL.into_iter().find(|known| *known as u8 == content);
        let wrong = io::ErrorKind::InvalidData;
        Ok(Request {
            kind: kind.ok_or(wrong)?,
            content: content.ok_or(wrong)?,
            block: u32::from_be_bytes([a, b, c, d]),
            thousands: u32::from_be_bytes(thousands),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_decoded_as_it_was_encoded() {
        for (kind, content) in [(Kind::Volley, Content::Same), (Kind::Read, Content::Text)] {
            let request = Request { kind, content, block: 70_000, thousands: 100_000 };
            assert_eq!(Request::read(&mut &request.to_bytes()[..]).unwrap(), request);
        }
        assert!(Request::read(&mut &[9; LENGTH][..]).is_err());
    }
}
