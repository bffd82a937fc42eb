//! Encoding of a connection's endpoints in maps and events: an IPv6 address (IPv4 addresses are
//! mapped) and a port in network order. In the destination of a connect, these are followed by the
//! port and the interface to which the program has bound the socket.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Bytes of one endpoint.
pub(super) const END: i16 = 24;
/// Offset, in an endpoint, of the port that the program has bound, in host byte order; 0 if none.
pub(super) const BOUND: i16 = 18;
/// Offset, in an endpoint, of the index of the interface to which the program has bound the socket,
/// in host byte order.
pub(super) const INTERFACE: i16 = 20;
/// Bytes of two endpoints: the peer's, and then the socket's own.
pub(super) const ENDS: usize = 2 * END as usize;

/// Third word of an IPv4-mapped IPv6 address; the fourth is the IPv4 address.
pub(super) const MAPPED: u32 = u32::from_ne_bytes([0, 0, 0xff, 0xff]);

/// Encodes two endpoints.
pub(super) fn pair(peer: SocketAddr, own: SocketAddr) -> [u8; ENDS] {
    let mut ends = [0; ENDS];
    ends[..END as usize].copy_from_slice(&write(peer));
    ends[END as usize..].copy_from_slice(&write(own));
    ends
}

pub(super) fn write(at: SocketAddr) -> [u8; END as usize] {
    let ip = match at.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut end = [0; END as usize];
    end[..16].copy_from_slice(&ip.octets());
    end[16..18].copy_from_slice(&at.port().to_be_bytes());
    end
}

/// Decodes the endpoint at the start of `bytes`.
pub(super) fn read(bytes: &[u8]) -> SocketAddr {
    let ip: [u8; 16] = bytes[..16].try_into().expect("sixteen");
    let port = u16::from_be_bytes([bytes[16], bytes[17]]);
    SocketAddr::new(Ipv6Addr::from(ip).to_canonical(), port)
}

/// Decodes the intended destination of a connect.
pub(super) fn read_meant(bytes: &[u8]) -> SocketAddr {
    let interface = bytes[INTERFACE as usize..][..4].try_into().expect("four");
    match read(bytes) {
        // A link-local address has no meaning without its interface.
        SocketAddr::V6(at) if at.ip().is_unicast_link_local() => {
            SocketAddrV6::new(*at.ip(), at.port(), 0, u32::from_ne_bytes(interface)).into()
        }
        at => at,
    }
}
