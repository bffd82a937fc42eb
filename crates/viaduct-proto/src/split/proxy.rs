//! PROXY protocol, version 2: the first bytes of a flow, or the data of its SYN, carry the flow's
//! addresses (<https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>).
//!
//! ```text
//!   0..12   signature
//!      12   version 2 in the high half; command in the low: 0 local, 1 proxy
//!      13   family in the high half (1 IPv4, 2 IPv6), protocol in the low (1 stream)
//!  14, 15   length of the rest
//!     16..  source, destination, source port, destination port; then extensions (TLVs), skipped
//!           except for that of Viaduct ([`extension`](super::extension))
//! ```
//!
//! Extensions may fill 64 KiB; cloud load balancers send certificates in them. In a stream they
//! are therefore dropped as they arrive ([`start`]); in a SYN's data the header is parsed as a
//! whole ([`parse`]).

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::Parsed;
use super::extension::{Extension, Onward};
use crate::placement::Prefix;
use crate::reader::Reader;

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
const HEAD: usize = 16;

const LOCAL: u8 = 0x20;
const PROXY: u8 = 0x21;
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;

/// Source and destination of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Addresses {
    /// The client.
    pub source: SocketAddr,
    /// The server.
    pub destination: SocketAddr,
    /// Rest of the route, from the hop that gets the addresses.
    pub onward: Onward,
}

impl Addresses {
    /// Returns addresses for a hop that chooses the rest of the route.
    pub fn new(source: SocketAddr, destination: SocketAddr) -> Addresses {
        Addresses { source, destination, onward: Onward::Open }
    }
}

/// Header of the proxy's own connection (a health check).
pub const LOCAL_HEADER: [u8; HEAD] = *b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";

/// Header of the proxy's own connection that asks a hop for its round-trip times to `networks`.
pub fn query(networks: Vec<Prefix>) -> Vec<u8> {
    let extension = Extension::Query(networks).emit();
    let mut bytes = LOCAL_HEADER.to_vec();
    bytes[HEAD - 2..].copy_from_slice(&(extension.len() as u16).to_be_bytes());
    bytes.extend(extension);
    bytes
}

/// Header for a flow. If only one address is IPv4, it is mapped into IPv6.
pub fn emit(addresses: &Addresses) -> Vec<u8> {
    let Addresses { source, destination, onward } = addresses;
    let extension = Extension::Route(*onward).emit();
    let mut bytes = SIGNATURE.to_vec();
    match (source.ip(), destination.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            bytes.extend([PROXY, TCP4, 0, 12 + extension.len() as u8]);
            bytes.extend(from.octets());
            bytes.extend(to.octets());
        }
        (from, to) => {
            bytes.extend([PROXY, TCP6, 0, 36 + extension.len() as u8]);
            bytes.extend(mapped(from).octets());
            bytes.extend(mapped(to).octets());
        }
    }
    bytes.extend(source.port().to_be_bytes());
    bytes.extend(destination.port().to_be_bytes());
    bytes.extend(extension);
    bytes
}

/// Part of a header up to its addresses, and the extension of Viaduct, if it follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Addresses of the flow; `None` for the proxy's own connection (a health check).
    pub addresses: Option<Addresses>,
    /// Networks that the proxy's own connection asks for.
    pub query: Option<Vec<Prefix>>,
    /// Remaining bytes of the header, which are skipped.
    pub rest: usize,
}

/// Parses the header at the start of `bytes`, up to its addresses and the extension of Viaduct.
pub fn start(bytes: &[u8]) -> Parsed<Start> {
    let known = bytes.len().min(SIGNATURE.len());
    if bytes[..known] != SIGNATURE[..known] {
        return Parsed::Wrong("not PROXY protocol version 2");
    }
    let Some(head) = bytes.get(..HEAD) else { return Parsed::Short };
    let (command, family) = (head[12], head[13]);
    let whole = usize::from(u16::from_be_bytes([head[14], head[15]]));
    let needed = match (command, family) {
        (LOCAL, _) => 0,
        (PROXY, TCP4) => 12,
        (PROXY, TCP6) => 36,
        (PROXY, _) => return Parsed::Wrong("a PROXY header for a protocol other than TCP"),
        _ => return Parsed::Wrong("another version or command of the PROXY protocol"),
    };
    let Some(rest) = whole.checked_sub(needed) else {
        return Parsed::Wrong("a PROXY header without room for its addresses");
    };
    let Some(body) = bytes.get(HEAD..HEAD + needed) else { return Parsed::Short };
    let addresses = match needed {
        12 => addresses(Reader(body), |body| body.array::<4>().map(IpAddr::from)),
        _ => addresses(Reader(body), |body| Some(IpAddr::from(body.array::<16>()?).to_canonical())),
    };
    let start = |extension| match (addresses, extension) {
        (None, Some(Extension::Query(networks))) => (None, Some(networks)),
        (Some(addresses), Some(Extension::Route(onward))) => {
            (Some(Addresses { onward, ..addresses }), None)
        }
        _ => (addresses, None),
    };
    match Extension::parse(&bytes[HEAD + needed..], rest) {
        Parsed::Whole(extension, len) => {
            let (addresses, query) = start(extension);
            Parsed::Whole(Start { addresses, query, rest: rest - len }, HEAD + needed + len)
        }
        Parsed::Short => Parsed::Short,
        Parsed::Wrong(why) => Parsed::Wrong(why),
    }
}

/// Parses the header, with extensions, at the start of `bytes`; `None` for the proxy's
/// own connection.
pub fn parse(bytes: &[u8]) -> Parsed<Option<Addresses>> {
    match start(bytes) {
        Parsed::Whole(start, len) if bytes.len() - len >= start.rest => {
            Parsed::Whole(start.addresses, len + start.rest)
        }
        Parsed::Whole(..) | Parsed::Short => Parsed::Short,
        Parsed::Wrong(why) => Parsed::Wrong(why),
    }
}

/// Takes the addresses of a flow; `None` if there are none.
fn addresses(
    mut body: Reader<'_>,
    ip: impl Fn(&mut Reader<'_>) -> Option<IpAddr>,
) -> Option<Addresses> {
    let (from, to) = (ip(&mut body)?, ip(&mut body)?);
    let source = SocketAddr::new(from, body.u16()?);
    Some(Addresses::new(source, SocketAddr::new(to, body.u16()?)))
}

fn mapped(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}
