//! Message in a UDP datagram:
//!
//! ```text
//!   byte  0, 1   5674   "Vt", in hexadecimal
//!         2             version 1 and role: 10 request, 11 answer, in hexadecimal
//!         3             request: running number; answer: index among the request's answers, from 0
//!         4..           the message
//! ```
//!
//! The kernel has verified lengths and checksums. Conntrack tracks datagrams only by their
//! addresses and ports.

use super::mark::{EXID, Role};
use super::stats::Refusal;

/// Bytes before the message.
pub const HEAD: usize = 4;

/// Length of the UDP header.
const HEADER: usize = 8;

/// Bytes of headers in each packet.
pub fn overhead(is_ipv4: bool) -> usize {
    (if is_ipv4 { 20 } else { 40 }) + HEADER + HEAD
}

/// The bytes before a message.
pub fn head(role: Role, count: u8) -> [u8; HEAD] {
    [EXID[0], EXID[1], role.byte(), count]
}

/// Parses the payload of a datagram: role, running number, and message. Errors: the reason why it
/// is not a Trickles packet.
pub fn parse(payload: &[u8]) -> Result<(Role, u8, &[u8]), Refusal> {
    let (&[a, b, role, count], message) = payload.split_first_chunk().ok_or(Refusal::Malformed)?;
    if [a, b] != EXID {
        return Err(Refusal::Unmarked);
    }
    Ok((Role::of(role).ok_or(Refusal::Unmarked)?, count, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_round_trip_and_others_are_refused() {
        let mut bytes = head(Role::Request, 9).to_vec();
        bytes.extend(b"message");
        assert_eq!(parse(&bytes), Ok((Role::Request, 9, &b"message"[..])));
        assert_eq!(parse(&bytes[..4]), Ok((Role::Request, 9, &[][..])));
        assert_eq!(parse(&bytes[..3]), Err(Refusal::Malformed));
        bytes[2] = 0x20;
        assert_eq!(parse(&bytes), Err(Refusal::Unmarked));
        assert_eq!(parse(b"GET / HTTP"), Err(Refusal::Unmarked));
    }
}
