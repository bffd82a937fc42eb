//! TCP option that carries a flow's addresses in its SYN (Miniproxy, section 5).
//!
//! ```text
//!   byte  0     253   experimental (RFC 4727)
//!         1      16   length of the option
//!         2, 3 5668   ExID "Vh", Viaduct hop (RFC 6994), in hexadecimal
//!         4..8        source address (IPv4)
//!         8..12       destination address (IPv4)
//!        12, 13       source port
//!        14, 15       destination port
//! ```
//!
//! All numbers are in network byte order. A SYN has 40 bytes for options, of which Linux uses 20:
//! an IPv6 pair (40 bytes) does not fit, and is sent with [`proxy`](super::proxy) instead. Hosts
//! that do not know the option ignore it (RFC 9293, 3.1).

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};

use super::extension::Onward;
use super::proxy::Addresses;

/// Kind of experimental options.
pub const KIND: u8 = 253;
/// Length of the option in bytes.
pub const LEN: usize = 16;
/// Experiment identifier (RFC 6994).
pub const EXID: [u8; 2] = *b"Vh";

const END: u8 = 0;
const NOP: u8 = 1;

/// Source and destination of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hop {
    /// The client.
    pub source: SocketAddrV4,
    /// The server.
    pub destination: SocketAddrV4,
}

/// Offset of the source address in the option.
pub const SOURCE: usize = 4;
/// Offset of the destination address.
pub const DESTINATION: usize = 8;
/// Offset of the source port.
pub const SOURCE_PORT: usize = 12;
/// Offset of the destination port.
pub const DESTINATION_PORT: usize = 14;

impl Hop {
    /// Option for a flow; `None` if an address is neither IPv4 nor IPv4-mapped, or if the rest of
    /// the route was chosen, for which the option has no room.
    pub fn of(told: &Addresses) -> Option<Hop> {
        if told.onward != Onward::Open {
            return None;
        }
        let v4 = |at: SocketAddr| match at.ip().to_canonical() {
            IpAddr::V4(ip) => Some(SocketAddrV4::new(ip, at.port())),
            IpAddr::V6(_) => None,
        };
        Some(Hop { source: v4(told.source)?, destination: v4(told.destination)? })
    }

    /// Serializes the option.
    pub fn emit(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..2].copy_from_slice(&[KIND, LEN as u8]);
        bytes[2..4].copy_from_slice(&EXID);
        bytes[SOURCE..][..4].copy_from_slice(&self.source.ip().octets());
        bytes[DESTINATION..][..4].copy_from_slice(&self.destination.ip().octets());
        bytes[SOURCE_PORT..][..2].copy_from_slice(&self.source.port().to_be_bytes());
        bytes[DESTINATION_PORT..].copy_from_slice(&self.destination.port().to_be_bytes());
        bytes
    }

    /// Parses an option, including its kind and length; `None` if it is another option, or its
    /// destination has no address or port.
    pub fn parse(option: &[u8]) -> Option<Hop> {
        let bytes: &[u8; LEN] = option.try_into().ok()?;
        if bytes[..2] != [KIND, LEN as u8] || bytes[2..4] != EXID {
            return None;
        }
        let ip = |at: usize| Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]);
        let port = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let destination = SocketAddrV4::new(ip(DESTINATION), port(DESTINATION_PORT));
        let routable = destination.port() != 0 && !destination.ip().is_unspecified();
        let source = SocketAddrV4::new(ip(SOURCE), port(SOURCE_PORT));
        routable.then_some(Hop { source, destination })
    }

    /// First hop option among the options of a TCP header.
    pub fn find(options: &[u8]) -> Option<Hop> {
        each(options).find_map(Hop::parse)
    }
}

/// Iterates over a TCP header's options that have a length, up to the first invalid one.
pub fn each(options: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = options;
    std::iter::from_fn(move || {
        while let [NOP, others @ ..] = rest {
            rest = others;
        }
        let len = match *rest {
            [] | [END, ..] => return None,
            [_, len, ..] if len >= 2 => usize::from(len),
            _ => return None,
        };
        let (option, others) = rest.split_at_checked(len)?;
        rest = others;
        Some(option)
    })
}
