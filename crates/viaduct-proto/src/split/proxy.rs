//! PROXY protocol, version 2: a flow's addresses in its first bytes, or in the data of its SYN
//! (<https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>).
//!
//! ```text
//!   0..12   signature
//!      12   version 2 in the high half; command in the low: 0 local, 1 proxy
//!      13   family in the high half (1 IPv4, 2 IPv6), protocol in the low (1 stream)
//!  14, 15   length of what follows
//!     16..  source, destination, source port, destination port; then extensions, skipped here
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::Parsed;

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
const HEAD: usize = 16;
/// Longest header that is taken: addresses, and extensions as far as they make sense.
pub const LONGEST: usize = 536;

const LOCAL: u8 = 0x20;
const PROXY: u8 = 0x21;
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;

/// Where a flow comes from and goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Addresses {
    /// The client.
    pub source: SocketAddr,
    /// The server.
    pub destination: SocketAddr,
}

/// The header for a flow. An IPv4 address beside an IPv6 one is mapped.
pub fn emit(addresses: &Addresses) -> Vec<u8> {
    let Addresses { source, destination } = addresses;
    let mut bytes = SIGNATURE.to_vec();
    match (source.ip(), destination.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            bytes.extend([PROXY, TCP4, 0, 12]);
            bytes.extend(from.octets());
            bytes.extend(to.octets());
        }
        (from, to) => {
            bytes.extend([PROXY, TCP6, 0, 36]);
            bytes.extend(mapped(from).octets());
            bytes.extend(mapped(to).octets());
        }
    }
    bytes.extend(source.port().to_be_bytes());
    bytes.extend(destination.port().to_be_bytes());
    bytes
}

/// The header at the start of `bytes`; `None` inside it for a connection of the proxy's own (a
/// health check), which goes nowhere.
pub fn parse(bytes: &[u8]) -> Parsed<Option<Addresses>> {
    let known = bytes.len().min(SIGNATURE.len());
    if bytes[..known] != SIGNATURE[..known] {
        return Parsed::Wrong("no PROXY protocol version 2");
    }
    let Some(head) = bytes.get(..HEAD) else { return Parsed::Short };
    let (command, family) = (head[12], head[13]);
    let len = HEAD + usize::from(u16::from_be_bytes([head[14], head[15]]));
    if len > LONGEST {
        return Parsed::Wrong("a PROXY header that is too long");
    }
    let Some(body) = bytes.get(HEAD..len) else { return Parsed::Short };
    match (command, family) {
        (LOCAL, _) => Parsed::Whole(None, len),
        (PROXY, TCP4) if body.len() >= 12 => {
            let ip =
                |at: usize| Ipv4Addr::from([body[at], body[at + 1], body[at + 2], body[at + 3]]);
            Parsed::Whole(Some(addresses(ip(0).into(), ip(4).into(), &body[8..12])), len)
        }
        (PROXY, TCP6) if body.len() >= 36 => {
            let ip = |at: usize| {
                let mut octets = [0; 16];
                octets.copy_from_slice(&body[at..at + 16]);
                IpAddr::from(Ipv6Addr::from(octets)).to_canonical()
            };
            Parsed::Whole(Some(addresses(ip(0), ip(16), &body[32..36])), len)
        }
        (PROXY, TCP4 | TCP6) => Parsed::Wrong("a PROXY header without room for its addresses"),
        (PROXY, _) => Parsed::Wrong("a PROXY header of another protocol than TCP"),
        _ => Parsed::Wrong("another version or command of the PROXY protocol"),
    }
}

fn addresses(from: IpAddr, to: IpAddr, ports: &[u8]) -> Addresses {
    let port = |at: usize| u16::from_be_bytes([ports[at], ports[at + 1]]);
    Addresses { source: SocketAddr::new(from, port(0)), destination: SocketAddr::new(to, port(2)) }
}

fn mapped(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}
