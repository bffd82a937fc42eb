//! Recognition of the gateways' own datagrams among the captured packets.

use std::net::{IpAddr, SocketAddr};

use viaduct_proto::wire::ip::Header;

const UDP: u8 = 17;
const UDP_HEADER: usize = 8;

/// Source and payload of a UDP datagram to `port` of this gateway; `None` for other packets.
/// `receives` returns whether an address is this gateway's.
pub fn datagram(
    packet: &mut [u8],
    port: u16,
    receives: impl FnOnce(IpAddr) -> bool,
) -> Option<(SocketAddr, &mut [u8])> {
    let (from, to, payload) = udp(packet)?;
    (to.port() == port && receives(to.ip())).then_some((from, payload))
}

/// Returns whether an outgoing packet is one of our own datagrams. The tap contains such datagrams
/// if the gateway's address is one of the site's; they must not be encoded.
pub fn is_own_datagram(
    packet: &mut [u8],
    port: u16,
    receives: impl FnOnce(IpAddr) -> bool,
) -> bool {
    udp(packet).is_some_and(|(from, ..)| from.port() == port && receives(from.ip()))
}

/// Source, destination and payload of a UDP datagram.
fn udp(packet: &mut [u8]) -> Option<(SocketAddr, SocketAddr, &mut [u8])> {
    let header = Header::parse(packet).ok()?;
    if header.protocol != UDP || is_fragment(packet, header.source) {
        return None;
    }
    let datagram = packet.get_mut(header.header_len..header.total_len)?;
    let (ports, payload) = datagram.split_at_mut_checked(UDP_HEADER)?;
    let from = SocketAddr::new(header.source, u16::from_be_bytes([ports[0], ports[1]]));
    let to = SocketAddr::new(header.destination, u16::from_be_bytes([ports[2], ports[3]]));
    Some((from, to, payload))
}

/// Returns whether a packet is an IPv4 fragment. Repairs are never sent in fragments, and only the
/// first fragment of a datagram has its UDP header.
fn is_fragment(packet: &[u8], source: IpAddr) -> bool {
    source.is_ipv4() && u16::from_be_bytes([packet[6], packet[7]]) & 0x3fff != 0
}
