//! TCP option that marks a Trickles packet; it is the first option of the header:
//!
//! ```text
//!   byte  0     253    experimental (RFC 4727)
//!         1      12    length of the option
//!         2, 3  5674   ExID "Vt", Viaduct trickle (RFC 6994), in hexadecimal
//!         4            version 1 and role: 10 request, 11 answer, in hexadecimal
//!         5            request: running number; answer: index among the request's answers, from 0
//!         6, 7         length of the message
//!         8..12        request: offset of the answers' numbers from its acknowledgement number;
//!                      answer: copied from the request
//! ```
//!
//! Because of the running number, consecutive packets have different options, so segment coalescing
//! (GRO, LRO), which requires equal options, does not join them. If a device joins two packets
//! nevertheless, the length reveals this. Packets that were split from a run ([`super::run`]) have
//! equal options, and may be joined again: the length tells where each message ends.

use crate::split::option::KIND;

/// Length of the option in bytes.
pub const LEN: usize = 12;
/// ExID of Trickles. [`crate::split::option`] has `Vh`.
pub const EXID: [u8; 2] = *b"Vt";
/// First four bytes of the option, which a filter compares.
pub const WORD: u32 = u32::from_be_bytes([KIND, LEN as u8, EXID[0], EXID[1]]);
/// Offset of the role in the option.
pub const ROLE_AT: usize = 4;

const VERSION: u8 = 1 << 4;

/// Direction of a packet. Neither end accepts packets meant for the other. Otherwise forged packets
/// could make two servers answer each other forever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// From a client.
    Request,
    /// From a server.
    Answer,
}

impl Role {
    /// Byte with role and version.
    pub const fn byte(self) -> u8 {
        match self {
            Role::Request => VERSION,
            Role::Answer => VERSION | 1,
        }
    }

    /// Parses the byte with role and version; `None` if it is of another version.
    pub fn of(byte: u8) -> Option<Role> {
        [Role::Request, Role::Answer].into_iter().find(|role| role.byte() == byte)
    }
}

/// Content of the option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Direction of the packet.
    pub role: Role,
    /// Running number of a request; of an answer, its index among the answers to its request.
    pub count: u8,
    /// Length of the message in bytes; in a run, of each message.
    pub length: u16,
    /// Offset of the answers' sequence numbers from the request's acknowledgement number, in bytes.
    pub ahead: u32,
}

impl Mark {
    /// The option in wire format.
    pub fn emit(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..4].copy_from_slice(&WORD.to_be_bytes());
        (bytes[ROLE_AT], bytes[5]) = (self.role.byte(), self.count);
        bytes[6..8].copy_from_slice(&self.length.to_be_bytes());
        bytes[8..].copy_from_slice(&self.ahead.to_be_bytes());
        bytes
    }

    /// Parses the mark, which must be the first of a TCP header's `options`. `None` if it is
    /// missing or of another version.
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
    fn the_wire_format_is_the_documented_one() {
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
