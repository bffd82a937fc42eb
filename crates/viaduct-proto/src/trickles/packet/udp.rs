//! Message in a UDP datagram:
//!
//! ```text
//!   byte  0, 1   5674   "Vt", in hexadecimal
//!         2       10    version 1, and whose it is: 10 a request, 11 an answer
//!         3             a request's running number; which answer to its request it is, from 0
//!         4..           the message
//! ```
//!
//! The kernel has verified lengths and checksums. Conntrack needs only the ports of a datagram.

use std::net::SocketAddr;

use super::checksum::transport;
use super::mark::{EXID, Role};
use super::stats::Refusal;
use super::tcp::ip_header;

/// Bytes before the message.
pub const HEAD: usize = 4;

const UDP: u8 = 17;
/// Length of the UDP header.
const HEADER: usize = 8;

/// Bytes of headers in each packet.
pub fn overhead(is_ipv4: bool) -> usize {
    (if is_ipv4 { 20 } else { 40 }) + HEADER + HEAD
}

/// Builds the whole IP packet of a datagram, for a sender that does not own the source port.
/// Both addresses are of one family.
pub fn emit(from: SocketAddr, to: SocketAddr, payload: &[u8], packet: &mut Vec<u8>) {
    packet.clear();
    let total = overhead(to.is_ipv4()) - HEAD + payload.len();
    ip_header(from.ip(), to.ip(), UDP, total, packet);
    let at = packet.len();
    packet.extend(from.port().to_be_bytes());
    packet.extend(to.port().to_be_bytes());
    packet.extend(((HEADER + payload.len()) as u16).to_be_bytes());
    packet.extend([0; 2]);
    packet.extend_from_slice(payload);
    // A checksum of 0 would mean that there is none.
    let sum = match transport(from.ip(), to.ip(), UDP, &packet[at..]) {
        0 => u16::MAX,
        sum => sum,
    };
    packet[at + 6..at + 8].copy_from_slice(&sum.to_be_bytes());
}

/// The bytes before a message.
pub fn head(role: Role, count: u8) -> [u8; HEAD] {
    [EXID[0], EXID[1], role.byte(), count]
}

/// Parses the payload of a datagram: role, running number, and message.
///
/// # Errors
/// The reason why it is not a packet of ours.
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
    fn a_whole_packet_of_either_family_has_its_lengths_and_a_right_checksum() {
        for [from, to] in [["10.0.0.1:80", "10.0.0.2:9"], ["[fd00::1]:80", "[fd00::2]:9"]] {
            let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
            let mut packet = Vec::new();
            emit(from, to, b"payload", &mut packet);
            let header = crate::wire::ip::Header::parse(&packet).unwrap();
            assert_eq!((header.source, header.destination), (from.ip(), to.ip()));
            assert_eq!((header.protocol, header.total_len), (UDP, packet.len()));
            let datagram = &packet[header.header_len..];
            assert_eq!(transport(from.ip(), to.ip(), UDP, datagram), 0);
            assert_eq!(datagram[..6], [0, 80, 0, 9, 0, 15]);
            assert_eq!(&datagram[8..], b"payload");
        }
    }

    #[test]
    fn what_was_written_is_read_and_nothing_else() {
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
