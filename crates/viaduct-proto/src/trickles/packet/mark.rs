//! The TCP option that tells a Trickles packet from TCP, the first option of its header:
//!
//! ```text
//!   byte  0     253    experimental (RFC 4727)
//!         1      12    length of the option
//!         2, 3  5674   ExID "Vt", Viaduct trickle (RFC 6994), in hexadecimal
//!         4      10    version 1, and whose it is: 10 a request, 11 an answer
//!         5            a request's running number; which answer to its request it is, from 0
//!         6, 7         length of the message
//!         8..12        request: how far ahead of its acknowledgement number the answers shall stand;
//!                      answer: what the request said
//! ```
//!
//! The running number makes neighbours differ, so that nobody who coalesces segments (GRO, LRO), which
//! must have equal options for that, joins two packets; the length shows it if somebody does. Packets that were cut out of
//! one ([`super::run`]) are alike, and may be joined again: the length says where each message ends.

use crate::split::option::KIND;

/// Bytes of the option.
pub const LEN: usize = 12;
/// What tells it from other experiments; `Vh` is [`crate::split::option`].
pub const EXID: [u8; 2] = *b"Vt";
/// Its first four bytes: what a filter compares.
pub const WORD: u32 = u32::from_be_bytes([KIND, LEN as u8, EXID[0], EXID[1]]);
/// Where a packet says whose it is, counted from the option's first byte.
pub const ROLE_AT: usize = 4;

const VERSION: u8 = 1 << 4;

/// Whose packet it is. One end never takes what is meant for the other: two servers that were made
/// believe that they are each other's clients would answer each other for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// A client's.
    Request,
    /// A server's.
    Answer,
}

impl Role {
    /// The byte that says so, and which version this is.
    pub const fn byte(self) -> u8 {
        match self {
            Role::Request => VERSION,
            Role::Answer => VERSION | 1,
        }
    }

    /// What such a byte says; `None` in another version.
    pub fn of(byte: u8) -> Option<Role> {
        [Role::Request, Role::Answer].into_iter().find(|role| role.byte() == byte)
    }
}

/// What the option says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Whose packet it is.
    pub role: Role,
    /// A request's running number; an answer's number among those to its request.
    pub count: u8,
    /// Bytes of the message; of several, of each.
    pub length: u16,
    /// Bytes between the request's acknowledgement number and where the answers stand.
    pub ahead: u32,
}

impl Mark {
    /// The option, byte by byte.
    pub fn emit(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..4].copy_from_slice(&WORD.to_be_bytes());
        (bytes[ROLE_AT], bytes[5]) = (self.role.byte(), self.count);
        bytes[6..8].copy_from_slice(&self.length.to_be_bytes());
        bytes[8..].copy_from_slice(&self.ahead.to_be_bytes());
        bytes
    }

    /// From the options of a TCP header, of which it must be the first; `None` if it is not there or of
    /// another version.
    pub fn parse(options: &[u8]) -> Option<Mark> {
        let bytes = options.first_chunk::<LEN>()?;
        let [a, b, c, d, role, count, e, f, g, h, i, j] = *bytes;
        let marked = u32::from_be_bytes([a, b, c, d]) == WORD;
        let role = Role::of(role).filter(|_| marked)?;
        let (length, ahead) = (u16::from_be_bytes([e, f]), u32::from_be_bytes([g, h, i, j]));
        Some(Mark { role, count, length, ahead })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_bytes_are_those_of_the_page() {
        let mark = Mark { role: Role::Answer, count: 7, length: 1448, ahead: 0x0102_0304 };
        let bytes = [253, 12, b'V', b't', 0x11, 7, 0x05, 0xa8, 1, 2, 3, 4];
        assert_eq!(mark.emit(), bytes);
        assert_eq!(Mark::parse(&bytes), Some(mark));
        for (at, wrong) in [(0, 254), (1, 13), (3, b'h'), (4, 0x20), (4, 0x12)] {
            let mut other = bytes;
            other[at] = wrong;
            assert_eq!(Mark::parse(&other), None);
        }
        assert_eq!(Mark::parse(&bytes[..11]), None);
    }
}
