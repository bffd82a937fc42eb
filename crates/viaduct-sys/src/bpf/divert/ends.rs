//! The ends of a connection, as maps and events hold them: each an IPv6 address (IPv4 ones among them)
//! and a port in network order. Where a connect was meant to go, the port that its program
//! has bound, and the interface, stand behind.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Bytes of one end.
pub(super) const END: i16 = 24;
/// Where in an end the port stands that the program has bound its socket to, in this machine's order; 0 if it has not.
pub(super) const BOUND: i16 = 18;
/// Where the interface stands that the program has bound its socket to, in this machine's order.
pub(super) const INTERFACE: i16 = 20;
/// Bytes of both: the other end, the own one.
pub(super) const ENDS: usize = 2 * END as usize;

/// An IPv4 address among IPv6 ones: the word before it.
pub(super) const MAPPED: u32 = u32::from_ne_bytes([0, 0, 0xff, 0xff]);

/// Two ends.
pub(super) fn pair(peer: SocketAddr, own: SocketAddr) -> [u8; ENDS] {
    let mut ends = [0; ENDS];
    ends[..END as usize].copy_from_slice(&write(peer));
    ends[END as usize..].copy_from_slice(&write(own));
    ends
}

/// One end.
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

/// The end that `bytes` begin with.
pub(super) fn read(bytes: &[u8]) -> SocketAddr {
    let ip: [u8; 16] = bytes[..16].try_into().expect("sixteen");
    let port = u16::from_be_bytes([bytes[16], bytes[17]]);
    SocketAddr::new(Ipv6Addr::from(ip).to_canonical(), port)
}

/// The end that a connect was meant to go to.
pub(super) fn read_meant(bytes: &[u8]) -> SocketAddr {
    let interface = bytes[INTERFACE as usize..][..4].try_into().expect("four");
    match read(bytes) {
        // Without its interface it says nothing.
        SocketAddr::V6(at) if at.ip().is_unicast_link_local() => {
            SocketAddrV6::new(*at.ip(), at.port(), 0, u32::from_ne_bytes(interface)).into()
        }
        at => at,
    }
}
